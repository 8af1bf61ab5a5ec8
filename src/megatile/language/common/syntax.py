"""Small pieces of Python syntax trees, as the rewriter puts them together."""

from __future__ import annotations

import ast

COMPOUND = (ast.If, ast.For, ast.While, ast.FunctionDef, ast.With, ast.Return, ast.Break, ast.Continue)
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
