"""``cli/bench.py``: ``megatile bench``."""

from __future__ import annotations

import sys

import pytest

HELPER = "SIZE = 64\n"


BENCH = """
from __future__ import annotations
from dataclasses import dataclass
import beside

@dataclass(frozen=True)
class Config:
    size: int

def run(torch):
    import later, package.inner
    print(Config(beside.SIZE), later.WORD, package.inner.WORD)
"""


PROGRAM = """
from __future__ import annotations
from dataclasses import dataclass
import megatile.language as T
import beside

@dataclass
class Config:
    size: int

def make():
    import later
    @T.program
    def copied(A: T.Tensor((beside.SIZE,), "f32"), B: T.Tensor((beside.SIZE,), "f32")):
        with T.Kernel(block=1) as i:
            T.copy(B, A)
    return copied
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text(HELPER)
    (tmp_path / "later.py").write_text("WORD = 'later'\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "inner.py").write_text("WORD = 'inner'\n")
    return tmp_path


@pytest.mark.parametrize("name", ["small_bench.py", "json.py"])
def test_bench_with_a_dataclass_and_helpers(megatile, folder, name) -> None:
    (folder / name).write_text(BENCH)
    path, modules, standard = list(sys.path), set(sys.modules), sys.modules["json"]
    shown = megatile("bench", name)
    assert (shown.code, shown.err) == (0, "")
    assert "Config(size=64) later inner" in shown.out
    assert sys.path == path
    own = {"small_bench", "megatile_user_json", "beside", "later", "package", "package.inner"}
    assert not own & (set(sys.modules) - modules)
    assert sys.modules["json"] is standard


def test_program_with_a_dataclass_and_helpers(megatile, folder) -> None:
    (folder / "small_program.py").write_text(PROGRAM)
    path = list(sys.path)
    shown = megatile("run", "small_program.py:make()", "-m", "dgx-h100")
    assert (shown.code, shown.err) == (0, "")
    assert sys.path == path
    assert not {"small_program", "beside", "later"} & set(sys.modules)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def run(torch:\n", "wrong.py:1: '(' was never closed"),
        ("import beside\n\nbeside.MISSING\n", "wrong.py:3: AttributeError: module 'beside' has no attribute"),
        ("import no_such_module\n", "wrong.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n", "'wrong.py' has no function run(torch)"),
    ],
)
def test_errors_of_a_file_name_its_line(megatile, folder, text, message) -> None:
    (folder / "wrong.py").write_text(text)
    shown = megatile("bench", "wrong.py")
    assert shown.code == 1
    assert shown.err.startswith(f"error: {message}")
    assert shown.err.count("\n") == 1
    assert "wrong" not in sys.modules


def test_ctrl_c_in_a_worker_ends_the_bench_quietly(megatile, folder) -> None:
    (folder / "stopped.py").write_text(
        "def worker(rank):\n    raise KeyboardInterrupt\n\n"
        "def run(torch):\n    torch.multiprocessing.spawn(worker, nprocs=2)\n"
    )
    shown = megatile("bench", "stopped.py")
    assert shown.code == 130
    assert "raised" not in shown.out + shown.err


REGISTERED = """
from megatile.runtime.benches import bench

@bench(name="one", description="adds")
def add(torch):
    print("one runs on", torch.zeros(2).device)

@bench()
def two(torch):
    \"\"\"Fail twice. Always.\"\"\"
    return 2
"""


def test_benches_register_themselves(megatile, folder) -> None:
    (folder / "own.py").write_text(REGISTERED)
    (folder / "benches").mkdir()
    (folder / "benches" / "third.py").write_text("def run(torch):\n    print('third')\n")
    assert "one runs on ahbm:1" in megatile("bench", "own.py:one", "--device", "sip:1").out
    assert megatile("bench", "own.py:two").code == 1
    assert "third" in megatile("bench", "third").out
    listed = megatile("bench", "list", "own.py", "benches").out
    for words in (
        ("ccl_allreduce", "All-reduce over all devices"),
        ("own.py:one", "adds"),
        ("two", "Fail twice "),
    ):
        assert all(word in listed for word in words)
    assert "benches/third.py:third" in listed
    assert "'own.py' has 2 benches (try: name one: own.py:one)" in megatile("bench", "own.py").err
    assert "has no bench 'three'" in megatile("bench", "own.py:three").err
    assert (
        "there is no device 9 (try: there are 2, from 0)"
        in megatile("bench", "va_offset", "--device", "sip:9").err
    )
    assert "unexpected argument" in megatile("bench", "va_offset", "x").err


def test_probe_prints_a_time_per_case(megatile) -> None:
    shown = megatile("bench", "probe")
    rows = {line[1:33].strip(): line[33:].split() for line in shown.out.splitlines()[1:]}
    lines = {name: float(row[0]) for name, row in rows.items()}
    assert lines["own memory"] == pytest.approx(119.7)  # 5 ns setup, 110 ns latency, 256 B at a PE's share
    assert 100 < float(rows["128 PEs on PE 0's memory"][4]) < 150  # GB/s: a PE's share is 1.2 TB/s / 8
    assert lines["own memory"] < lines["another PE of the cube"] < lines["worst remote cube"]
    assert lines["worst remote cube"] < lines["remote SIP"]
    hot = [lines[f"hot target, issuers: {n}"] for n in (1, 2, 3)]
    assert hot == sorted(hot)
    assert "total" not in shown.out


def test_exceptions_of_a_bench_name_its_line(megatile, folder, monkeypatch) -> None:
    (folder / "outside.py").write_text("def run(torch):\n    import json\n    json.loads('{')\n")
    shown = megatile("bench", "outside.py")
    assert shown.err.startswith("error: outside.py:3: JSONDecodeError: ")
    worker = "def worker(rank):\n    {}['a']\n\n"
    run = "def run(torch):\n    torch.multiprocessing.spawn(worker, nprocs=2)\n"
    (folder / "inside.py").write_text(worker + run)
    assert "rank 0 raised KeyError: 'a' at inside.py:2\n" in megatile("bench", "inside.py").err
    monkeypatch.setenv("MEGATILE_DEBUG", "1")
    with pytest.raises(ValueError, match="Expecting property name"):
        megatile("bench", "outside.py")
