"""Benches: functions of ``torch`` that print what they checked and return the number of failures.

A module's ``run(torch)`` is one, and every function that registers itself:

    from megatile.runtime.benches import bench

    @bench(name="my_gemm", description="one product on one PE")
    def my_gemm(torch):
        ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import getdoc
from typing import Any


@dataclass(frozen=True)
class Bench:
    """A bench: ``run(torch)`` gives the number of failures (None: none)."""

    name: str
    description: str
    run: Callable[[Any], Any]
    ccl: Any = None
    """The ``ccl.yaml`` whose kernel does its all-reduce, unless the caller names another."""


def bench(name: str | None = None, description: str | None = None) -> Callable[[Any], Any]:
    """Register a function of ``torch`` as a bench, under its own name and docstring if nothing is given."""

    def register(run: Any) -> Any:
        run.bench = Bench(name or run.__name__, description or _first_sentence(getdoc(run)), run)
        return run

    return register


def benches_of(module: Any) -> Mapping[str, Bench]:
    """Return the benches of a module: what registered itself, or its ``run``."""
    own = [
        found for value in vars(module).values() if isinstance(found := getattr(value, "bench", None), Bench)
    ]
    run = getattr(module, "run", None)
    if not own and callable(run):
        short = module.__name__.rpartition(".")[2]
        own = [Bench(short, _first_sentence(module.__doc__), run, getattr(module, "CCL", None))]
    return {found.name: found for found in own}


def _first_sentence(text: str | None) -> str:
    words = " ".join((text or "").split())
    return words.partition(". ")[0].rstrip(".")


def verdict(name: str, worst: dict[int, float], limit: float, torch: Any, title: str = "") -> int:
    """Print whether every rank's largest difference is small enough; how many are not."""
    if not torch.has_data:
        print(f" {name}: times only")
        return 0
    wrong = [rank for rank, error in sorted(worst.items()) if not error <= limit]
    word = f"[FAIL] on ranks {wrong}" if wrong else "OK"
    print(f" {title or f'{name} (ws={len(worst)})'}: {word}, largest difference {max(worst.values()):.3g}")
    return len(wrong)


def on_every_rank(torch: Any, body: Callable[[int, dict[int, Any]], None]) -> dict[int, Any]:
    """Run ``body(rank, found)`` in a worker on every rank; return what they leave in ``found``."""
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        body(rank, found)

    torch.multiprocessing.spawn(worker, nprocs=torch.rank_count)
    return found
