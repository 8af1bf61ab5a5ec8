"""Expressions as C: scalars, or one value per lane inside an elementwise loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from megatile.core.expr import WEAK, Binary, Const, Expr, Symbol, Table, binary, bounds, simplify, walk
from megatile.core.expr.typing import promote
from megatile.ir.expr import Load
from megatile.targets.common.elements import ROUNDED, Value, broadcast, c_type, converted, kind, literal
from megatile.targets.common.errors import CompileError

_COMPARE = ("<", "<=", ">", ">=", "==", "!=")
_FUNCTIONS = ("exp", "exp2", "log", "log2", "tanh", "erf", "sqrt", "floor", "ceil", "sin", "cos")


def _infix(*signs: str) -> dict[str, str]:
    return {sign: f"({{}} {sign} {{}})" for sign in signs} | {"neg": "(-{})"}


_WHOLES = _infix("+", "-", "*", "&", "|", "^", "<<", ">>") | {
    "abs": "__builtin_labs({})", "**": "power({}, {})", "floor": "{}", "ceil": "{}", "min": "lmin({}, {})",
    "max": "lmax({}, {})",
}  # fmt: skip
_OF_TWO = {"**": "powf", "//": "ffloordiv", "%": "fmodulo"}
_FLOATS = _infix("+", "-", "*", "/") | {
    **{name: f"{name}_f({{}})" for name in (*_FUNCTIONS, "sigmoid", "rsqrt")},
    "min": "fmin_({}, {})", "max": "fmax_({}, {})", "abs": "__builtin_fabsf({})",
    **{op: f"{name}({{}}, {{}})" for op, name in _OF_TWO.items()}, "ceildiv": "(-ffloordiv(-{}, {}))",
}  # fmt: skip
_EACH = "({{ vf x_ = {}, y_ = {}, r_; for (int l_ = 0; l_ < W; l_++) r_[l_] = of_two(x_[l_], y_[l_]); r_; }})"
_TEXTS: dict[tuple[str, bool], dict[str, str]] = {
    ("f", False): _FLOATS,
    ("f", True): _infix("+", "-", "*", "/") | {
        **{name: f"v{name}({{}})" for name in (*_FUNCTIONS, "sigmoid", "rsqrt", "abs")},
        "min": "vmin({}, {})", "max": "vmax({}, {})",
        **{op: _EACH.replace("of_two", name) for op, name in _OF_TWO.items()},
    },
    ("d", False): _infix("+", "-", "*", "/") | {
        **{name: f"{name}({{}})" for name in _FUNCTIONS},
        "min": "dmin_({}, {})", "max": "dmax_({}, {})", "**": "pow({}, {})", "//": "dfloordiv({}, {})",
        "%": "dmodulo({}, {})", "abs": "__builtin_fabs({})", "rsqrt": "(1.0 / sqrt({}))",
        "sigmoid": "(1.0 / (1.0 + exp(-{})))",
    },
    ("l", False): _WHOLES,
    ("l", True): _WHOLES | {"min": "vimin({}, {})", "max": "vimax({}, {})", "abs": "viabs({})"},
}  # fmt: skip
"""The C of operations, by the kind of number they are of, and whether there is one in every lane."""
SMALL = (-(2**31), 2**31 - 1)


class Context(Protocol):
    """What expressions are written in: variables, loads, and the writer of all."""

    gen: Any
    ranges: dict[str, tuple[int, int]]

    def variable(self, symbol: Symbol) -> Value: ...
    def load(self, expr: Load) -> Value: ...


def write(expr: Expr, at: Context) -> Value:
    """Return the C of an expression."""
    if isinstance(expr, Const):
        return Value(f"({literal(expr.value, kind(expr.dtype))})", expr.dtype)
    if isinstance(expr, Symbol):
        return at.variable(expr)
    if isinstance(expr, Load):
        return at.load(expr)
    if isinstance(expr, Table):
        index = write(expr.index, at).text
        name = at.gen.constant_table(expr.values)
        return Value(f"{name}[lmin(lmax({index}, 0), {len(expr.values) - 1})]", "int")
    return _applied(expr, at)


def whole(expr: Expr, at: Context) -> str:
    """Return the C of a whole number."""
    return converted(write(expr, at), "int").text


def _applied(expr: Any, at: Context) -> Value:
    op, args = expr.operator, expr.args
    if op in ("and", "or", "not"):
        return _logical(op, [converted(write(a, at), "bool") for a in args])
    if op == "cast":
        return converted(write(args[0], at), expr.dtype)
    if op == "bitcast":
        return _bitcast(write(args[0], at), expr.dtype)
    data = args[1:] if op == "select" else args
    common = data[0].dtype
    for other in data[1:]:
        common = promote(common, other.dtype)
    if expr.dtype not in (*WEAK, "bool") or op == "select":
        common = expr.dtype
    if common == "bool" and op not in ("select", "==", "!=", "&", "|", "^"):
        common = "int"
    values = [converted(write(a, at), common) for a in data]
    lanes = any(v.vector for v in values)
    if op == "select":
        return _select(converted(write(args[0], at), "bool"), values, common)
    texts = [broadcast(v) for v in values] if lanes else [v.text for v in values]
    if op in _COMPARE:
        sure = _decided(op, expr, at)
        if sure is not None:
            return Value(str(int(sure)), "bool")
        return Value(f"({texts[0]} {op} {texts[1]})", "bool", lanes)
    result = Value(_operation(op, texts, common, expr, at, lanes), _raw(common), lanes)
    if expr.dtype in WEAK:
        return Value(result.text, expr.dtype, lanes)
    return converted(result, expr.dtype)


def _decided(op: str, expr: Any, at: Context) -> bool | None:
    """Return what a comparison of whole numbers gives, if their bounds tell."""
    if any(a.dtype != "int" for a in expr.args):
        return None
    found = bounds(simplify(binary("-", *expr.args)), at.ranges)
    if found is None:
        return None
    low, high = found
    if op in ("<", ">="):
        sure = True if high < 0 else False if low >= 0 else None
    elif op in ("<=", ">"):
        sure = True if high <= 0 else False if low > 0 else None
    else:
        sure = True if low == high == 0 else False if low > 0 or high < 0 else None
    return sure if sure is None or op in ("<", "<=", "==") else not sure


def _raw(common: str) -> str:
    """Return the dtype of a result that has not been rounded yet."""
    if common in ROUNDED:
        return "f32"
    return "int" if kind(common) == "l" else common


def _logical(op: str, values: list[Value]) -> Value:
    decides = {"and": "0", "or": "1"}.get(op)
    if any(v.text == decides for v in values):
        return Value(str(decides), "bool")
    if op != "not" and any(v.text in ("0", "1") for v in values):
        return next((v for v in values if v.text not in ("0", "1")), values[0])
    lanes = any(v.vector for v in values)
    texts = [broadcast(v) if lanes else v.text for v in values]
    if op == "not":
        return Value(f"(~{texts[0]})" if lanes else f"(!{texts[0]})", "bool", lanes)
    sign = {"and": "&", "or": "|"}[op] * (1 if lanes else 2)
    return Value(f"({texts[0]} {sign} {texts[1]})", "bool", lanes)


def _select(condition: Value, values: list[Value], dtype: str) -> Value:
    if condition.text in ("0", "1"):
        return values[1 - int(condition.text)]
    if not condition.vector and not any(v.vector for v in values):
        return Value(f"({condition.text} ? {values[0].text} : {values[1].text})", dtype)
    first, second = map(broadcast, values)
    if not condition.vector:
        return Value(f"({condition.text} ? {first} : {second})", dtype, True)
    choose = "sel" if kind(dtype) == "f" else "isel"
    return Value(f"{choose}({condition.text}, {first}, {second})", dtype, True)


def _bitcast(value: Value, to: str) -> Value:
    if value.vector or value.dtype in WEAK or (kind(value.dtype) == kind(to) == "f" and value.dtype != to):
        raise CompileError("this reinterpretation cannot be compiled yet", advice="mt.run takes it")
    source, target = c_type(value.dtype), c_type(to)
    return Value(f"BITCAST({source}, {target}, {value.text})", to)


def _operation(op: str, texts: list[str], common: str, expr: Any, at: Context, lanes: bool) -> str:
    of = {"b": "l"}.get(kind(common), kind(common))
    if of == "l" and op in ("//", "%", "ceildiv"):
        return _division(op, texts, expr, at)
    found = _TEXTS.get((of, lanes), {}).get(op)
    if found is None:
        raise CompileError(f"'{op}' cannot be compiled for these types yet", advice="mt.run takes it")
    return found.format(*texts)


def _division(op: str, texts: list[str], expr: Any, at: Context) -> str:
    a, b = texts
    divisor = expr.args[1]
    low = bounds(expr.args[0], at.ranges)
    positive = isinstance(divisor, Const) and divisor.value > 0
    if positive and low is not None and low[0] >= 0:
        return {"//": f"({a} / {b})", "%": f"({a} % {b})", "ceildiv": f"(({a} + {b} - 1) / {b})"}[op]
    if not (isinstance(divisor, Const) and divisor.value):
        b = f"divisor(failure, {at.gen.failure_site('division', 'division by zero')}, {b})"
    if op == "ceildiv":
        return f"(-floordiv(-{a}, {b}))"
    return f"{'floordiv' if op == '//' else 'modulo'}({a}, {b})"


def fits_lanes(expr: Expr, varies: Callable[[Expr], bool], at: Context) -> bool:
    """Return whether an expression can be computed for a vector of iterations: what varies between them must
    be f32 (or rounded to less), a truth, or a whole number that is surely small."""
    for part in walk(expr):
        if not varies(part) or isinstance(part, Load):
            continue
        shape = kind(part.dtype)
        if shape == "d" or (shape == "l" and not _small(part, at)):
            return False
        operator = getattr(part, "operator", None)
        if operator == "bitcast" or isinstance(part, Table) or (operator == "**" and shape != "f"):
            return False
        if operator == "cast" and shape == "l" and part.dtype not in ("i32", "int"):
            return False
        if operator in ("//", "%", "ceildiv") and shape == "l" and not _plain_division(part, at):
            return False
        if operator == "ceildiv" and shape != "l":
            return False
    return True


def _small(expr: Expr, at: Context) -> bool:
    if expr.dtype in ("i32", "i8", "u8", "i16", "u16"):
        return expr.dtype == "i32" or not hasattr(expr, "operator")
    found = bounds(expr, at.ranges)
    return expr.dtype == "int" and found is not None and found[0] >= SMALL[0] and found[1] <= SMALL[1]


def _plain_division(expr: Any, at: Context) -> bool:
    assert isinstance(expr, Binary)
    found = bounds(expr.left, at.ranges)
    return isinstance(expr.right, Const) and expr.right.value > 0 and found is not None and found[0] >= 0
