"""What communication libraries offer: ``algorithm="nccl"`` or ``"rccl"`` chooses among their algorithms.

NCCL (``src/graph/tuning.cc``, ``src/device``): rings, one per channel and on all rails between nodes; trees
that are chains inside nodes and binary between them; in-switch reduction (NVLS) inside a node and as NVLSTree
across nodes; point-to-point operations are sent directly. RCCL on a full mesh (``tools/msccl-algorithms``,
``src/graph/rome_models.cc``): all-pairs exchange, and rings that use every link of the mesh.

What they do with small sizes is modelled too: few channels, blocks that stay empty, and the sizes for which
RCCL has an all-pairs algorithm. None of it is fitted; the figures are those of the libraries' sources. Those
that change times are in the section ``library`` of machine files.
"""

from __future__ import annotations

from math import ceil

from megatile.collectives.job import Job
from megatile.hda.model import LibraryFigures

LIBRARIES = {
    "nccl": ("ring", "node_tree", "rail_rings", "in_network", "in_network_tree"),
    "rccl": ("direct", "ring", "hamilton"),
}
CHANNELLED = ("ring", "node_tree", "rail_rings")
CAPTURED_BYTES, CAPTURED_UNIT = 1 << 20, 32
"""RCCL in captured graphs: MSCCL++ for multiples of 32 bytes up to 1 MiB (``mscclEnqueueCheck``)."""
PAIRS_UNIT, PAIRS_IN_BULK = 256, 512 << 10
"""RCCL's all-pairs files: 256 chunks per loop divide the elements; from 512 KiB on, Simple follows LL."""
POINT_TO_POINT = ("all_to_all", "gather", "scatter", "send_recv")


def offered(library: str, operation: str) -> tuple[str, ...]:
    """The algorithms with which a library does an operation."""
    return ("direct",) if operation in POINT_TO_POINT else LIBRARIES[library]


def reason_against(library: str, algorithm: str, path: str, job: Job, captured: bool) -> str | None:
    """Why a library does not take one of its algorithms on a path for a job, or None."""
    if library != "rccl" or job.operation != "all_reduce":
        return None
    if (algorithm, path) == ("hamilton", "small"):
        return "small sizes take one ring"
    if algorithm != "direct":
        return None
    if captured and job.nbytes <= CAPTURED_BYTES and job.nbytes % CAPTURED_UNIT == 0:
        return None if path == "small" else "captured graphs send such sizes on the small path"
    if job.count % PAIRS_UNIT:
        return f"all pairs take multiples of {PAIRS_UNIT} elements"
    if (path == "bulk") != (job.nbytes >= PAIRS_IN_BULK):
        return f"all pairs are sent in bulk from {PAIRS_IN_BULK} bytes on, and on the small path below"
    return None


def channels_in_use(figures: LibraryFigures, algorithm: str, path: str, job: Job) -> float | None:
    """The channels that a library takes for a size, one for every ``small_channel`` (or that of the path);
    None: all it has."""
    sizes = {"small": figures.small_channel, "line": figures.line_channel, "bulk": figures.bulk_channel}
    each = sizes.get(path)
    if algorithm not in CHANNELLED or each is None:
        return None
    return max(1.0, job.nbytes / (each * (job.ranks if (algorithm, path) == ("ring", "small") else 1)))


def steps_saved(figures: LibraryFigures, algorithm: str, path: str, job: Job) -> float:
    """Steps that a ring all-reduce of few bytes saves because some of its blocks are empty."""
    ring = algorithm == "ring" and path == "small" and job.operation == "all_reduce" and len(job.nesting) == 1
    if not ring or figures.ring_block is None:
        return 0.0
    blocks = min(job.ranks, ceil(job.nbytes / figures.ring_block))
    return 2 * (job.ranks - 1) - ring_steps(job.ranks, blocks) if blocks else 0.0


def ring_steps(ranks: int, blocks: int) -> float:
    """Steps per ring all-reduce where one follows another and ``blocks`` of the ranks' blocks have data.

    The first rank of a block has its sum back after n steps, and begins the next all-reduce while the sum
    still goes round. Another rank that begins a block waits for the sum longer, at most 2(n-1) steps, from
    the rank two ahead of it. With m ranks that wait for each other so, it takes 2n - n/m steps.
    """
    return min(2 * (ranks - 1), 2 * ranks - ranks / ceil(blocks / 2))
