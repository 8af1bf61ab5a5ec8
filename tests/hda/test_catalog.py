"""``hda/catalog.py``: the machines that come with the package, by name."""

import ast
import re
from pathlib import Path

import pytest

import megatile
from megatile.hda.catalog import library
from megatile.timing.engine_rules import _reaches

SOURCES = Path(megatile.__file__).parent
LIBRARIES = sorted(p.stem for p in (SOURCES / "hda" / "libraries").glob("*.yaml"))
FIGURE = re.compile(r"(LATENCY|BANDWIDTH|RATE|SPEEDS?|_US|_NS|_GBS?|_GHZ)$")
DEVICE = re.compile(r"\b([ABHLV]\d{2,3}|MI\d{3}X?|gfx\d+|sm_\d+|volta|ampere|hopper|blackwell|GB/s)\b", re.I)


LIMITS = {"MAX_TIME_US"}
"""The longest time that a file of measurements may state."""


def _constants(path: Path):
    """Constants of a module that hold numbers: name, and all of their text with the docstring after it."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        if any(isinstance(n, ast.Constant) and type(n.value) in (int, float) for n in ast.walk(statement)):
            said = ast.unparse(after) if isinstance(after, ast.Expr) else ""
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            yield ast.unparse(target), ast.unparse(statement.value) + said


def test_code_has_no_hardware_figures():
    found = [
        f"{path.relative_to(SOURCES)}: {name}"
        for path in SOURCES.rglob("*.py")
        for name, text in _constants(path)
        if name not in LIMITS and (FIGURE.search(name) or DEVICE.search(text))
    ]
    assert not found


@pytest.mark.parametrize("name", LIBRARIES)
def test_tables_of_a_library_say_where_they_come_from(name):
    tables = library(name)
    assert tables["name"] == name
    assert tables["source"]
    assert library(name) is tables


def test_engines_reduce_by_the_tables_of_their_generation_or_of_any():
    assert _reaches("vllm", "hopper")[8] == (256 << 10, 256 << 10, 64 << 20)
    assert _reaches("vllm", "ampere") == _reaches("sglang", "hopper")
    assert _reaches("vllm", "any")[2].one_shot > 1 << 60
    assert _reaches("torch", "hopper") == {}
