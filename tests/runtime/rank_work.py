"""Ranks as torchrun starts them, forked from one process that has imported everything.

``python rank_work.py 4:gemm,ring 2:kill2middle``: sets of ranks, one after the other, each with its
number of hosts and its jobs. Every rank prints a line of JSON for each: what it found, or its error and when.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed

import megatile as mt
import megatile.language as T
import megatile.runtime.launch_ranks
from megatile.core.errors import MegatileError

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
MACHINE = "dgx-h100"
RANK = -1
HOSTS = 1
SIZE = 4


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype="f4")


@cache
def gemm() -> tuple[Any, list[np.ndarray]]:
    return importlib.import_module("demo").gemm, [
        floats(128, 256),
        floats(256, 128),
        np.zeros((128, 128), "f4"),
    ]


@cache
def ring() -> tuple[Any, list[np.ndarray]]:
    program = importlib.import_module("34_ring_attention").ring_attention(2, 64, 32)
    return program, [floats(2, 64, 32), floats(2, 64, 32), floats(2, 64, 32), np.zeros((2, 64, 32), "f4")]


@T.program
def everything(x: T.Tensor((4, 64), "f32"), total: T.Tensor((4, 64), "f32"), count: T.Tensor((8,), "i32")):
    """A put and a signal, a get, a barrier, collectives, one with a function of the program, and atomics."""
    with T.Kernel(device=4), T.Scale("device") as (rank, n):
        mine = T.view(x, layout=T.Shard(0))
        out = T.view(total, layout=T.Shard(0))
        here = T.alloc((1, 64), "f32", level="l2")
        got = T.alloc((1, 64), "f32", level="l2")
        flag = T.alloc((1,), "i32", level="l2")
        T.copy(here, mine, dst=(rank + 1) % n)
        T.signal(flag, dst=(rank + 1) % n)
        T.wait(flag, 1)
        T.barrier()
        T.copy(got, here, src=(rank + 2) % n)
        T.barrier()
        for i in T.Parallel(64):
            got[0, i] = got[0, i] + here[0, i]
        T.allreduce(got)
        T.allreduce((got,), fn=lambda a, b: (a * 0.5 + b,))
        for k in T.serial(10):
            T.atomic_add(count[k % 8], 1)
        T.copy(out, got)


@cache
def mixed() -> tuple[Any, list[np.ndarray]]:
    return everything, [floats(4, 64), np.zeros((4, 64), "f4"), np.zeros(8, "i4")]


@T.program
def exchange(x: T.Tensor((16, 8), "f32"), y: T.Tensor((16, 8), "f32")):
    """Rows go to all, by a collective; then a row to the next device and one from the device before, each
    completed by a barrier."""
    with T.Kernel(device=4), T.Scale("device") as (rank, n):
        mine = T.view(x, layout=T.Shard(0))
        out = T.view(y, layout=T.Shard(0))
        here = T.alloc((4, 8), "f32", level="l2")
        got = T.alloc((1, 8), "f32", level="l2")
        T.all_to_all(here, mine)
        T.barrier()
        T.copy(out[1:2, :], here[0:1, :], dst=(rank + 1) % n)
        T.copy(got, here[3:4, :], src=(rank + n - 1) % n)
        T.copy(out[0:1, :], got)
        T.copy(out[2:4, :], here[1:3, :])
        T.barrier()


@cache
def copies() -> tuple[Any, list[np.ndarray]]:
    return exchange, [floats(16, 8), np.zeros((16, 8), "f4")]


@T.program
def messages(x: T.Tensor((4, 64), "f32")):
    """A ring of messages, then products of what came."""
    with T.Kernel(device=4), T.Scale("device"):
        mine = T.view(x, layout=T.Shard(0))
        T.allreduce(mine, algorithm="ring")
        for i in T.Parallel(64):
            mine[0, i] = mine[0, i] * 2
        T.allreduce(mine, algorithm="ring")


@cache
def rings() -> tuple[Any, list[np.ndarray]]:
    return messages, [floats(4, 64)]


@cache
def cannon() -> tuple[Any, list[np.ndarray]]:
    program = importlib.import_module("33_cannon").cannon(32)
    return program, [floats(32, 32), floats(32, 32), np.zeros((32, 32), "f4")]


@cache
def experts() -> tuple[Any, list[np.ndarray]]:
    """Tokens go to their experts by puts whose extents are data."""
    which = np.random.default_rng(1).integers(0, 4, (4, 6)).astype("i4")
    program = importlib.import_module("35_moe").moe(6, 8)
    return program, [floats(4, 6, 8), which, floats(4, 8, 8), np.zeros((4, 6, 8), "f4")]


@cache
def interpreted(make: Callable[[], tuple[Any, list[np.ndarray]]]) -> list[np.ndarray]:
    program, arrays = make()
    expected = [a.copy() for a in arrays]
    mt.run(program, *expected, machine=MACHINE)
    mt.compile(program, machine=MACHINE, threads=1)
    return expected


def equal(make: Callable[[], tuple[Any, list[np.ndarray]]], repeat: int = 2) -> dict[str, Any]:
    """The largest difference from the interpreter, of several launches."""
    program, arrays = make()
    expected, worst = interpreted(make), 0.0
    for _ in range(repeat):
        found = [a.copy() for a in arrays]
        mt.launch(program, *found, machine=MACHINE)
        worst = max(worst, *(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True)))
    return {"error": worst}


@T.program
def circle(x: T.Tensor((4, 8), "f32")):
    """Every device waits for a signal that none sends."""
    with T.Kernel(device=4), T.Scale("device"):
        mine = T.view(x, layout=T.Shard(0))
        flag = T.alloc((1,), "i32", level="l2")
        T.wait(flag, 1)
        T.copy(mine, mine)


@T.program
def meeting(x: T.Tensor((4, 8), "f32")):
    """Devices meet for longer than any test waits."""
    with T.Kernel(device=4), T.Scale("device"):
        mine = T.view(x, layout=T.Shard(0))
        for _ in T.serial(1000000000):
            T.allreduce(mine)


def lost(who: int, when: str) -> dict[str, Any]:
    """One of the ranks is killed, before a launch or in the middle of one."""

    def kill(pids: list[int]) -> None:
        if who == RANK:
            print(json.dumps({"hit": time.time()}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def later(pids: list[int]) -> None:
        threading.Timer(0.5, kill, args=(pids,)).start()

    program, arrays = gemm()[0], [a.copy() for a in gemm()[1]]
    mt.launch(program, *arrays, machine=MACHINE)
    if when == "before":
        kill([])
    endless = circle if HOSTS == 1 else meeting
    try:
        mt.launch(endless, np.zeros((4, 8), "f4"), machine=MACHINE, started=later)
    except MegatileError as error:
        found = {"said": str(error), "at": time.time()}
        try:
            mt.launch(program, *arrays, machine=MACHINE)
        except MegatileError as again:
            return {**found, "again": str(again)}
    return {}


def differ() -> dict[str, Any]:
    """Ranks that are given different arrays: those of rank 0 count."""
    program, arrays = gemm()
    given = [a.copy() for a in arrays]
    if RANK:
        given[0][:] = 7
    mt.launch(program, *given, machine=MACHINE)
    error = float(np.abs(given[2] - arrays[0] @ arrays[1]).max())
    return {"error": error, "kept": bool(RANK == 0 or (given[0] == 7).all())}


def mistake(which: str) -> dict[str, Any]:
    program, arrays = gemm()[0], [a.copy() for a in gemm()[1]]
    if which == "shape" and RANK == 2:
        arrays[0] = arrays[0][:64]
    if which == "program" and RANK == 2:
        program, arrays = ring()
    options = {"timeout": 1.0} if which == "late" else {}
    if which == "late":
        program, arrays = meeting, [np.zeros((4, 8), "f4")]
    if which == "never":
        program, arrays = circle, [np.zeros((4, 8), "f4")]
    if which == "signal":
        program, arrays = signalled, [np.zeros((4, 8), "f4")]
    if which == "atomic":
        program, arrays = mixed_atomics, [np.zeros(8, "i4")]
    if which == "unordered":
        program, arrays = unordered, [np.zeros((4, 8), "f4")]
    if which == "devices":
        program, arrays = two, [np.zeros((2, 8), "f4")]
    if which == "bounds":
        program, arrays = outside, [np.zeros((4, 8), "f4"), np.full(4, 9, "i4")]
    mt.launch(program, *arrays, machine=MACHINE, **options)
    return {}


@T.program
def outside(x: T.Tensor((4, 8), "f32"), at: T.Tensor((4,), "i32")):
    with T.Kernel(device=4), T.Scale("device") as (rank, _):
        mine = T.view(x, layout=T.Shard(0))
        T.copy(mine, mine, dst=at[rank])


@T.program
def signalled(x: T.Tensor((4, 8), "f32")):
    with T.Kernel(device=4), T.Scale("device") as (rank, n):
        mine = T.view(x, layout=T.Shard(0))
        flag = T.alloc((1,), "i32", level="l2")
        T.signal(flag, dst=(rank + 1) % n)
        T.wait(flag, 1)
        T.copy(mine, mine)


@T.program
def mixed_atomics(count: T.Tensor((8,), "i32")):
    with T.Kernel(device=4), T.Scale("device"):
        T.atomic_add(count[0], 1)


@T.program
def unordered(x: T.Tensor((4, 8), "f32")):
    """Whether the value is there when it is read, only the index tells, which is data."""
    with T.Kernel(device=4), T.Scale("device"):
        mine = T.view(x, layout=T.Shard(0))
        at = T.alloc((1,), "i32", level="l2")
        got = T.alloc((1, 8), "f32", level="l2")
        T.fill(at, 1)
        T.barrier()
        who = T.read_scalar(at[0], bound=3)
        T.copy(got, mine, src=who)
        T.barrier()
        T.copy(mine, got)


@T.program
def two(x: T.Tensor((2, 8), "f32")):
    with T.Kernel(device=2), T.Scale("device"):
        mine = T.view(x, layout=T.Shard(0))
        T.allreduce(mine)


MISTAKES = ("shape", "program", "late", "bounds", "never", "signal", "atomic", "unordered", "devices")
JOBS: dict[str, Callable[[], dict[str, Any]]] = {
    "gemm": lambda: equal(gemm),
    "ring": lambda: equal(ring, 1),
    "mixed": lambda: equal(mixed),
    "copies": lambda: equal(copies),
    "experts": lambda: equal(experts),
    "rings": lambda: equal(rings),
    "cannon": lambda: equal(cannon, 1),
    "differ": differ,
    **{which: (lambda which=which: mistake(which)) for which in MISTAKES},
    **{
        f"kill{who}{when}": (lambda who=who, when=when: lost(who, when))
        for who in (0, 2)
        for when in ("before", "middle")
    },
}


def rank(number: int, size: int, hosts: int, jobs: str, port: int) -> None:
    global RANK, HOSTS
    RANK, HOSTS = number, hosts
    os.environ |= {
        "RANK": str(number), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "MEGATILE_HOST": f"host {number * hosts // size}",
    }  # fmt: skip
    torch.set_num_threads(1)
    for job in jobs.split(","):
        found: dict[str, Any] = {"rank": number, "job": job}
        try:
            found |= JOBS[job]()
        except MegatileError as error:
            found |= {"said": str(error), "at": time.time()}
        print(json.dumps(found), flush=True)


def together(jobs: str, hosts: int) -> None:
    """All ranks, until they have ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids: list[int] = []
    for number in range(SIZE):
        pids.append(os.fork())
        if not pids[-1]:
            rank(number, SIZE, hosts, jobs, port)
            sys.exit(0)  # as a script ends: threads and connections must not be in the way
    until = time.monotonic() + 100
    left = dict.fromkeys(pids)
    while left and time.monotonic() < until:
        for pid in list(left):
            found, state = os.waitpid(pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(state)
                print(json.dumps({"ended": pids.index(pid), "code": code}), flush=True)
                del left[pid]
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main() -> None:
    """All that ranks have in common is made before they are forked: modules, programs, what they give."""
    for make in (gemm, ring, mixed, copies, experts, rings, cannon):
        interpreted(make)
    gc.freeze()
    for number, one in enumerate(sys.argv[1:]):
        print(json.dumps({"set": number}), flush=True)
        together(one.split(":")[1], int(one.split(":")[0]))


if __name__ == "__main__":
    main()
