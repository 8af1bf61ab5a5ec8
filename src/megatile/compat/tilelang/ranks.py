"""The host of TileScale's kernels: processes as ranks, symmetric tensors in shared memory, joint launches.

Processes come from ``torch.multiprocessing.spawn`` or ``torchrun``; torch.distributed's gloo joins them. A
kernel that names other ranks is launched when every rank has called it: rank 0 runs one Program over the
tensors of all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from multiprocessing.util import Finalize
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.targets.interpret.run import run

_SHARED: dict[str, Any] = {"folder": None, "made": 0}


def _dist() -> Any:
    import torch.distributed

    return torch.distributed


def world_size() -> int:
    """Ranks of the process group; 1 where there is none."""
    try:
        dist = _dist()
    except ImportError:
        return 1
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def init_dist(local_rank: int, num_local_ranks: int) -> tuple[int, int, Any]:
    """Join the ranks of ``torch.multiprocessing.spawn``; rank, their number, and their group."""
    dist = _dist()
    method = os.environ.get("MEGATILE_RENDEZVOUS") or "tcp://{}:{}".format(
        os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "8361")
    )
    dist.init_process_group("gloo", init_method=method, world_size=num_local_ranks, rank=local_rank)
    return dist.get_rank(), dist.get_world_size(), dist.group.WORLD


def init_distributed(return_tp_group: bool = False, init_nvshmem: bool = True, return_lc_group: bool = False,
                     **_: Any) -> tuple[Any, ...]:  # fmt: skip
    """Join the ranks of ``torchrun``: their number, rank, local rank, and the groups asked for."""
    dist = _dist()
    size, rank, local = (int(os.environ.get(k, d)) for k, d in
                         (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))  # fmt: skip
    if not dist.is_initialized():
        method = os.environ.get("MEGATILE_RENDEZVOUS") or ("env://" if "MASTER_PORT" in os.environ else None)
        method = method or f"file://{tempfile.mkdtemp()}/ranks"
        dist.init_process_group("gloo", init_method=method, world_size=size, rank=rank)
    groups = (dist.group.WORLD,) * (2 if return_lc_group else int(return_tp_group))
    return (size, rank, local, *groups)


def spawn(function: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
          start_method: str = "fork") -> Any:  # fmt: skip
    """``torch.multiprocessing.spawn``, with processes that keep this one's modules."""
    import torch.multiprocessing as mp

    folder = tempfile.mkdtemp(prefix="megatile-ranks-")
    os.environ["MEGATILE_RENDEZVOUS"] = f"file://{folder}/ranks"
    try:
        return mp.start_processes(function, args, nprocs, join, daemon, "fork")
    finally:
        del os.environ["MEGATILE_RENDEZVOUS"]
        if join:
            shutil.rmtree(folder, ignore_errors=True)


# --- symmetric tensors ----------------------------------------------------------------------------------


def _folder() -> Path:
    """A place in shared memory that all ranks know; rank 0 removes it."""
    if _SHARED["folder"] is None:
        root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        prefix = f"megatile-{os.getpid()}-"
        name = [tempfile.mkdtemp(prefix=prefix, dir=root)] if _rank() == 0 else [""]
        if world_size() > 1:
            _dist().broadcast_object_list(name, src=0)
        _SHARED["folder"] = Path(name[0])
        if _rank() == 0:
            Finalize(None, shutil.rmtree, (name[0], True), exitpriority=1)  # in spawned processes, too
    return Path(_SHARED["folder"])


def _rank() -> int:
    return int(_dist().get_rank()) if world_size() > 1 else 0


def barrier_all(*_: Any) -> None:
    """Every rank comes here before any goes on."""
    if world_size() > 1:
        _dist().barrier()


def _mapped(path: Path, shape: tuple[int, ...], dtype: Any) -> Any:
    import torch

    size = int(np.prod(shape, dtype=np.int64)) if shape else 1
    return torch.from_file(str(path), shared=True, size=max(size, 1), dtype=dtype)[:size].reshape(shape)


def tensors(shape: Any, dtype: Any) -> list[Any]:
    """A tensor of every rank, each in memory that all ranks share; all ranks make it together."""
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    number, _SHARED["made"] = _SHARED["made"], _SHARED["made"] + 1
    paths = [_folder() / f"{number}.{rank}" for rank in range(world_size())]
    mine = _mapped(paths[_rank()], shape, dtype)
    barrier_all()
    made = [mine if rank == _rank() else _mapped(path, shape, dtype) for rank, path in enumerate(paths)]
    barrier_all()
    paths[_rank()].unlink()  # the memory stays until the last rank lets go of it
    return made


def tensor(shape: Any, dtype: Any, allocator: Any = None, return_peers: bool = False, **_: Any) -> Any:
    """``tilelang.tensor``: this rank's symmetric tensor, or those of all ranks."""
    made = tensors(shape, dtype)
    return made if return_peers else made[_rank()]


def get_allocator(*_: Any, **__: Any) -> Any:
    """What TileScale allocates from; shared memory has no size of its own here."""
    return SimpleNamespace(device="cpu")


def perf_fn(function: Any, warmup: int = 0, rep: int = 1, post_fn: Any = None) -> float:
    """Milliseconds of one call on this computer's CPU."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


# --- launches -------------------------------------------------------------------------------------------


def launch(programs: tuple[Any, ...], arrays: dict[str, Any]) -> None:
    """Run Programs over the tensors of all ranks, in rank 0, when all have come."""
    import torch

    dist, rank, ranks = _dist(), _rank(), world_size()
    names = [p.name for program in programs for p in program.params if p.name in arrays]
    mine = {name: torch.as_tensor(arrays[name]) for name in dict.fromkeys(names)}
    shared = {name: tensors(tuple(value.shape), value.dtype) for name, value in mine.items()}
    for name, value in mine.items():
        shared[name][rank].copy_(value)
    texts: list[Any] = [None] * ranks
    dist.all_gather_object(texts, [str(program) for program in programs])
    problem: list[Any] = [None]
    if rank == 0:
        problem = [_run_all(programs, shared, texts)]
    dist.broadcast_object_list(problem, src=0)
    if problem[0] is not None:
        raise problem[0]
    for name, value in mine.items():
        value.copy_(shared[name][rank])
        if not isinstance(arrays[name], torch.Tensor):
            arrays[name][...] = value.numpy()
    barrier_all()


def _run_all(programs: tuple[Any, ...], shared: dict[str, Any], texts: list[Any]) -> MegatileError | None:
    """What went wrong, reported to all ranks."""
    import torch

    different = next((r for r, text in enumerate(texts) if text != texts[0]), None)
    if different is not None:
        return MegatileError(
            f"ranks 0 and {different} launch different kernels",
            advice="let kernels ask for their rank with T.get_rank(), and launch them in the same order",
        )
    try:
        for program in programs:
            stacked = {p.name: torch.stack(shared[p.name]) for p in program.params}
            run(program, *stacked.values(), machine=program.machine)
            for name, value in stacked.items():
                for one, new in zip(shared[name], value, strict=True):
                    one.copy_(new)
    except MegatileError as error:
        return error
    return None
