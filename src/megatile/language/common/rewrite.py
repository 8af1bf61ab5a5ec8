"""One rewriter for all kernels: Python control flow becomes calls on hooks.

    rewritten = bind(kernel, hooks)
    rewritten(*arguments)                # `for`, `if`, `and`, comparisons, calls ... go through `hooks`

The rewritten function is ordinary Python: whatever the hooks do not treat specially happens as written,
so running it with the plain ``Hooks`` (see ``hooks.py``) gives what the original gives. Every hook
receives the ``Place`` (file, line, column, source line) of its node.

What becomes what (``B`` is the hooks, ``p`` the place)::

    any simple statement          B.at(p); statement
    f(x)                          B.call(p, f, x)
    a < b <= c, x in y            B.compare(p, ("<", "<="), (lambda: a, lambda: b, lambda: c))
    a and b, a or b, not a        B.boolean(p, "and", (lambda: a, lambda: b)), B.not_(p, a)
    x if c else y                 B.choose(p, c, lambda: x, lambda: y)
    a[i], a[i] = v, a[i] += v     B.getitem(p, a, i), B.setitem(p, a, i, v), B.augment_item(p, "+", a, i, v)
    x: a = v                      x = B.declare(p, "x", v, lambda: a, True)
    x: a                          x = B.declare(p, "x", x, lambda: a, False)
    x = v, x += v                 x = B.assign(p, "x", v), x = B.assign(p, "x", B.augment(p, "+", x, v))
    f"{x}"                        B.formatted(p, x)
    assert c, m                   B.assert_(p, c, lambda: m)
    with m as a, b:               with m as (a, b):             (where b is unbound)
    if c: ... else: ...           state, jump = B.if_(p, c, then, orelse, names, state)
    for t in it: ...              state, jump = B.for_(p, it, body, names, state, context)
    while c: ...                  state, jump = B.while_(p, test, body, names, state, context)

``then``/``orelse`` are functions of the state (the variables that the branches assign and that matter
elsewhere), given and returned as a tuple in the order of ``names``; ``body`` takes the item first, ``test``
and a while-body only the state. Each returns ``(state, jump)``; ``jump`` is None, ``BREAK``, ``CONTINUE`` or
a ``Returned(value)``. A variable that has no value yet is an ``Undefined``, which complains with its name as
soon as it is used. ``context`` tells ``for_`` and ``while_`` which names are used after the loop (``live``)
and gives the objects the body can see (``captures()``). An ``if`` whose body always jumps takes the
statements after it as its ``else``, so ``if c: return a`` followed by more is a plain two-way choice.
``global`` and ``nonlocal`` are refused: they would hide state from the hooks.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

from megatile.core.errors import Place
from megatile.core.frames import record_source
from megatile.language.common.syntax import arguments_of, function_of
from megatile.language.common.transform import HOOKS, PLACES, RewriteError, Transformer

__all__ = ["RewriteError", "bind", "can_rewrite"]


Rewritten = tuple[types.CodeType, tuple[Place, ...]]
"""The code of a function before it is bound to hooks, and the places in it."""
_CACHE: dict[types.CodeType, Rewritten] = {}


def bind(function: Callable[..., Any], hooks: Any) -> Callable[..., Any]:
    """``function`` rewritten to go through ``hooks``; arguments, defaults and closure stay as they are."""
    if isinstance(function, types.MethodType):
        return types.MethodType(bind(function.__func__, hooks), function.__self__)
    if not isinstance(function, types.FunctionType):
        raise RewriteError(f"{function!r} is not a Python function", advice="decorate a 'def'")
    if function.__code__ not in _CACHE:
        _CACHE[function.__code__] = _rewrite(function)
    code, places = _CACHE[function.__code__]
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells |= {HOOKS: types.CellType(hooks), PLACES: types.CellType(places)}
    closure = tuple(cells[name] for name in code.co_freevars)
    result = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    result.__qualname__ = function.__qualname__
    return result


def can_rewrite(function: Any) -> bool:
    """Return whether the function's source can be had, and it has not been rewritten yet."""
    if not isinstance(function, types.FunctionType) or function.__name__ == "<lambda>":
        return False
    if HOOKS in function.__code__.co_freevars:
        return False
    if function.__code__ in _CACHE:
        return True
    try:
        inspect.getsource(function)
    except (OSError, TypeError):
        return False
    return True


def _rewrite(function: types.FunctionType) -> Rewritten:
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise RewriteError(
            f"the source of '{function.__name__}' cannot be read",
            advice="define the kernel in a file (not by exec or at the prompt)",
        ) from error
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    record_source(file)
    source = textwrap.dedent("".join(lines))
    indent = len(lines[0]) - len(lines[0].lstrip())
    node = _definition(source, function.__name__, file, first)
    known = set(function.__code__.co_freevars) | set(function.__globals__) | set(dir(builtins))
    rewriter = Transformer(file, first, indent, source.splitlines(), known)
    definition = rewriter.function(node)
    ast.increment_lineno(definition, first - 1)
    free = [*function.__code__.co_freevars, HOOKS, PLACES]
    return _compile(definition, free, file), tuple(rewriter.places)


def _definition(source: str, name: str, file: str, first: int) -> ast.FunctionDef:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise RewriteError(
            f"cannot read '{name}': {error.msg}",
            place=Place(file, first),
            advice="write it as a 'def' of its own",
        ) from error
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise RewriteError(
            "a kernel is a function written with 'def'",
            place=Place(file, first),
            advice="def kernel(A: ...): ...",
        )
    node.decorator_list = []
    return node


def _compile(definition: ast.FunctionDef, free: list[str], file: str) -> types.CodeType:
    """Return the code object of the definition, with ``free`` as its free variables."""
    # Names become free variables only inside a function that binds them: wrap, compile, take the inner code
    # out.
    # The definition gets a name of its own, or a function that calls itself would find the wrapper's.
    name, definition.name = definition.name, "__inner"
    outer = function_of("__outer", arguments_of(free), [definition])
    module = ast.fix_missing_locations(ast.Module(body=[outer], type_ignores=[]))
    outer_code = _inner(compile(module, file, "exec"), "__outer")
    return _inner(outer_code, "__inner").replace(co_name=name)


def _inner(code: types.CodeType, name: str) -> types.CodeType:
    return next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
