"""The tools of ``megatile mcp``, called directly, and by the official client where it is installed."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from megatile.cli import mcp
from megatile.cli.output import USER_FILES
from megatile.core.errors import MegatileError

PROGRAM = """
import megatile.language as T

def shifted(n=64, waits=True):
    @T.program
    def kernel(X: T.Tensor((n,), "f32"), Y: T.Tensor((n,), "f32")):
        with T.Kernel(block=1, threads=n):
            s = T.alloc((n,), "f32", level="l1")
            with T.Scale("thread") as (t, size):
                s[t] = X[t]
                if waits:
                    T.barrier()
                Y[t] = s[size - 1 - t]
    return kernel
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "shifted.py"
    path.write_text(PROGRAM)
    return str(path)


def test_a_race_is_reported_with_advice_and_its_twin_is_clean(file: str) -> None:
    found = mcp.check(f"{file}:shifted(32, waits=False)")
    assert not found["ok"]
    assert "data race" in found["problem"]
    assert "T.barrier()" in found["try"]
    assert "\n" not in found["try"]
    assert found["error"].startswith("exact")
    assert "found by megatile" in found["origin"]
    clean = mcp.check(f"{file}:shifted(32)")
    assert "notes" not in clean  # files of the user are closed before Python ends
    assert clean["answer"] == {
        "clean": True,
        "warnings": [],
        "schedules": ["round-robin", "random", "adversarial"],
    }
    assert "cannot judge" in clean["error"]


def test_a_program_is_checked_without_pytest(file: str, monkeypatch) -> None:
    """``megatile[mcp]`` does not install it."""
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "megatile.cli.pytest_plugin", raising=False)
    with USER_FILES:
        assert mcp.checked(f"{file}:shifted(32)", "dgx-h100")["clean"]


def test_a_library_kernel_has_an_error_bar() -> None:
    found = mcp.predict(operation="gemm", extents={"m": 4096, "n": 4096, "k": 4096}, dtype="bf16")
    assert found["answer"]["time_us"] > 50
    assert found["error"].startswith("± ")
    assert "fitted" in found["origin"]


def test_bad_calls_are_one_sentence() -> None:
    assert "one of them" in mcp.predict()["problem"]
    assert "not a program" in mcp.run("--help")["problem"]
    with pytest.raises(MegatileError, match="not a name of an argument"):
        mcp.tune("x.py:y", {"a b": [1]})
    assert (
        "not a name of an extent"
        in mcp.answering(mcp.predict)(operation="gemm", extents={"help": 1})["problem"]
    )
    assert "no choices" in mcp.tune("x.py:y", {})["problem"]
    assert "null byte" in mcp.check("\0.py:x")["problem"]


def test_advice_of_parts_stays_with_them() -> None:
    inner = "none of 2 choices is possible (1: x.py:7: no blocks (try: 1); 1: y (try: 2)) (try: other values)"
    assert mcp._sentence(inner) == (inner.removesuffix(" (try: other values)"), "other values")
    assert mcp._sentence("x.py:3: wrong (try: right)\n    f(x)\n    ^") == ("x.py:3: wrong", "right")


def test_a_file_of_tile_programs_is_told_to_name_one(monkeypatch) -> None:
    said = {"ok": False, "problem": "'x.py' calls no kernel", "try": "call one"}
    monkeypatch.setattr(mcp, "_command", lambda *_: said)
    assert "x.py:NAME" in mcp.check("x.py")["try"]


def test_the_official_client_sees_every_tool(file: str) -> None:
    client = pytest.importorskip("mcp")
    if not hasattr(client, "Client"):
        pytest.skip("the client of mcp 2")

    async def ask() -> tuple[list[str], dict]:
        async with client.Client(mcp.server()) as one:
            names = [tool.name for tool in (await one.list_tools()).tools]
            answer = await one.call_tool("predict", {"program": f"{file}:shifted(32)"})
            return names, answer.structured_content

    names, answer = asyncio.run(ask())
    assert names == [tool.__name__ for tool in mcp.TOOLS]
    assert answer["answer"]["time_us"] > 1
    assert json.dumps(answer)


def test_without_the_package_it_says_what_to_install(monkeypatch) -> None:
    import builtins

    real = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] == "mcp":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MegatileError, match=r"needs the package 'mcp'.*megatile\[mcp\]"):
        mcp.server()
