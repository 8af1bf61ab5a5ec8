"""Ranks as torchrun starts them, forked from one process that has imported everything.

``python rank_work.py 4:gemm,ring 2:kill2middle [spaces]``: sets of ranks, one after the other, each with its
number of hosts and its jobs. Every rank prints a line of JSON for each: what it found, or its error and when.
``spaces`` are network namespaces, one for each host, with the address of the first.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
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
import megatile.runtime.computers.launch
import megatile.runtime.computers.service
import megatile.runtime.launch_program
from megatile.core.errors import MegatileError

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
MACHINE = "dgx-h100"
RANK = -1
SIZE = 4
CUT = 0


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
    left = Path("/proc/self/maps").read_text().count("memfd:megatile")
    return {"error": worst, "threads": len(os.listdir("/proc/self/task")), "heaps": left}


@T.program
def circle(x: T.Tensor((4, 8), "f32")):
    """Every device waits for a signal that none sends."""
    with T.Kernel(device=4), T.Scale("device"):
        mine = T.view(x, layout=T.Shard(0))
        flag = T.alloc((1,), "i32", level="l2")
        T.wait(flag, 1)
        T.copy(mine, mine)


def lost(who: int, how: int, when: str) -> dict[str, Any]:
    """One of the ranks is killed, or stopped, when ..."""

    def hit(pids: list[int]) -> None:
        if who == RANK:
            if how == CUT:
                name = os.environ["MEGATILE_SPACE"]
                subprocess.run(["ip", "link", "set", name, "down"], check=True)
            print(json.dumps({"hit": time.time()}), flush=True)
            if how != CUT:
                os.kill(os.getpid(), how)

    def later(pids: list[int]) -> None:
        threading.Timer(0.5, hit, args=(pids,)).start()

    program, arrays = gemm()[0], [a.copy() for a in gemm()[1]]
    mt.launch(program, *arrays, machine=MACHINE)
    if when == "before":
        hit([])
    try:
        mt.launch(
            circle, np.zeros((4, 8), "f4"), machine=MACHINE, started={"start": hit, "middle": later}.get(when)
        )
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
        program, arrays = circle, [np.zeros((4, 8), "f4")]
    if which == "bounds":
        program, arrays = outside, [np.zeros((4, 8), "f4"), np.full(4, 9, "i4")]
    mt.launch(program, *arrays, machine=MACHINE, **options)
    return {}


@T.program
def outside(x: T.Tensor((4, 8), "f32"), at: T.Tensor((4,), "i32")):
    with T.Kernel(device=4), T.Scale("device") as (rank, _):
        mine = T.view(x, layout=T.Shard(0))
        T.copy(mine, mine, dst=at[rank])


JOBS: dict[str, Callable[[], dict[str, Any]]] = {
    "gemm": lambda: equal(gemm),
    "ring": lambda: equal(ring, 1),
    "mixed": lambda: equal(mixed),
    "differ": differ,
    **{f"{w}": (lambda w=w: mistake(w)) for w in ("shape", "program", "late", "bounds")},
    **{
        f"{name}{who}{when}": (lambda how=how, who=who, when=when: lost(who, how, when))
        for name, how in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP), ("cut", CUT))
        for who in (0, 2)
        for when in ("before", "start", "middle")
    },
}  # fmt: skip


def enter(space: str) -> None:
    with open(f"/var/run/netns/{space}", "rb") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")


def rank(number: int, size: int, hosts: int, jobs: str, address: str, port: int, spaces: list[str]) -> None:
    global RANK
    RANK = number
    host = number * hosts // size
    if spaces:
        enter(spaces[host])
        os.environ["MEGATILE_SPACE"] = os.environ["GLOO_SOCKET_IFNAME"] = spaces[host]
    os.environ |= {
        "RANK": str(number), "WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port),
        "MEGATILE_HOST": f"host {host}",
    }  # fmt: skip
    torch.set_num_threads(1)
    for job in jobs.split(","):
        found: dict[str, Any] = {"rank": number, "job": job}
        try:
            found |= JOBS[job]()
        except MegatileError as error:
            found |= {"said": str(error), "at": time.time()}
        print(json.dumps(found), flush=True)


def together(jobs: str, hosts: int, address: str, spaces: list[str]) -> None:
    """All ranks, until they have ended; those that are stopped are ended then."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids: list[int] = []
    for number in range(SIZE):
        pids.append(os.fork())
        if not pids[-1]:
            rank(number, SIZE, hosts, jobs, address, port, spaces)
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
        stopped = [p for p in left if Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"]
        if stopped and len(left) == len(stopped):
            break
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main() -> None:
    """All that ranks have in common is made before they are forked: modules, programs, what they give."""
    options = [one for one in sys.argv[1:] if ":" not in one]
    address = options.pop() if options else "127.0.0.1"
    for make in (gemm, ring, mixed):
        interpreted(make)
    gc.freeze()
    for number, one in enumerate(a for a in sys.argv[1:] if ":" in a):
        print(json.dumps({"set": number}), flush=True)
        together(one.split(":")[1], int(one.split(":")[0]), address, options)


if __name__ == "__main__":
    main()
