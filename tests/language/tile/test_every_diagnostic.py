"""Every message that the language, the Program and the interpreter can give is expected by some test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [ROOT / "src/megatile" / folder for folder in ("language", "ir", "targets/interpret")]
TESTS = [ROOT / "tests" / folder for folder in ("language", "ir", "lowering", "targets")]
OF_BOTH = {"blocks", "mock_record", "symbols"}
"""Modules of ``tl`` whose messages are held here; the others have tests of their own."""


def sources(*left_out: str) -> Iterator[Path]:
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            of_tl = path.stem == "tl" or (path.parent.name == "kernel" and path.stem not in OF_BOTH)
            if not of_tl and path.stem not in left_out:
                yield path


HELPERS = {"fail", "refuse", "_fail", "_too_early"}
"""Functions that take a message, beside the classes called ...Error."""
ENOUGH = 14
"""Characters that a test must share with the fixed text of a message."""


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def pieces(node: ast.expr) -> list[str]:
    """The fixed text of a message, in order; what is filled in is left out."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return [p for value in node.values for p in pieces(value)]
    if isinstance(node, ast.BinOp):
        return pieces(node.left) + pieces(node.right)
    if isinstance(node, ast.IfExp):
        return pieces(node.body) + pieces(node.orelse)
    return []


def messages() -> Iterator[tuple[str, list[str]]]:
    """Where a message is made, and its fixed text."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = [p for argument in told(node, path) for p in pieces(argument)]
            if text:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text  # type: ignore[attr-defined]


def told(node: ast.AST, path: Path) -> list[ast.expr]:
    """What is said, if anything is: errors are called, findings yielded, Python's errors retold, and syntax
    that is not read is listed with its message and advice."""
    if isinstance(node, ast.Call) and (called(node) in HELPERS or called(node).endswith("Error")):
        return node.args[:2]
    if isinstance(node, ast.Tuple) and path.stem == "transform" and len(node.elts) == 2:
        return node.elts[:1] if all(pieces(part) for part in node.elts) else []
    finding = isinstance(node, ast.Yield) and (path.parent.name == "passes" or path.stem == "capacity")
    retold = isinstance(node, ast.Return) and path.stem == "errors"
    if (finding or retold) and isinstance(node.value, ast.Tuple):  # type: ignore[attr-defined]
        return node.value.elts[:1]  # type: ignore[attr-defined]
    return []


def expectations() -> str:
    """All text in tests, without the marks of regular expressions; a line each."""
    lines = []
    for folder in TESTS:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    lines += re.split(r"\.\*|\n|(?<!\\)\|", node.value)
    return "\n".join(line.replace("\\", "") for line in lines)


def without_advice() -> Iterator[str]:
    """Errors made without ``advice=``; the text of a Program is not written by users."""
    for path in sources("parser", "verify"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and called(node).endswith("Error") and node.args:
                builtin = called(node) in ("KeyError", "AssertionError")
                own = "assertion failed while building" in ast.unparse(node)
                if not (builtin or own or any(k.arg == "advice" for k in node.keywords)):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_error_says_what_to_try() -> None:
    assert list(without_advice()) == []


EXPECTED = expectations()


def is_expected(text: list[str]) -> bool:
    longest = max((p.strip() for p in text), key=len)
    width = min(len(longest), ENOUGH)
    return any(longest[at : at + width] in EXPECTED for at in range(len(longest) - width + 1))


@pytest.mark.parametrize(("where", "text"), [pytest.param(*m, id=m[0]) for m in messages()])
def test_the_message_is_expected_somewhere(where: str, text: list[str]) -> None:
    assert is_expected(text), f"{where}: no test expects {' … '.join(text)!r}"
