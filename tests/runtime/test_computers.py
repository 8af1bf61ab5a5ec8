"""Tile programs on ranks as torchrun starts them, on one computer and on several (which are all this one)."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
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
        assert all(line.get("heaps", 0) == 0 for line in lines.values()), lines


WRONG = {
    "shape": "rank 2: 'A' has shape (64, 256)",
    "program": "the ranks do not have the same code",
    "bounds": "there is no device 9",
    "late": "did not finish within 1 s: ranks 0, 1, 2, 3 still at work",
}


EQUAL = ("4:mixed,gemm,ring", f"2:mixed,ring,differ,{','.join(WRONG)}", "1:mixed,gemm")
LOST = ("4:kill2middle", "2:kill0middle", "2:stop2middle", "2:kill2before")


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    """All sets, of one process that makes what they have in common."""
    return dict(zip(EQUAL + LOST, ranks(*EQUAL, *LOST), strict=True))


def test_ranks_equal_the_interpreter(found: dict[str, Found]) -> None:
    """On four computers, two of two ranks, and one; a mistake is one sentence on all ranks."""
    four, two, one = (found[name] for name in EQUAL)
    assert_equal(four, "mixed", "gemm", "ring")
    assert_equal(two, "mixed", "ring", "differ")
    assert_equal(one, "mixed", "gemm")
    assert all(line["kept"] for line in two.jobs["differ"].values())
    for job, said in WRONG.items():
        assert [said in two.jobs[job][r]["said"] for r in range(4)] == [True] * 4, two.jobs[job]


@pytest.mark.parametrize("name", LOST)
def test_every_other_rank_names_the_lost_one(name: str, found: dict[str, Found]) -> None:
    """Within five seconds, whether it was killed or stopped; a further launch is refused. One that was gone
    before the launch is found by the roll call of groups, which gives them three seconds to answer."""
    job, one = name.split(":")[1], found[name]
    who, lines = int(job[4]), one.jobs[job]
    assert sorted(lines) == [r for r in range(4) if r != who], one
    for rank, line in lines.items():
        assert f"rank {who} " in line["said"], line
        assert line["at"] - one.hit < (12 if "before" in job else 5)
        assert f"rank {who} " in line["again"]
        assert one.codes[rank] == 0


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that torchrun started here and that have ended, in seconds; others when time is over."""
    from megatile.runtime.computers import ranks as there
    from megatile.runtime.errors import LaunchError

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    for name, value in {**where, "RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"ranks 1, 2 did not come within 0\.3 s"):
        there.all_here(0.3)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr(there, "GONE_SECONDS", 0.1)
    monkeypatch.setattr(os, "getppid", os.getpid)
    started = [subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": str(r)}) for r in (0, 1)]
    try:
        with pytest.raises(LaunchError, match="rank 2 ended before it came"):
            there.all_here(30.0)
        started[1].kill()
        started[1].wait()
        assert there.ended(os.getpid()) == {1, 2}
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_nobody_waits_at_a_barrier_once_a_rank_is_lost() -> None:
    from megatile.runtime.computers.service import Service

    service: Any = SimpleNamespace(go=threading.Event(), lost=2, _put=lambda kind: None)
    service.go.set()
    done = threading.Thread(target=Service.barrier, args=(service,), daemon=True)
    done.start()
    done.join(5)
    assert not done.is_alive()


@pytest.fixture
def spaces() -> Iterator[list[str]]:
    """Two network namespaces that see each other, and the address of the first."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    names = [f"mt{uuid.uuid4().hex[:6]}{x}" for x in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        for number, name in enumerate(names, 1):
            ip("link", "set", name, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.83.{number}/24", "dev", name)
            for link in (name, "lo"):
                ip("-n", name, "link", "set", link, "up")
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"no network namespaces here: {problem.stderr.decode().strip()}")
    else:
        yield [*names, "10.77.83.1"]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_two_networks(spaces: list[str]) -> None:
    """Each computer has a network of its own, and nothing but a cable between them; then it is cut."""
    whole, cut = ranks("2:mixed", "2:cut2middle", *spaces)
    assert_equal(whole, "mixed")
    assert cut.codes == dict.fromkeys(range(4), 0)
    for rank, line in cut.jobs["cut2middle"].items():
        other = (2, 3) if rank < 2 else (0, 1)
        assert any(f"rank {who} " in line["said"] for who in other), cut
        assert line["at"] - cut.hit < 5


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
