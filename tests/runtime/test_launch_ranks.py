"""Tile programs on ranks as torchrun starts them, on one host and on several (which are all this one)."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or not sys.platform.startswith("linux"),
    reason="needs torch and Linux",
)
SOURCE = Path(__file__).parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


class Found(NamedTuple):
    """What a set of ranks did: the lines of each job, how each rank ended, when one of them was hit."""

    jobs: dict[str, dict[int, Any]]
    codes: dict[int, int]
    hit: float


def ranks(*sets: str) -> list[Found]:
    command = [sys.executable, str(Path(__file__).with_name("rank_work.py")), *sets]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900)
    found: list[Found] = []
    for text in done.stdout.replace("}{", "}\n{").splitlines():
        line = json.loads(text) if text.startswith("{") else {}
        if "set" in line:
            found.append(Found({}, {}, 0.0))
        elif "job" in line:
            found[-1].jobs.setdefault(line["job"], {})[line["rank"]] = line
        elif "ended" in line:
            found[-1].codes[line["ended"]] = line["code"]
        elif "hit" in line:
            found[-1] = found[-1]._replace(hit=line["hit"])
    assert found, done.stderr
    return found


def assert_equal(found: Found, *jobs: str) -> None:
    assert found.codes == dict.fromkeys(range(4), 0), found
    for job in jobs:
        lines = found.jobs[job]
        assert [lines[r].get("said") for r in range(4)] == [None] * 4
        assert all(line["error"] <= 1e-4 for line in lines.values()), lines


WRONG = {
    "shape": "rank 2: 'A' has shape (64, 256)",
    "program": "the ranks do not have the same code",
    "late": "did not finish within 1 s",
    "never": "waits forever: wait(flag, value=1)",
    "signal": "'signal(flag, to=(unit + 1) % 4)' cannot run between hosts: a signal needs nothing",
    "atomic": "cannot run between hosts: an atomic needs nothing of the rank",
    "unordered": "cannot run between hosts: at the barrier before it, the owner cannot know of it",
    "devices": "'two' has 2 devices, and there are 4 ranks on several hosts",
}


ON_ONE_HOST = {
    "shape": "rank 2: 'A' has shape (64, 256)",
    "bounds": "there is no device 9",
    "late": "did not finish within 1 s",
}
EQUAL = (
    "4:gemm,ring,copies,experts,rings,cannon",
    f"2:copies,ring,differ,{','.join(WRONG)},gemm",
    f"1:mixed,gemm,differ,{','.join(ON_ONE_HOST)},gemm",
)
LOST = ("4:kill2middle", "2:kill0middle", "2:kill2before", "1:kill2middle")


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    """All sets, of one process that makes what they have in common."""
    return dict(zip(EQUAL + LOST, ranks(*EQUAL, *LOST), strict=True))


def test_ranks_equal_the_interpreter(found: dict[str, Found]) -> None:
    """On four hosts, two of two ranks, and one."""
    four, two, one = (found[name] for name in EQUAL)
    assert_equal(four, "gemm", "ring", "copies", "experts", "rings", "cannon")
    assert_equal(two, "copies", "ring", "differ", "gemm")
    assert_equal(one, "mixed", "gemm", "differ")
    assert all(line["kept"] for line in two.jobs["differ"].values())


@pytest.mark.parametrize(
    ("name", "job"), [(EQUAL[1], w) for w in WRONG] + [(EQUAL[2], w) for w in ON_ONE_HOST]
)
def test_a_mistake_is_one_sentence_on_all_ranks(name: str, job: str, found: dict[str, Found]) -> None:
    """Also a command that needs only one rank; the launch after it works."""
    lines, said = found[name].jobs[job], (WRONG if name == EQUAL[1] else ON_ONE_HOST)[job]
    assert [said in lines[r].get("said", "") for r in range(4)] == [True] * 4, lines
    if job in ("signal", "atomic", "unordered", "never"):
        assert all("rank_work.py:" in line["said"] for line in lines.values()), lines


@pytest.mark.parametrize("name", LOST)
def test_every_other_rank_names_the_lost_one(name: str, found: dict[str, Found]) -> None:
    """Within five seconds; a further launch is refused. One that was gone before the launch is found by the
    roll call of groups, which gives them three seconds to answer."""
    job, one = name.split(":")[1], found[name]
    who, lines = int(job[4]), one.jobs[job]
    assert sorted(lines) == [r for r in range(4) if r != who], one
    for rank, line in lines.items():
        assert f"rank {who} " in line["said"], line
        assert line["at"] - one.hit < (12 if "before" in job else 5)
        assert f"rank {who} " in line["again"]
        assert one.codes[rank] == 0


def test_torchrun(tmp_path: Path) -> None:
    """Two launchers of torch, each with a rank."""
    script = tmp_path / "double.py"
    script.write_text(
        "import numpy as np, megatile as mt, megatile.language as T\n"
        "@T.program\n"
        "def double(x: T.Tensor((64, 32), 'f32')):\n"
        "    with T.Kernel(device=2), T.Scale('device'):\n"
        "        mine = T.view(x, layout=T.Shard(0))\n"
        "        for i, j in T.Parallel(32, 32):\n"
        "            mine[i, j] *= 2\n"
        "x = np.ones((64, 32), 'f4')\n"
        "mt.launch(double, x, machine='dgx-h100')\n"
        "assert (x == 2).all()\n"
        "print('fine')\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *common, f"--node-rank={node}", str(script)],
            env={**ENVIRONMENT, "MEGATILE_HOST": f"host {node}"}, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
        )
        for node in range(2)
    ]  # fmt: skip
    try:
        assert [one.communicate(timeout=500)[0].count("fine") for one in started] == [1, 1]
    finally:
        for one in started:
            one.terminate()
