"""Names and sentences that newcomers had to read twice are gone; the eight words name one class each."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "megatile"
MODULES = {
    "stuck", "gaps", "vary", "turns", "endings", "soon", "kept", "remembered", "memo", "fact", "once",
    "talks", "nests", "floor", "extremes", "walk", "roll_call", "unusual", "test_use", "test_room",
    "test_ahead", "test_asked",
}  # fmt: skip
CLASSES = {"Answers", "Alike", "Joint", "RunningMachine", "PlanDraft", "Frame", "MustEnd"}
FUNCTIONS = {
    "look", "spot", "holder", "site", "soon", "let_go", "meet", "kept", "remembered", "memo", "fact", "once",
    "talks", "nests",
}  # fmt: skip
SENTENCES = (
    "Which question, which command", "page to look at", "the Plan gives what the interpreter",
    "data not compared",
    "extents are options", "In place unless said", "are always as they are", "What the description lacks",
    "something that has a meaning", "other figures change nothing", "whoever means the same",
    "no time left on the wall", "Whose kernels a plan", "is nothing to be least", "goes round in a circle",
    "an atomic that is read", "of which the host is the longer", "is no time from 0 on",
)  # fmt: skip
EIGHT = ("HDA", "Scale", "Tile", "Placement", "Program", "Channel", "Plan", "Trace")
NUMBERS = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.Name)
TEXTS = {".py", ".md", ".html", ".yaml"}
MAX_WORDS = 45_000


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(SOURCE.rglob("*.py"))]


def test_modules_and_tests_have_plain_names() -> None:
    files = [p for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in files if path.stem in MODULES] == []


def test_classes_and_functions_have_plain_names_and_the_eight_words_are_unique() -> None:
    found, eight = [], Counter[str]()
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found += [f"{path}: {node.name}"] if node.name in CLASSES else []
                eight[node.name] += node.name in EIGHT and not {"language", "compat"} & {*path.parts}
            elif isinstance(node, ast.FunctionDef) and node.name.lstrip("_") in FUNCTIONS:
                found.append(f"{path}: {node.name}")
    assert found == []
    assert {word: number for word, number in eight.items() if number > 1} == {}


def test_texts_have_none_of_the_old_sentences() -> None:
    files = [p for folder in ("src", "docs", "benchmarks", "examples") for p in (ROOT / folder).rglob("*")]
    files = [p for p in [*files, *ROOT.glob("*.md")] if p.suffix in TEXTS]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert [f"{path}: {s}" for path, text in texts.items() for s in SENTENCES if s in text] == []


def test_every_constant_that_is_a_number_has_a_sentence() -> None:
    assert [f"{path}: {name}" for path, tree in trees() for name in unexplained(path, tree)] == []


def unexplained(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the numbers of a module that neither a docstring nor a comment explains."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for node, after in pairwise([*tree.body, ast.Pass()]):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        parts = [part for part in ast.walk(node.value) if isinstance(part, (ast.expr, ast.operator))]
        number = all(isinstance(part, NUMBERS) for part in parts) and any(
            isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in parts
        )
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        beside = "#" in lines[node.lineno - 1] or lines[node.lineno - 2].lstrip().startswith("#")
        if name.lstrip("_").isupper() and number and not said and not beside:
            yield name


def test_the_documents_keep_their_budget() -> None:
    words = sum(len(p.read_text(encoding="utf-8").split()) for p in (ROOT / "docs").rglob("*.md"))
    assert words <= MAX_WORDS
