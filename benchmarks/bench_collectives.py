"""Collectives: scale and time of simulated plans, and the fidelity page."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Row, at_most, bench, peak_memory, seconds


def _simulated(machine: object, algorithm: str, nbytes: int, **options: object) -> None:
    from megatile.collectives.planner import find_algorithm, make_job
    from megatile.sim import simulate

    job, _ = make_job("all_reduce", machine=machine, nbytes=nbytes, in_place=True)  # type: ignore[arg-type]
    simulate(find_algorithm(algorithm).plan(job, **options), machine=machine)  # type: ignore[arg-type]


def _chips(topology: str, count: int, **network: object) -> object:
    from megatile.collectives.toy import chips

    return chips(topology, count, **network)


@bench("collectives scale")
def scale() -> Iterator[Row]:
    from megatile.hda import machine

    cluster = machine("h100-cluster", nodes=12_500)
    took = seconds(lambda: _simulated(cluster, "hierarchical", 1 << 20, outer="in_network"))
    yield Row("hierarchical all-reduce, 100 000 devices", took, "s", bar=at_most(60))
    torus = _chips("torus", 4096, dims=[64, 64])
    took = seconds(lambda: _simulated(torus, "by_dimension", 1 << 20))
    yield Row("all-reduce on a 64 x 64 torus", took, "s", bar=at_most(2))
    ring = _chips("ring", 4096)
    took = seconds(lambda: _simulated(ring, "ring", 1 << 20, chunks=4))
    yield Row("1 MiB ring, 4096 ranks, 4 chunks (134 M messages)", took, "s", bar=at_most(5))
    took = peak_memory(lambda: _simulated(ring, "ring", 1 << 20, chunks=4))
    yield Row("the same, peak memory of Python objects", took, "B", bar=at_most(1e9))


@bench("collectives fidelity")
def fidelity() -> Iterator[Row]:
    from fidelity_collectives import compare, score
    from fidelity_page import draw, write_page
    from fit_protocol import fit, in_files

    fitted, files = fit(), in_files()
    differing = sum(fitted[m].get(name) != value for m in files for name, value in files[m].items())
    yield Row(
        "protocol constants of the machine files that differ from the fit", differing, "", bar=at_most(0)
    )
    rows = list(compare())
    write_page(rows)
    draw(rows)
    median, worst = score([r for r in rows if r.kind == "scored"])
    yield Row("scored rows, median error", median, "", bar=at_most(0.10))
    yield Row("scored rows, worst error", worst, "", bar=at_most(0.35))
