"""Read and check the arguments of a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.geometry import BUFFERS, Geometry, Ranks, buffer_memory, near_memory, survey
from megatile.collectives.job import CollectiveError, Job, operation_name, read_bytes
from megatile.collectives.libraries import KERNELS_OF, LIBRARIES
from megatile.core.dtypes import dtype as dtype_name, itemsize
from megatile.core.errors import did_you_mean
from megatile.hda import HDA, machine as find_machine
from megatile.timing.transports import PROTOCOLS


def make_job(
    op: str,
    *,
    machine: HDA,
    scale: str = "device",
    nbytes: int | str | None = None,
    dtype: Any = "f32",
    ranks: Ranks = None,
    reduction: str = "sum",
    root: int = 0,
    peer: int | None = None,
    in_place: bool = False,
    memory: str | None = None,
    slot_memory: str | None = None,
    splits: Sequence[Sequence[int]] | None = None,
) -> tuple[Job, Geometry]:
    """Return the job that the arguments of ``collective`` describe."""
    name = dtype_name(dtype)
    size = itemsize(name)
    rows = tuple(map(tuple, splits or ()))
    if rows:
        if nbytes is not None:
            raise CollectiveError("nbytes= and splits= both say how much is sent", advice="leave nbytes out")
        nbytes = len(rows) * size * max((n for row in rows for n in row), default=0)
        if len({n for row in rows for n in row}) == 1:
            rows = ()
    if nbytes is None and operation_name(op) != "barrier":
        raise CollectiveError(f"{op} needs a size in bytes", advice='give nbytes=1 << 20 or nbytes="1 MiB"')
    nbytes = read_bytes(0 if nbytes is None else nbytes)
    if nbytes % size:
        raise CollectiveError(
            f"{nbytes} bytes are not a whole number of {name}",
            advice=f"{nbytes // size * size} or {-(-nbytes // size) * size}",
        )
    found = survey(machine, scale, ranks)
    for named_memory in (memory, slot_memory):
        if named_memory is not None:
            machine.memory(named_memory)
    place = buffer_memory(machine, scale, BUFFERS * nbytes) if memory is None else memory
    near = near_memory(machine, scale, place)
    job = Job(
        operation_name(op),
        found.ranks,
        nbytes // size,
        name,
        reduction,
        root,
        peer,
        in_place,
        scale=found.scale,
        memory=place,
        slot_memory=slot_memory,
        levels=found.levels,
        dims=found.dims,
        wrap=found.wrap,
        reduces=found.reduces,
        place=found.place,
        cables=found.cables,
        near=None if near is None else near.name,
        near_bytes=near.available // 2 if near else 0,  # the other half is for queues
        splits=rows,
    )
    return job, found


def read_machine(machine: HDA | str) -> HDA:
    if not isinstance(machine, (HDA, str)):
        raise CollectiveError(
            f"a {type(machine).__name__} is not a machine", advice="give a name such as 'dgx-h100', or an HDA"
        )
    return find_machine(machine) if isinstance(machine, str) else machine


def check_choice(algorithm: Any, protocol: str | None, settings: Any, among: Any, table: Any) -> None:
    """Arguments that say how, not what."""
    if not isinstance(algorithm, str):
        raise CollectiveError(f"{algorithm!r} is not an algorithm", advice="use 'auto', 'ring', …")
    if protocol is not None and protocol not in PROTOCOLS:
        advice = did_you_mean(str(protocol), PROTOCOLS, what="protocols")
        raise CollectiveError(f"there is no protocol '{protocol}'", advice=advice)
    unnamed = algorithm in ("auto", "fastest", *LIBRARIES, *KERNELS_OF)
    if settings and (unnamed or not isinstance(settings, Mapping)):
        raise CollectiveError(
            "settings are the options of one algorithm",
            advice='name it: algorithm="ring", settings={"chunks": 4}',
        )
    if among is not None and (isinstance(among, str) or not isinstance(among, Sequence) or not among):
        raise CollectiveError(
            f"{among!r} is not a list of algorithms", advice='give a list such as ["ring", "tree"]'
        )
    for name in among or ():
        find_algorithm(name)
    if table is not None and not isinstance(table, (dict, str, Path)):
        raise CollectiveError(
            f"a {type(table).__name__} is not a table of choices", advice="give a dict, or a file's name"
        )
