"""`import megatile` is light and has no side effects."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
HEAVY = ("torch", "matplotlib", "pydantic", "yaml", "networkx", "typer", "rich", "greenlet")


def modules_after(statement: str, folder: Path) -> set[str]:
    """The modules loaded in a fresh interpreter after `statement`."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder, env=environment
    )
    return set(run.stdout.split())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return modules_after("import megatile", tmp_path_factory.mktemp("import"))


@pytest.mark.parametrize("name", HEAVY)
def test_importing_megatile_loads_nothing_heavy(loaded: set[str], name: str) -> None:
    assert "megatile" in loaded
    assert name not in loaded


@pytest.mark.parametrize(
    ("statement", "unneeded"),
    [
        ("import megatile.language", ("megatile.timing", "megatile.plan", "megatile.sim")),
        ("import megatile as mt; mt.lower", ("megatile.sim", "megatile.collectives.planner")),
    ],
)
def test_only_what_is_asked_for_is_loaded(statement: str, unneeded: tuple[str, ...], tmp_path: Path) -> None:
    """Writing a program needs no times, lowering one without collectives neither planner nor simulator."""
    assert not modules_after(statement, tmp_path) & set(unneeded)


def test_importing_writes_no_files(tmp_path: Path) -> None:
    modules_after("import megatile", tmp_path)
    assert list(tmp_path.iterdir()) == []


COMMAND = """
import contextlib, io, sys
from megatile.__main__ import main
sys.argv = ["megatile", *{words!r}.split()]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
    main()
assert "machine" in shown.getvalue()
"""
HEAVIEST = {
    "numpy",
    "ml_dtypes",
    "matplotlib",
    "networkx",
    "torch",
    "llvmlite",
    "greenlet",
    "pyarrow",
    "scipy",
}


@pytest.mark.parametrize(
    ("words", "heavy", "at_most"),
    [
        ("--help", HEAVIEST | {"pydantic", "yaml", "megatile.hda", "megatile.cli.machine"}, 350),
        ("machines", HEAVIEST | {"megatile.sim", "megatile.cli.run", "rich.markdown"}, 450),
    ],
)
def test_commands_load_what_they_need(words: str, heavy: set[str], at_most: int, tmp_path: Path) -> None:
    loaded = modules_after(COMMAND.format(words=words), tmp_path)
    assert "megatile.cli.main" in loaded
    assert heavy & loaded == set()
    assert len(loaded) < at_most
