"""``collective(...)``: the Plan of a collective on a machine, by a named algorithm or the best one.

    plan = collective("all_reduce", machine="dgx-h100", nbytes=1 << 20)
    plan, why = collective("all_reduce", machine="dgx-h100", nbytes=1 << 20, explain=True)
    print(why)

``auto`` prices every algorithm that can do the job, simulates the cheapest few and takes the fastest. Prices
are lower bounds of the simulated time, so nothing that could win is left out among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

from megatile.collectives.asked import check_choice, check_fields, read_bytes, read_machine
from megatile.collectives.geometry import Geometry, Ranks, buffer_memory, survey
from megatile.collectives.job import CollectiveError, Job, operation_name
from megatile.collectives.protocol import on_path, paths, total_ps
from megatile.collectives.registry import Algorithm, algorithms, find_algorithm
from megatile.core.dtypes import dtype as dtype_name
from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError
from megatile.cost.price import lower_bound
from megatile.hda import HDA
from megatile.plan.model import Plan
from megatile.sim import simulate

FINALISTS = 4
"""At most so many of the cheapest candidates are simulated."""
GUESSES = ("in_network", "in_network_tree", "hierarchical", "direct", "ring", "dissemination")
"""What is simulated first, if it can do the job."""
FEW = 64
"""Among so many ranks, everybody to everybody is worth a try."""
CHUNKED_FROM = 1 << 20
"""Bytes from which cutting blocks into chunks is tried."""
LANED = ("ring_bidirectional", "multi_ring", "rail_rings", "hamilton")
"""Rings of several lanes overlap as they are; cutting them into chunks is not tried."""
MOST_PAIRS = 1 << 21
"""More queues than this (ranks squared) are not tried: direct exchange has no chance there."""


@dataclass(frozen=True)
class Candidate:
    """One algorithm with its options on one path; prices include what is spent once per collective."""

    algorithm: str
    options: tuple[tuple[str, Any], ...] = ()
    path: str = "bulk"
    price_ps: int | None = None
    time_ps: int | None = None
    why_not: str | None = None

    @property
    def label(self) -> str:
        shown = ", ".join(f"{k}={v}" for k, v in self.options)
        return f"{self.algorithm}({shown})" if shown else self.algorithm


@dataclass(frozen=True)
class Explanation:
    """The candidates, the fastest first, then those that could not be used and why."""

    job: Job
    machine: str
    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate:
        return self.candidates[0]

    def as_dicts(self) -> list[dict[str, Any]]:
        """The candidates as plain data."""
        return [
            {
                "algorithm": c.algorithm,
                "options": dict(c.options),
                "path": c.path,
                "price_ps": c.price_ps,
                "time_ps": c.time_ps,
                "note": c.why_not or self._note(c),
            }
            for c in self.candidates
        ]

    def _note(self, candidate: Candidate) -> str:
        best = self.chosen.time_ps
        if candidate is self.chosen:
            return "chosen"
        if candidate.time_ps is not None or best is None:
            return ""
        above = candidate.price_ps is not None and candidate.price_ps >= best
        return "no faster even without contention" if above else "not simulated"

    def __str__(self) -> str:
        from megatile.trace import format_bytes, format_ps, text_table

        job = self.job
        head = (
            f"{job.operation} of {format_bytes(job.nbytes)} ({job.dtype}) over {job.ranks} {job.scale}s "
            f"of {self.machine}: {self.chosen.label}"
        )
        rows = [
            (
                c.label,
                c.path if c.why_not is None else "",
                format_ps(c.price_ps) if c.price_ps is not None else "",
                format_ps(c.time_ps) if c.time_ps is not None else "",
                c.why_not or self._note(c),
            )
            for c in self.candidates
        ]
        return f"{head}\n{text_table(('algorithm', 'path', 'price', 'simulated', 'note'), rows)}"


@dataclass(frozen=True)
class Prediction:
    """A collective's plan with its predicted time on a machine."""

    plan: Plan
    job: Job
    time_ps: int
    candidate: Candidate
    explanation: Explanation | None = field(default=None, compare=False, repr=False)

    @property
    def algorithm(self) -> str:
        return self.candidate.algorithm

    @property
    def algbw(self) -> float:
        """Bytes of the buffer per second."""
        return self.job.nbytes / (self.time_ps * 1e-12) if self.time_ps else 0.0

    @property
    def busbw(self) -> float:
        """What nccl-tests prints: comparable to the link rate whatever the number of ranks."""
        return self.algbw * bus_factor(self.job.operation, self.job.ranks)


def bus_factor(operation: str, ranks: int) -> float:
    """Bytes that must cross a rank's link, per byte of the buffer."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


def make_job(
    op: str,
    *,
    machine: HDA,
    scale: str = "device",
    nbytes: int = 0,
    dtype: Any = "f32",
    ranks: Ranks = None,
    **fields: Any,
) -> tuple[Job, Geometry]:
    """The job that the arguments of ``collective`` describe."""
    name = dtype_name(dtype)
    size = itemsize(name)
    nbytes = read_bytes(nbytes)
    if nbytes % size:
        raise CollectiveError(
            f"{nbytes} bytes are not a whole number of {name}",
            advice=f"{nbytes // size * size} or {-(-nbytes // size) * size}",
        )
    found = survey(machine, scale, ranks)
    check_fields(machine, fields)
    fields.setdefault("memory", buffer_memory(machine, scale, 3 * nbytes))
    job = Job(
        operation_name(op),
        found.ranks,
        nbytes // size,
        name,
        scale=found.scale,
        levels=found.levels,
        dims=found.dims,
        wrap=found.wrap,
        reduces=found.reduces,
        place=found.place,
        **fields,
    )
    return job, found


@overload
def collective(
    op: str, *, machine: HDA | str, nbytes: int = 0, explain: Literal[False] = False, **options: Any
) -> Plan: ...
@overload
def collective(
    op: str, *, machine: HDA | str, nbytes: int = 0, explain: Literal[True], **options: Any
) -> tuple[Plan, Explanation]: ...
def collective(
    op: str, *, machine: HDA | str, nbytes: int = 0, explain: bool = False, **options: Any
) -> Plan | tuple[Plan, Explanation]:
    """The plan of collective ``op`` over ``ranks`` (all units of ``scale``) of a machine.

    ``nbytes`` is the whole buffer's size as nccl-tests counts it; ``algorithm`` a name, an import path or
    ``"auto"``. Further: ``scale``, ``dtype``, ``ranks`` (a count or unit numbers), ``reduction``, ``root``,
    ``peer``, ``in_place``, ``memory``, ``slot_memory``, and ``settings`` (options of a named algorithm).
    With ``explain`` also the reasons: candidates, prices, why not.
    """
    found = predict(op, machine=machine, nbytes=nbytes, **options, timed=False)
    if not explain:
        return found.plan
    assert found.explanation is not None
    return found.plan, found.explanation


def predict(
    op: str,
    *,
    machine: HDA | str,
    nbytes: int = 0,
    algorithm: str = "auto",
    path: str | None = None,
    settings: Mapping[str, Any] | None = None,
    among: Sequence[str] | None = None,
    launch: bool = True,
    table: dict[str, Any] | None = None,
    timed: bool = True,
    **fields: Any,
) -> Prediction:
    """Like ``collective``, with the predicted time.

    ``path`` fixes the protocol's path, ``among`` the algorithms that ``auto`` may take; ``launch=False``
    leaves the host's launch out, as captured graphs do. ``table`` (a dict, as JSON keeps it) remembers
    choices by ``choice_key``.
    """
    hda = read_machine(machine)
    check_choice(algorithm, path, settings, among, table)
    job, _ = make_job(op, machine=hda, nbytes=nbytes, **fields)
    key = choice_key(hda, job, algorithm)
    if table is not None and key in table:
        candidate = Candidate(table[key][0], tuple(sorted(table[key][1].items())), table[key][2])
        ranking: list[Candidate] = [candidate]
    elif algorithm == "auto":
        ranking = rank(hda, job, among, launch)
        if table is not None:
            best = ranking[0]
            table[key] = [best.algorithm, dict(best.options), best.path]
    else:
        ranking = _named(hda, job, find_algorithm(algorithm), path, settings or {}, launch, timed)
    best = ranking[0]
    plan = find_algorithm(best.algorithm).plan(job, **dict(best.options))
    time = best.time_ps
    if time is None:
        time = simulated_ps(hda, plan, job, best, launch) if timed else 0
    return Prediction(plan, job, time, best, Explanation(job, hda.name, tuple(ranking)))


def choice_key(hda: HDA, job: Job, algorithm: str = "auto") -> str:
    """What a choice depends on: machine, ranks, operation, dtype, reduction and size."""
    parts = (hda.fingerprint()[:12], job.scale, str(job.ranks), str(job.place), job.operation, job.dtype)
    return "/".join((*parts, job.reduction, str(job.nbytes), algorithm))


def simulated_ps(hda: HDA, plan: Plan, job: Job, candidate: Candidate, launch: bool = True) -> int:
    """The predicted time of a plan on a path of a machine."""
    seen = on_path(hda, candidate.path, job.scale)
    return total_ps(hda, candidate.path, simulate(plan, machine=seen).time_ps, launch)


def rank(hda: HDA, job: Job, among: Sequence[str] | None = None, launch: bool = True) -> list[Candidate]:
    """All candidates: simulated ones by time, then priced ones, then the unfit with their reason."""
    timed = _first_guess(hda, job, among, launch)
    enough = timed[0].time_ps if timed else None
    priced: list[Candidate] = []
    unfit: list[Candidate] = []
    for known in algorithms().values():
        if among is not None and known.name not in among:
            continue
        reason = known.reason_against(job) or _too_large(known, job)
        if reason is not None:
            if job.operation in known.operations:
                unfit.append(Candidate(known.name, why_not=reason))
            continue
        for options in variants(known, job):
            for path in paths(hda, known.name):
                priced.append(_priced(hda, job, known, options, path, launch, enough))
    usable = sorted(
        (c for c in priced if c.price_ps is not None), key=lambda c: (c.price_ps or 0, c.label, c.path)
    )
    if not usable:
        reasons = "; ".join(f"{c.label}: {c.why_not}" for c in [*priced, *unfit])
        raise CollectiveError(f"no algorithm can do {job.operation} here ({reasons})")
    prices = {(c.label, c.path): c.price_ps for c in usable}
    timed = [replace(c, price_ps=prices.get((c.label, c.path))) for c in timed]
    for candidate in usable[:FINALISTS]:
        # A price is a lower bound: what costs more than the fastest so far need not be simulated.
        known_time = (candidate.label, candidate.path) in {(c.label, c.path) for c in timed}
        if not known_time and (candidate.price_ps or 0) < min(
            (c.time_ps or 0 for c in timed), default=1 << 62
        ):
            timed.append(_timed(hda, job, candidate, launch))
    done = {(c.label, c.path) for c in timed}
    rest = [c for c in usable if (c.label, c.path) not in done]
    timed.sort(key=lambda c: (c.time_ps or 0, c.label, c.path))
    return [*timed, *rest, *(c for c in priced if c.price_ps is None), *unfit]


def _first_guess(hda: HDA, job: Job, among: Sequence[str] | None, launch: bool) -> list[Candidate]:
    """A candidate that is rarely bad, simulated: what must take longer need not be priced to the end."""
    for name in GUESSES:
        if name not in algorithms() or (among is not None and name not in among):
            continue
        known = algorithms()[name]
        if known.reason_against(job) is None:
            options: dict[str, Any] = {}
            if name == "in_network_tree" and job.nbytes >= CHUNKED_FROM:
                options = {"chunks": 16}
            elif name == "hierarchical" and job.ranks <= FEW:
                options = {"inner": "direct"}
            return [_timed(hda, job, Candidate(name, tuple(options.items()), paths(hda, name)[0]), launch)]
    return []


def _too_large(known: Algorithm, job: Job) -> str | None:
    if known.name == "direct" and job.ranks**2 > MOST_PAIRS and job.operation != "send_recv":
        return f"{job.ranks} ranks have too many pairs"
    return None


def variants(known: Algorithm, job: Job) -> Iterator[dict[str, Any]]:
    """Option sets worth trying."""
    yield {}
    if "chunks" in known.options and job.nbytes >= CHUNKED_FROM and known.name not in LANED:
        deep = known.name in ("tree", "in_network_tree") or job.operation in ("broadcast", "reduce")
        yield from ({"chunks": n} for n in ((4, 16, 64) if deep else (4,)))
    if "both_ways" in known.options and any(job.wrap):
        yield {"both_ways": True}
    if "inner" in known.options:
        yield {"inner": "direct"}
        wanted = "sum" if job.reduction == "avg" else job.reduction
        if job.operation == "all_reduce" and job.reduces and wanted in job.reduces[-1]:
            yield {"outer": "in_network"}


def _priced(
    hda: HDA,
    job: Job,
    known: Algorithm,
    options: dict[str, Any],
    path: str,
    launch: bool,
    enough: int | None,
) -> Candidate:
    settings = tuple(sorted(options.items()))
    try:
        plan = known.plan(job, **options)
        least = lower_bound(plan, on_path(hda, path, job.scale), enough)
    except MegatileError as problem:
        return Candidate(known.name, settings, path, why_not=problem.message)
    return Candidate(known.name, settings, path, total_ps(hda, path, least, launch))


def _timed(hda: HDA, job: Job, candidate: Candidate, launch: bool = True) -> Candidate:
    plan = find_algorithm(candidate.algorithm).plan(job, **dict(candidate.options))
    time = simulated_ps(hda, plan, job, candidate, launch)
    return Candidate(candidate.algorithm, candidate.options, candidate.path, candidate.price_ps, time)


def _named(
    hda: HDA,
    job: Job,
    known: Algorithm,
    path: str | None,
    settings: Mapping[str, Any],
    launch: bool,
    timed: bool,
) -> list[Candidate]:
    """The one algorithm asked for, on its faster path; where no time is asked for, the plan is all."""
    options = tuple(sorted(settings.items()))
    ways = paths(hda, known.name) if path is None else (path,)
    if len(ways) == 1 or not timed:
        return [Candidate(known.name, options, ways[0])]
    both = [_timed(hda, job, Candidate(known.name, options, way), launch) for way in ways]
    return sorted(both, key=lambda c: c.time_ps or 0)
