"""Small pieces of Python syntax trees, as the rewriter puts them together."""

from __future__ import annotations

import ast
from collections.abc import Iterator

BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
COMPARE = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}


def arguments_of(names: list[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )


def function_of(name: str, arguments: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    # Python 3.12 insists on type_params, earlier ones do not know it.
    return ast.FunctionDef(  # type: ignore[call-arg,unused-ignore]
        name=name, args=arguments, body=body, decorator_list=[], returns=None, type_params=[]
    )


def load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def thunk(value: ast.expr) -> ast.expr:
    return ast.Lambda(arguments_of([]), value)


def tuple_of(items: list[ast.expr], store: bool = False) -> ast.expr:
    return ast.Tuple(items, ast.Store() if store else ast.Load())


def names_tuple(names: list[str]) -> ast.expr:
    return tuple_of([ast.Constant(name) for name in names])


def parameters_of(node: ast.FunctionDef) -> set[str]:
    return {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}


def without_annotations(arguments: ast.arguments) -> ast.arguments:
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return arguments


def stored(body: list[ast.stmt]) -> set[str]:
    """Return names assigned in the statements (not inside functions, lambdas or comprehensions defined
    there)."""
    names: set[str] = set()
    for statement in body:
        for node in _same_scope(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                names.add(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.alias):
                names.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                names.add(node.name)
    return names


def loaded(root: ast.AST, skip: ast.AST | None = None) -> set[str]:
    """Return names read anywhere in ``root`` (also in inner functions), except inside ``skip``."""
    names: set[str] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node is skip:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        pending += _inside(node)
    return names


def read_first(body: list[ast.stmt]) -> set[str]:
    """Return names that the statements may read before they assign them."""
    names, assigned = set[str](), set[str]()
    for statement in body:
        names |= loaded(statement) - assigned
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            assigned |= stored([statement])
    return names


def always_jumps(body: list[ast.stmt]) -> bool:
    """Return whether control never reaches the end of the statements."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
        return True
    return isinstance(last, ast.If) and always_jumps(last.body) and always_jumps(last.orelse)


def jumps(node: ast.stmt) -> bool:
    """Return whether a branch or loop may pass a jump on to what encloses it."""
    looping = isinstance(node, (ast.For, ast.While))
    for inner in _same_scope(node):
        if isinstance(inner, ast.Return):
            return True
        if isinstance(inner, (ast.Break, ast.Continue)) and not looping:
            return True
    return False


_SCOPES = (
    ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
_WITHOUT_NODES = {"ctx", "op", "ops", "id", "attr", "kind", "type_comment"}
"""Fields that hold names, or nodes that nobody looks for: leaving them out halves the time of a search."""


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, in no order; not what is in functions and comprehensions."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending += _inside(node)


_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}
"""The other fields of each kind of node."""


def _inside(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    kind = type(node)
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(name for name in kind._fields if name not in _WITHOUT_NODES)
    for name in _FIELDS[kind]:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found
