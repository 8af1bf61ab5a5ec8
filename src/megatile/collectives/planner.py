"""``collective(...)``: the Plan of a collective on a machine, by a named algorithm or the best one.

    plan = collective("all_reduce", machine="dgx-h100", nbytes=1 << 20)
    plan, why = collective("all_reduce", machine="dgx-h100", nbytes=1 << 20, explain=True)
    print(why)

``auto`` is what the machine's communication library does, ``"nccl"`` and ``"rccl"`` what these libraries
do, ``"custom"`` and ``"trtllm"`` vLLM's and TensorRT-LLM's own all-reduce, ``"deepep"`` DeepEP's all-to-all,
and ``"fastest"`` the fastest of all (``ranking.py``; also ``auto`` where the machine's file describes no
library).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from megatile.collectives.algorithms import algorithms, find_algorithm
from megatile.collectives.candidates import Candidate, Explanation, in_network
from megatile.collectives.choice_table import Choices, Table
from megatile.collectives.geometry import Ranks
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.libraries import (
    KERNELS_OF,
    LIBRARIES,
    NAMED,
    deepep_transport,
    library_alternatives,
    library_options,
    library_way,
    offered,
    stand_in,
)
from megatile.collectives.pace import paced
from megatile.collectives.ranking import Floors, named, on_transport, own_way, plan_of, rank
from megatile.collectives.requests import check_choice, make_job, read_machine
from megatile.core.arguments import known_keywords
from megatile.core.progress import Listener, shown
from megatile.core.quantities import format_time
from megatile.core.times import HasTime
from megatile.hda import HDA
from megatile.plan.model import Plan, with_transport
from megatile.sim import simulate
from megatile.timing.collective_choice import library_of
from megatile.timing.collective_rule import CHAINS, PEERS
from megatile.timing.database import Database, measured_time
from megatile.timing.formulas import OPERATIONS as KERNELS, KernelTime
from megatile.timing.machine_timing import Origin
from megatile.timing.measurements import CAPTURED
from megatile.timing.transports import has_library, launch_floor_ps, model_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

PIPELINED = ("node_tree", "in_network_tree", "hierarchical")
"""Algorithms that libraries cut into as many chunks as are good; the others are timed whole, but for
chains."""


class Options(TypedDict, total=False):
    """Arguments of ``collective`` that have defaults; its docstring says what they mean."""

    scale: str
    dtype: Any
    ranks: Ranks
    reduction: str
    root: int
    peer: int | None
    in_place: bool
    memory: str | None
    slot_memory: str | None
    splits: Sequence[Sequence[int]] | None
    algorithm: str
    protocol: str | None
    transport: str | None
    env: Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    among: Sequence[str] | None
    launch: bool
    table: Table | None
    progress: bool | Listener


@dataclass(frozen=True, repr=False)
class Prediction(HasTime):
    """A collective's plan with its predicted time on a machine, which is that of ``simulate(plan,
    machine=…)``."""

    plan: Plan
    job: Job
    time_ps: int
    candidate: Candidate
    model: str
    """The name of the timing model: ``NCCL ring, LL``."""
    explanation: Explanation | None = field(default=None, compare=False, repr=False)
    origin: Origin | None = None
    """Where the time comes from, if a database was given: measured rows, or the rule, and why not rows."""

    def __repr__(self) -> str:
        return f"Prediction({self.plan.name}: {format_time(self.time_ps)}, {self.model})"

    @property
    def algorithm(self) -> str:
        return self.candidate.algorithm

    @property
    def algbw(self) -> float:
        """Bytes of the buffer per second; a barrier moves none."""
        if not self.time_ps or self.job.operation == "barrier":
            return 0.0
        return self.job.nbytes / (self.time_ps * 1e-12)

    @property
    def busbw(self) -> float:
        """What nccl-tests prints: comparable to the link rate whatever the number of ranks."""
        return self.algbw * bus_factor(self.job.operation, self.job.ranks)


def bus_factor(operation: str, ranks: int) -> float:
    """Return bytes that must cross a rank's link, per byte of the buffer."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


@overload
def collective(
    op: str,
    *,
    machine: HDA | str,
    nbytes: int | str | None = None,
    explain: Literal[False] = False,
    **options: Unpack[Options],
) -> Plan: ...
@overload
def collective(
    op: str,
    *,
    machine: HDA | str,
    nbytes: int | str | None = None,
    explain: Literal[True],
    **options: Unpack[Options],
) -> tuple[Plan, Explanation]: ...
@known_keywords
def collective(
    op: str,
    *,
    machine: HDA | str,
    nbytes: int | str | None = None,
    explain: bool = False,
    scale: str = "device",
    dtype: Any = "f32",
    ranks: Ranks = None,
    reduction: str = "sum",
    root: int = 0,
    peer: int | None = None,
    in_place: bool = False,
    memory: str | None = None,
    slot_memory: str | None = None,
    splits: Sequence[Sequence[int]] | None = None,
    algorithm: str = "auto",
    protocol: str | None = None,
    transport: str | None = None,
    env: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    among: Sequence[str] | None = None,
    launch: bool = True,
    table: Table | None = None,
    progress: bool | Listener = False,
) -> Plan | tuple[Plan, Explanation]:
    """Return the plan of collective ``op`` over ``ranks`` (all units of ``scale``) of a machine.

    ``nbytes`` is the whole buffer's size as nccl-tests counts it; ``algorithm`` a name, an import path,
    ``"auto"`` (what the machine's library does), ``"fastest"`` or a library (``nccl``, ``rccl``, ``custom``,
    ``trtllm``, ``deepep``), and ``settings`` the options of a named one (of ``deepep``: ``token`` in bytes,
    ``sms``, ``phase``, ``low_latency`` and ``experts``). ``ranks`` is a count or unit numbers; ``peer`` is
    the receiver of a ``send_recv``. ``memory`` and ``slot_memory`` name where buffers and queues lie.
    ``splits`` are the elements of an uneven ``all_to_all``, a row per sender with a number per receiver, in
    place of ``nbytes``. ``protocol``, ``transport``, ``env``, ``among``, ``launch``, ``table`` and
    ``progress`` are those of ``predict``. With ``explain`` also return the candidates with
    their times, and why others were not used.
    """
    found = predict(
        op, machine=machine, nbytes=nbytes, algorithm=algorithm, protocol=protocol, transport=transport,
        env=env, settings=settings, among=among, launch=launch, table=table, timed=explain, progress=progress,
        scale=scale, dtype=dtype, ranks=ranks, reduction=reduction, root=root, peer=peer, in_place=in_place,
        memory=memory, slot_memory=slot_memory, splits=splits,
    )  # fmt: skip
    if not explain:
        return found.plan
    assert found.explanation is not None
    return found.plan, found.explanation


@known_keywords
def predict(
    op: str,
    *,
    machine: HDA | str,
    nbytes: int | str | None = None,
    algorithm: str = "auto",
    protocol: str | None = None,
    transport: str | None = None,
    env: Mapping[str, Any] | None = None,
    registered: bool = False,
    database: Database | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    among: Sequence[str] | None = None,
    launch: bool = True,
    table: Table | None = None,
    floors: Floors | None = None,
    timed: bool = True,
    progress: bool | Listener = False,
    scale: str = "device",
    dtype: Any = "f32",
    ranks: Ranks = None,
    reduction: str = "sum",
    root: int = 0,
    peer: int | None = None,
    in_place: bool = False,
    memory: str | None = None,
    slot_memory: str | None = None,
    splits: Sequence[Sequence[int]] | None = None,
) -> Prediction:
    """Like ``collective``, with the predicted time.

    ``progress`` (as of ``collective``) shows a bar on stderr while candidates are priced and simulated, or
    calls a function with (what, done, of).

    ``protocol`` (LL, LL128, Simple, NVLS) fixes how kernels send, ``env`` has variables of NCCL
    (``NCCL_ALGO``, ``NCCL_PROTO`` …), ``among`` the algorithms of which the fastest is taken;
    ``launch=False`` leaves the host's launch out, as captured graphs do. ``table`` (a dict, or the name of
    a file that is read, extended and written) caches choices; ``floors`` carries prices from size to
    size of a sweep. ``registered``: buffers are registered with the library, so that it copies nothing
    locally and fills no pipeline (an estimate). ``database`` (a `Database` or its file) has measured times:
    where it has rows near the size (up to twice the largest, down to half the smallest), they say the time
    of the library's own choice, and the rule elsewhere (`Prediction.origin`). ``transport="copy_engine"``
    lets the machine's copy engines send, as a host's copies do, not a library's kernel.
    """
    hda = read_machine(machine)
    if transport not in (None, "copy_engine"):
        raise CollectiveError(
            f"a collective has no transport '{transport}'",
            advice='leave it out, or use transport="copy_engine"',
        )
    check_choice(algorithm, protocol, settings, among, table)
    job, _ = make_job(
        op, machine=hda, nbytes=nbytes, scale=scale, dtype=dtype, ranks=ranks, reduction=reduction,
        root=root, peer=peer, in_place=in_place, memory=memory, slot_memory=slot_memory, splits=splits,
    )  # fmt: skip
    if algorithm == "deepep":
        return _tokens(hda, job, settings or {}, launch, timed)
    library, way = library_for(hda, job, algorithm, among) if transport is None else None, None
    if env and (library is None or protocol is not None):
        named_way = f"protocol={protocol!r}" if protocol else f"algorithm={algorithm!r} on '{hda.name}'"
        raise CollectiveError(
            f"variables of NCCL ({', '.join(env)}) have no effect with {named_way}",
            advice='algorithm="auto" on a machine with NCCL or RCCL takes what the library chooses',
        )
    if algorithm in ("auto", "fastest", *NAMED):
        how = {"among": among, "launch": launch, "protocol": protocol or transport}
        choices = Choices(table, hda, job, algorithm, **how)
        found = choices.find() if env is None else None
        if library and protocol is None:
            way = library_way(hda, job, library, launch=launch, env=env)
        shape = stand_in(way, job) if way is not None else None
        if found is not None:
            ranking = [found]
        elif (
            way is not None
            and job.operation not in CHAINS
            and not (way.algorithm in PIPELINED and shape == way.algorithm)
        ):
            options = library_options(hda, job, library, way, shape or way.algorithm) if library else ()
            ranking = [Candidate(shape or way.algorithm, options, way.protocol)]
        else:
            if way is not None and shape is not None:
                among, protocol = [shape], way.protocol
            elif library:
                among = [n for n in offered(library, job.operation) if among is None or n in among]
            with shown(f"predicting {job.operation}", progress) if progress else nullcontext():
                ranking = rank(hda, job, among, launch, floors, library, protocol, transport, way is not None)
            if way is not None:  # one way, whose time is the rule's
                ranking = [replace(ranking[0], price_ps=None, time_ps=None)]
        if found is None and env is None:
            choices.keep(ranking[0])
    else:
        ranking = named(hda, job, find_algorithm(algorithm), protocol, settings or {}, launch, transport)
    best = ranking[0]
    own = own_way(hda, job, best, library)
    plain = on_transport(plan_of(best, job), best, job, hda, own, transport, way)
    if registered or (library in KERNELS_OF and not launch):  # graphs keep their buffers registered
        kernels = (replace(t, registered=bool(t.library)) for t in plain.transports)
        plain, best = replace(plain, transports=tuple(kernels)), replace(best, time_ps=None)
    if not launch:
        kernels = (replace(t, captured=launch_floor_ps(hda, t, job.scale) > 0) for t in plain.transports)
        plain = replace(plain, transports=tuple(kernels))
    plan = paced(plain, job, hda)
    time = best.time_ps if plan is plain else None
    if time is None:
        time = simulate(plan, machine=hda, launch=launch).time_ps if timed else 0
    best = replace(best, time_ps=time or best.time_ps)
    compared: tuple[Candidate, ...] = (best, *ranking[1:])
    if library == "nccl" and way is not None and timed and job.operation not in PEERS:
        compared = library_alternatives(hda, job, best, env)
    why = Explanation(job, hda.name, compared, in_network(plan), tuple(plan.pace_lines()))
    model = model_of(plan, hda)
    usual = library in LIBRARIES and (env, protocol, among, registered) == (None, None, None, False)
    known = measured(hda, job, launch, database) if database is not None and usual else None
    if known is not None:
        return Prediction(
            plan, job, round(known.time_us * 1e6), best, f"{known.origin.kind} rows", why, known.origin
        )
    origin = None if database is None else Origin("rule", unmeasured(job) if usual else ONLY_USUAL)
    predicted = Prediction(plan, job, time, best, model, why, origin)
    if algorithm == "fastest" and among is protocol is transport is None and library_of(hda, job.scale):
        ways: list[dict[str, Any]] = [{}, {"transport": "copy_engine", "algorithm": "fastest"}]
        ways += [{"algorithm": name} for name in KERNELS_OF if _describes(hda, job, name)]
        for one_way in ways:
            try:
                other = predict(
                    op, machine=hda, nbytes=nbytes, launch=launch, scale=scale, dtype=dtype, ranks=ranks,
                    reduction=reduction, root=root, peer=peer, in_place=in_place, memory=memory,
                    slot_memory=slot_memory, splits=splits, **one_way,
                )  # fmt: skip
            except CollectiveError:
                continue  # an engine that calls NCCL there
            if other.time_ps < predicted.time_ps and other.explanation and predicted.explanation:
                taken = other.explanation.chosen
                taken = replace(taken, protocol=one_way.get("transport", taken.protocol))
                every = (taken, *predicted.explanation.candidates)
                predicted = replace(other, explanation=replace(other.explanation, candidates=every))
    return predicted


def _describes(hda: HDA, job: Job, library: str) -> bool:
    """Return whether a machine file describes a library, and it does what is asked for."""
    known = hda.transports.get(hda.scale(job.scale).name, {})
    return library in known and bool(offered(library, job.operation))


def _tokens(hda: HDA, job: Job, settings: Mapping[str, Any], launch: bool, timed: bool) -> Prediction:
    """Return DeepEP's exchange of tokens."""
    if job.operation != "all_to_all":
        raise CollectiveError(f"DeepEP does all_to_all, not {job.operation}")
    transport, best = deepep_transport(hda, job, settings), Candidate("direct", protocol="")
    plan = with_transport(plan_of(best, job), transport, job.operation, job.ranks, job.nbytes)
    time = simulate(plan, machine=hda, launch=launch, record=False).time_ps if timed else 0
    return Prediction(plan, job, time, best, model_of(plan, hda), Explanation(job, hda.name, (best,)))


def measured(hda: HDA, job: Job, launch: bool, database: Database | str | Path) -> KernelTime | None:
    """Return the measured time of what a library does for a job; None where nothing near was measured."""
    if job.operation not in KERNELS or job.scale != hda.scale("device").name:
        return None
    shape = {"ranks": job.ranks, "bytes": job.nbytes}
    return measured_time(KERNELS[job.operation], hda, job.dtype, shape, "" if launch else CAPTURED, database)


ONLY_USUAL = "measured rows are of the library's own choice, without variables or options"


def unmeasured(job: Job) -> str:
    return (
        f"the database has no row of {job.operation}, {job.dtype}, {job.ranks} ranks within a factor of 2 "
        "of the measured sizes"
    )


def library_for(hda: HDA, job: Job, algorithm: str, among: Sequence[str] | None) -> str | None:
    """Return the library whose own choice is asked for; None where the fastest algorithm is, or a named
    one."""
    if algorithm in NAMED:
        if algorithm in KERNELS_OF and not offered(algorithm, job.operation):
            raise CollectiveError(f"algorithm={algorithm!r} does all_reduce, not {job.operation}")
        return algorithm if has_library(hda, job.scale) or algorithm in KERNELS_OF else None
    library = library_of(hda, job.scale)
    if algorithm != "auto" or among is not None or library is None:
        return None
    able = [n for n in offered(library, job.operation) if algorithms()[n].reason_against(job) is None]
    return library if able else None
