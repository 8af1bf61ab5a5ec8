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

from megatile.collectives.candidates import Candidate
from megatile.collectives.job import Job
from megatile.hda import HDA
from megatile.hda.model import LibraryFigures
from megatile.plan.model import Transport
from megatile.timing.transports import PROTOCOL_OF, library_of, protocol_of

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


def transport_of(
    candidate: Candidate, job: Job, hda: HDA, library: str | None, captured: bool
) -> Transport | None:
    """Return how the messages of a candidate travel: on a library's kernel between devices (that of
    ``library``, or of the machine where it offers the algorithm, else a custom one), by stores inside a
    device. None on machines that describe no library: their own engines do the work."""
    if hda.protocol is None:
        return None
    if protocol_of(hda, job.scale) is None:
        return Transport("lsu", name="lsu")
    name, path = candidate.algorithm, candidate.path
    own = library or library_of(hda) or ""
    if library is None and (
        name not in offered(own, job.operation) or reason_against(own, name, path, job, captured)
    ):
        own = "custom"
    channels = channels_in_use(hda.library, name, path, job) if own in LIBRARIES else None
    kind = "switch" if path == "switch" else "kernel"
    return Transport(kind, own, name, PROTOCOL_OF[path], channels, name=own)
