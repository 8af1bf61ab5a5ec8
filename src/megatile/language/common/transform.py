"""The transformation behind ``rewrite.py``: one Python function in, the same with calls of hooks out."""

from __future__ import annotations

import ast
from typing import Any

from megatile.core.errors import MegatileError, Place
from megatile.language.common.syntax import (
    BINARY,
    COMPARE,
    always_jumps,
    arguments_of,
    function_of,
    jumps,
    load,
    loaded,
    names_tuple,
    parameters_of,
    read_first,
    stored,
    thunk,
    tuple_of,
    without_annotations,
)

HOOKS, PLACES, JUMP = "__megatile_hooks", "__megatile_places", "__megatile_jump"
PART = "__megatile_part"
_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Global: ("'global' is not supported in a kernel", "return the value instead"),
    ast.Nonlocal: ("'nonlocal' is not supported in a kernel", "return the value instead"),
    ast.AsyncFunctionDef: ("a kernel cannot be asynchronous", "use recv_async and wait"),
    ast.Yield: ("a kernel cannot be a generator", "write a loop"),
    ast.YieldFrom: ("a kernel cannot be a generator", "write a loop"),
    ast.NamedExpr: ("':=' is not supported in a kernel", "assign on a line of its own"),
}


class RewriteError(MegatileError, SyntaxError):
    """A kernel that uses Python the rewriter does not take."""

    __str__ = MegatileError.__str__


class Transformer(ast.NodeTransformer):
    """Rewrites one function; nested functions get their own scope but the same hooks."""

    def __init__(self, file: str, first: int, indent: int, lines: list[str], known: set[str]):
        self.file, self.first, self.indent, self.lines = file, first, indent, lines
        self.known = known  # names bound outside the function
        self.places: list[Place] = []
        self.count = 0
        self.root: ast.FunctionDef | None = None
        self.state: list[str] | None = None  # names returned by the innermost body function; None at the top
        self.loops = 0

    # --- helpers ----------------------------------------------------------------------------------

    def place(self, node: ast.AST) -> ast.expr:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        pad = " " * self.indent
        place = Place(self.file, self.first + line - 1, column + 1 + self.indent, None, pad + text)
        self.places.append(place)
        return ast.Subscript(load(PLACES), ast.Constant(len(self.places) - 1), ast.Load())

    def refuse(self, node: ast.AST, message: str, advice: str) -> RewriteError:
        self.place(node)
        return RewriteError(message, place=self.places[-1], advice=advice)

    def hook(self, name: str, node: ast.AST, *arguments: ast.expr) -> ast.expr:
        function = ast.Attribute(load(HOOKS), name, ast.Load())
        return ast.copy_location(ast.Call(function, [self.place(node), *arguments], []), node)

    def visit(self, node: ast.AST) -> Any:
        if type(node) in _REFUSED:
            raise self.refuse(node, *_REFUSED[type(node)])
        return super().visit(node)

    def value(self, node: ast.expr) -> ast.expr:
        return self.visit(node)

    def block(self, body: list[ast.stmt], tail: ast.stmt | None = None) -> list[ast.stmt]:
        """Return statements rewritten. ``tail`` is the jump that reaching their end amounts to, if any."""
        result: list[ast.stmt] = []
        for number, statement in enumerate(body):
            rest = body[number + 1 :]
            if isinstance(statement, ast.If) and not statement.orelse and always_jumps(statement.body):
                if tail is not None and not always_jumps(rest):
                    rest = [*rest, ast.copy_location(tail, statement)]
                whole = ast.copy_location(ast.If(statement.test, statement.body, rest), statement)
                return result + self.statement(whole)
            if isinstance(statement, ast.With) and not rest:  # its end is the end of this body
                return [*result, self.visit_With(statement, tail)]
            result += self.statement(statement)
        return result

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        new = self.visit(node)
        statements = new if isinstance(new, list) else [new]
        if isinstance(
            node, (ast.If, ast.For, ast.While, ast.FunctionDef, ast.With, ast.Return, ast.Break, ast.Continue)
        ):
            return statements
        return [ast.copy_location(ast.Expr(self.hook("at", node)), node), *statements]

    # --- functions and jumps ----------------------------------------------------------------------

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        outer = self.root, self.state, self.loops
        self.root, self.state, self.loops = node, None, 0
        names = sorted(stored(node.body) - parameters_of(node))
        body = self.undefined(names, node) + self.block(node.body, ast.Return(ast.Constant(None)))
        self.root, self.state, self.loops = outer
        # Defaults and annotations were evaluated when the original was defined; they are set on the new
        # function.
        return ast.copy_location(function_of(node.name, without_annotations(node.args), body), node)

    def undefined(self, names: list[str], node: ast.AST) -> list[ast.stmt]:
        """Give variables the value "none yet", so that passing them on unassigned is not an error."""
        return [
            ast.Assign([ast.Name(name, ast.Store())], self.hook("undefined", node, ast.Constant(name)))
            for name in names
        ]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.decorator_list:
            raise self.refuse(node, "a function inside a kernel cannot have decorators", "define it outside")
        node.args.defaults = [self.value(d) for d in node.args.defaults]
        node.args.kw_defaults = [None if d is None else self.value(d) for d in node.args.kw_defaults]
        return self.function(node)

    def leave(self, jump: ast.expr) -> ast.stmt:
        """Return from the innermost body function with its state and a jump."""
        assert self.state is not None
        return ast.Return(tuple_of([tuple_of([load(n) for n in self.state]), jump]))

    def visit_Return(self, node: ast.Return) -> ast.AST:
        value = self.value(node.value) if node.value else ast.Constant(None)
        if self.state is None:
            return ast.copy_location(ast.Return(value), node)
        return ast.copy_location(self.leave(self.hook("returned", node, value)), node)

    def visit_Break(self, node: ast.stmt) -> ast.AST:
        word = type(node).__name__.upper()
        return ast.copy_location(self.leave(ast.Attribute(load(HOOKS), word, ast.Load())), node)

    visit_Continue = visit_Break

    def propagate(self, node: ast.stmt) -> list[ast.stmt]:
        """After a branch or loop that may jump: pass the jump on."""
        if not jumps(node):
            return []
        out = self.leave(load(JUMP)) if self.state is not None else None
        value = ast.Return(ast.Attribute(load(JUMP), "value", ast.Load()))
        test = ast.Compare(load(JUMP), [ast.IsNot()], [ast.Constant(None)])
        return [ast.copy_location(ast.If(test, [out or value], []), node)]

    # --- control flow -----------------------------------------------------------------------------

    def names_of(self, node: ast.stmt, looping: bool) -> list[str]:
        """Return variables that flow out of (or around) a statement: assigned in it, and read where that
        matters."""
        assert self.root is not None
        used = loaded(self.root, skip=node)
        if looping or self.loops:
            used |= loaded(node)
        elif isinstance(node, ast.If):
            used |= read_first(node.body) | read_first(node.orelse)
        # What jumps out of it takes along everything that the body around it returns.
        taken = set(self.state or ()) if not looping and jumps(node) else set()
        return sorted(stored([node]) & used | taken)

    def body_function(
        self, name: str, first: list[str], names: list[str], body: list[ast.stmt], looping: bool = False
    ) -> ast.FunctionDef:
        outer, self.state = self.state, names
        own = sorted(stored(body) - set(names))
        statements = self.undefined(own, body[0]) if own else []
        statements += self.block(body, ast.Continue() if looping else None)
        if not (body and isinstance(statements[-1], ast.Return)):
            statements.append(self.leave(ast.Constant(None)))
        self.state = outer
        return function_of(name, arguments_of([*first, *names]), statements)

    def fresh(self, word: str) -> str:
        self.count += 1
        return f"__{word}_{self.count}"

    def assign_state(self, names: list[str], call: ast.expr, node: ast.stmt) -> ast.stmt:
        target = tuple_of(
            [tuple_of([ast.Name(n, ast.Store()) for n in names], True), ast.Name(JUMP, ast.Store())], True
        )
        return ast.copy_location(ast.Assign([target], call), node)

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        names = self.names_of(node, looping=False)
        test = self.value(node.test)
        then = self.body_function(self.fresh("then"), [], names, node.body)
        orelse = self.body_function(self.fresh("else"), [], names, node.orelse)
        call = self.hook(
            "if_",
            node,
            test,
            load(then.name),
            load(orelse.name),
            names_tuple(names),
            tuple_of([load(n) for n in names]),
        )
        return [then, orelse, self.assign_state(names, call, node), *self.propagate(node)]

    def context(self, node: ast.For | ast.While) -> ast.expr:
        """``B.context(p, live, captures, targets)``."""
        assert self.root is not None
        live = sorted(stored([node]) & loaded(self.root, skip=node))
        if self.loops > 1:  # an enclosing loop may read it in its next iteration
            live = sorted(stored([node]) & loaded(self.root))
        seen = sorted((loaded(node) - {HOOKS, PLACES}) & (stored(self.root.body) | parameters_of(self.root)))
        captured = ast.Dict([ast.Constant(n) for n in seen], [load(n) for n in seen])
        target = [node.target] if isinstance(node, ast.For) else []
        targets = [n.id for t in target for n in ast.walk(t) if isinstance(n, ast.Name)]
        return self.hook("context", node, names_tuple(live), thunk(captured), names_tuple(targets))

    def visit_For(self, node: ast.For | ast.While) -> list[ast.stmt]:
        """A ``for`` goes over something and gives its body an item; a ``while`` tests the state instead."""
        word = type(node).__name__.lower()
        if node.orelse:
            raise self.refuse(node, f"'{word} ... else' is not supported", "test after the loop")
        over = self.value(node.iter) if isinstance(node, ast.For) else None
        items = [] if over is None else [self.fresh("item")]
        self.loops += 1
        names, context = self.names_of(node, looping=True), self.context(node)
        if isinstance(node, ast.While):
            over = ast.Lambda(arguments_of(names), self.value(node.test))
        body = self.body_function(self.fresh("body"), items, names, node.body, looping=True)
        if isinstance(node, ast.For):
            body.body.insert(0, ast.copy_location(ast.Assign([node.target], load(items[0])), node))
        self.loops -= 1
        state = names_tuple(names), tuple_of([load(n) for n in names])
        call = self.hook(f"{word}_", node, over, load(body.name), *state, context)  # type: ignore[arg-type]
        return [body, self.assign_state(names, call, node), *self.propagate(node)]

    visit_While = visit_For

    def visit_With(self, node: ast.With, tail: ast.stmt | None = None) -> ast.stmt:
        items: list[ast.withitem] = []
        for item in node.items:
            if items and items[-1].optional_vars is not None and self.is_target(item):
                assert isinstance(item.context_expr, ast.Name)
                extra = ast.Name(item.context_expr.id, ast.Store())
                previous = items[-1].optional_vars
                targets = previous.elts if isinstance(previous, ast.Tuple) else [previous]
                items[-1].optional_vars = ast.Tuple([*targets, extra], ast.Store())
                continue
            items.append(ast.withitem(self.value(item.context_expr), item.optional_vars))
        return ast.copy_location(ast.With(items, self.block(node.body, tail)), node)

    def is_target(self, item: ast.withitem) -> bool:
        """``with f() as a, b:`` where ``b`` has no value yet: the author means ``as (a, b)``."""
        name = item.context_expr
        if item.optional_vars is not None or not isinstance(name, ast.Name) or self.root is None:
            return False
        return name.id not in self.known | stored(self.root.body) | parameters_of(self.root)

    # --- simple statements ------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        value = self.value(node.value)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = self.hook("assign", node, ast.Constant(node.targets[0].id), value)
            return ast.copy_location(ast.Assign(node.targets, value), node)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
            return self.store_item(node.targets[0], value, node)
        if len(node.targets) == 1 and isinstance(node.targets[0], (ast.Tuple, ast.List)):
            return self.unpack(node, node.targets[0].elts, value)
        return ast.copy_location(ast.Assign(node.targets, value), node)

    def unpack(self, node: ast.Assign, targets: list[ast.expr], value: ast.expr) -> ast.AST | list[ast.stmt]:
        """``a, b = x, y``: every value is read before the first target changes."""
        if not all(isinstance(target, (ast.Name, ast.Subscript)) for target in targets):
            return ast.copy_location(ast.Assign(node.targets, value), node)
        if isinstance(value, ast.Tuple):
            words = [getattr(target, "id", None) for target in targets]
            value = ast.Tuple(
                [
                    self.hook("part", node, tuple_of([ast.Constant(word) for word in words]), one)
                    for one in value.elts
                ],
                ast.Load(),
            )
        names = [f"{PART}{i}" for i in range(len(targets))]
        parts = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        statements: list[Any] = [ast.Assign([parts], value)]
        for target, name in zip(targets, names, strict=True):
            if isinstance(target, ast.Subscript):
                statements.append(self.store_item(target, load(name), node))
            else:
                word = ast.Constant(target.id)  # type: ignore[attr-defined]
                statements.append(ast.Assign([target], self.hook("assign_part", node, word, load(name))))
        return [ast.copy_location(one, node) for one in statements]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | list[ast.stmt]:
        if not isinstance(node.target, ast.Name):
            if node.value is None:
                return ast.copy_location(ast.Pass(), node)
            return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))
        name, given = node.target.id, node.value is not None
        value = self.value(node.value) if node.value is not None else load(name)
        annotation = thunk(self.value(node.annotation))
        value = self.hook("declare", node, ast.Constant(name), value, annotation, ast.Constant(given))
        return ast.copy_location(ast.Assign([node.target], value), node)

    def store_item(self, target: ast.Subscript, value: ast.expr, node: ast.stmt) -> ast.AST:
        call = self.hook("setitem", node, self.value(target.value), self.index(target.slice), value)
        return ast.copy_location(ast.Expr(call), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        operator = ast.Constant(BINARY[type(node.op)])
        value = self.value(node.value)
        if isinstance(node.target, ast.Name):
            sum_ = self.hook("augment", node, operator, load(node.target.id), value)
            value = self.hook("assign", node, ast.Constant(node.target.id), sum_)
            return ast.copy_location(ast.Assign([node.target], value), node)
        if isinstance(node.target, ast.Subscript):
            item = self.value(node.target.value), self.index(node.target.slice)
            call = self.hook("augment_item", node, operator, *item, value)
            return ast.copy_location(ast.Expr(call), node)
        return ast.copy_location(ast.AugAssign(node.target, node.op, value), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        message = self.value(node.msg) if node.msg else ast.Constant("")
        call = self.hook("assert_", node, self.value(node.test), thunk(message))
        return ast.copy_location(ast.Expr(call), node)

    # --- expressions ------------------------------------------------------------------------------

    def index(self, node: ast.expr) -> ast.expr:
        """Return a subscript's index as a value (slices become ``slice(...)``)."""
        if isinstance(node, ast.Slice):
            parts = [self.value(p) if p else ast.Constant(None) for p in (node.lower, node.upper, node.step)]
            return self.hook("slice_", node, *parts)
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self.index(e) for e in node.elts], ast.Load())
        return self.value(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        return self.hook("getitem", node, self.value(node.value), self.index(node.slice))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in ("super", "locals", "globals", "vars"):
            raise self.refuse(node, f"'{node.func.id}()' has no meaning in a kernel", "name what you need")
        arguments = [self.value(a) for a in node.args]
        keywords = [ast.keyword(k.arg, self.value(k.value)) for k in node.keywords]
        hook = ast.Attribute(load(HOOKS), "call", ast.Load())
        call = ast.Call(hook, [self.place(node), self.value(node.func), *arguments], keywords)
        return ast.copy_location(call, node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        operators = ast.Tuple([ast.Constant(COMPARE[type(o)]) for o in node.ops], ast.Load())
        operands = tuple_of([thunk(self.value(v)) for v in [node.left, *node.comparators]])
        return self.hook("compare", node, operators, operands)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        word = ast.Constant("and" if isinstance(node.op, ast.And) else "or")
        return self.hook("boolean", node, word, tuple_of([thunk(self.value(v)) for v in node.values]))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not):
            return self.hook("not_", node, self.value(node.operand))
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        then, orelse = thunk(self.value(node.body)), thunk(self.value(node.orelse))
        return self.hook("choose", node, self.value(node.test), then, orelse)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        value = self.hook("formatted", node, self.value(node.value))
        return ast.FormattedValue(value, node.conversion, node.format_spec)
