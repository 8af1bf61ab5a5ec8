"""Real processes over gloo on this machine: one function on every rank, failures come back as text."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import wait as wait_connections

from tests.patience import patience

_FORKS = multiprocessing.get_context("forkserver")
# What every rank needs is loaded once; torch.autograd.grad imports the second of these when first called.
_LOADED = [
    "torch",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed",
    "megatile.compat.hamilton",
]
_FORKS.set_forkserver_preload(_LOADED)


def run_ranks(function, ranks, *args, timeout=150.0, group_timeout=None, finishes=None):
    """``function(rank, *args)`` in every process; per rank (result, error text).

    ``timeout`` is that of an idle computer, ``group_timeout`` (default: 60 s of one) is as it is.
    Only the ranks of ``finishes`` (default: all) are waited for, the others are ended then.
    """
    port, group_timeout = _free_port(), group_timeout or patience(60.0)
    pipes, processes = [], []
    for rank in range(ranks):
        here, there = _FORKS.Pipe(duplex=False)
        process = _FORKS.Process(
            target=_entry, args=(there, function, rank, ranks, port, group_timeout, args)
        )
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    results: list = [(None, "did not finish in time")] * ranks
    deadline, open_pipes = time.monotonic() + patience(timeout), dict(zip(pipes, range(ranks), strict=True))
    wanted = set(range(ranks) if finishes is None else finishes)
    while wanted & set(open_pipes.values()) and time.monotonic() < deadline:
        for pipe in wait_connections(list(open_pipes), timeout=1.0):
            rank = open_pipes.pop(pipe)
            try:
                results[rank] = pipe.recv()
            except EOFError:
                results[rank] = (None, "ended")
    for process in processes:
        process.join(patience(5.0) if not open_pipes else 0.1)
        if process.is_alive():
            process.kill()
    return results


def run_all(cases, function):
    """``function(*case)`` for all cases, some at a time: most of them only wait. Their failures, as text."""

    def outcome(case):
        try:
            function(*case)
        except BaseException:
            return f"{case}:\n{traceback.format_exc()}"
        return None

    with ThreadPoolExecutor(5) as pool:
        return [text for text in pool.map(outcome, cases) if text]


def run_jobs(rank, jobs):
    """Several functions in one spawn: (name, answer) of each."""
    return [(function.__name__, function(rank, *args)) for function, args in jobs]


def _entry(pipe, function, rank, ranks, port, group_timeout, args):
    import torch
    import torch.distributed as dist

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # ranks that hold the same keys are refused
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=group_timeout),
        )
        answer = (function(rank, *args), None)
    except BaseException:
        answer = (None, traceback.format_exc())
    pipe.send(answer)
    pipe.close()
    if answer[1] is None:
        dist.destroy_process_group()


def _free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
