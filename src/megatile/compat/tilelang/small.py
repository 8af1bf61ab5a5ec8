"""A file of kernels with its sizes made small: numbers by name (``M``, ``seq_len``, ``heads`` …) in default
arguments, options of argparse, assignments and calls outside kernels. Kernels stay as they stand."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

_LARGEST = {
    1: "batch b batch_size bs ngroups",
    2: "nheads groups n_chunk hk head_kv heads_kv kv_heads h_kv kv_head_num hkv",
    8: "num_experts",
    16: "heads h head num_heads n_heads hv h_q hq",
    64: "num_tokens tokens topk s_q out_channel c f",
    256: (
        "m n k seq_len seqlen s sq skv seq_q seq_kv n_ctx q_seqlen k_seqlen kv_seqlen seqlen_q "
        "seqlen_k seqlen_kv kv_ctx kv_seq_len seq_len_kv max_seqlen total_len sequence_length seq "
        "t max_seqlen_q max_seqlen_k max_seqlen_kv cache_seqlen max_seq_len context_size s_kv "
    ),
    512: "hidden hidden_size max_cache_seqlen",
}
CAPS = {name: size for size, names in _LARGEST.items() for name in names.split()}
"""The largest size of a name, in lower case."""


class Smaller(ast.NodeTransformer):
    """Makes sizes small, or those of ``sizes`` what they say there; ``changed`` are the numbers before."""

    def __init__(self, sizes: Mapping[str, Any], functions: dict[str, list[str]]):
        self.sizes = {k.lower(): v for k, v in sizes.items()}
        self.functions = functions
        self.changed: dict[str, Any] = {}

    def small(self, name: str | None, value: ast.expr) -> ast.expr:
        key = (name or "").lower().lstrip("-").replace("-", "_")
        if key in self.sizes and isinstance(value, (ast.Constant, ast.List)):
            return self.replaced(key, self.sizes[key], value)
        if not isinstance(value, ast.Constant) or isinstance(value.value, bool):
            return value
        if isinstance(value.value, int) and value.value > CAPS.get(key, value.value):
            return self.replaced(key, CAPS[key], value)
        return value

    def replaced(self, name: str, size: Any, value: ast.expr) -> ast.expr:
        self.changed[name] = ast.literal_eval(value)
        return ast.copy_location(ast.parse(repr(size), mode="eval").body, value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if any("jit" in ast.unparse(d) or "prim_func" in ast.unparse(d) for d in node.decorator_list):
            return node
        arguments = [*node.args.posonlyargs, *node.args.args]
        for argument, at in zip(reversed(arguments), reversed(range(len(node.args.defaults))), strict=False):
            node.args.defaults[at] = self.small(argument.arg, node.args.defaults[at])
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                node.value = self.small(target.id, node.value)
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                node.value.elts = [
                    self.small(t.id if isinstance(t, ast.Name) else None, v)
                    for t, v in zip(target.elts, node.value.elts, strict=False)
                ]
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        option = None
        if name == "add_argument":
            option = next((str(a.value) for a in reversed(node.args) if isinstance(a, ast.Constant)), None)
        for keyword in node.keywords:
            keyword.value = self.small(option if keyword.arg == "default" else keyword.arg, keyword.value)
        for at, parameter in enumerate(self.functions.get(name, ())[: len(node.args)]):
            node.args[at] = self.small(parameter, node.args[at])
        return node


def is_kernel(node: ast.FunctionDef) -> bool:
    """Whether a function is a kernel or a macro of kernels."""
    return any(
        "jit" in ast.unparse(d) or "prim_func" in ast.unparse(d) or "macro" in ast.unparse(d)
        for d in node.decorator_list
    )


def smaller(path: Path, sizes: Mapping[str, Any], kind: type[Smaller] = Smaller) -> tuple[CodeType, Smaller]:
    """The file's code with small sizes, and what was changed."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    functions = {
        node.name: [a.arg for a in node.args.args]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and not is_kernel(node) and "div" not in node.name
    }
    change = kind(sizes, functions)
    return compile(ast.fix_missing_locations(change.visit(tree)), str(path), "exec"), change
