"""How an algorithm is chosen: candidates are priced, the cheapest are simulated, the fastest is taken.

Prices are lower bounds of the simulated time, so nothing that could win is left out among them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megatile.collectives.algorithms import algorithms, find_algorithm
from megatile.collectives.algorithms.hierarchical import overlaps
from megatile.collectives.candidates import Candidate, Key
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.libraries import library_way, protocols, transport_of
from megatile.collectives.pace import paced, rule_ps
from megatile.collectives.registry import Algorithm
from megatile.core.errors import MegatileError
from megatile.core.progress import tell
from megatile.cost.cheapest import cheapest
from megatile.cost.price import lower_bound
from megatile.cost.stream_counts import Values, Walk, value_of
from megatile.hda import HDA
from megatile.plan import model as pm
from megatile.plan.model import Plan, PlanError, Transport, with_transport
from megatile.sim import TimeBudgetExceeded, simulate
from megatile.timing.collective_choice import library_of, rule_of
from megatile.timing.collective_rule import CHAINS, Way
from megatile.timing.transports import KERNELS, has_library

MAX_SIMULATED_CANDIDATES = 4
"""At most so many of the cheapest candidates are simulated, with more ranks than ``MAX_RANKS_TO_TRY_ALL``."""
GUESSES = ("in_network", "in_network_tree", "hierarchical", "direct", "ring", "dissemination")
"""What is simulated first, if it can do the job."""
MAX_RANKS_TO_TRY_ALL = 64
"""Among so many ranks, direct exchange is worth a try, and so is every candidate."""
NAMED_ONLY = ("one_shot",)
"""Algorithms of engines' own kernels, which are tried where these are."""
DEARER = -1
"""In place of a price: more chunks made it dearer."""
CHUNKED_FROM = 1 << 20
"""Bytes from which cutting blocks into chunks is tried."""
DEEP = ("tree", "node_tree", "in_network_tree")
"""Algorithms with long paths, for which many chunks are tried; libraries cut even small messages for them."""
LANED = ("ring_bidirectional", "multi_ring", "rail_rings", "hamilton")
"""Rings of several lanes overlap as they are; cutting them into chunks is not tried."""
LARGE = 16 << 20
"""Bytes from which rings on all rails between nodes are the first guess."""


def plan_of(candidate: Candidate, job: Job) -> Plan:
    return find_algorithm(candidate.algorithm).plan(job, **dict(candidate.options))


def on_transport(
    plan: Plan,
    candidate: Candidate,
    job: Job,
    hda: HDA,
    library: str | None = None,
    by: str | None = None,
    way: Way | None = None,
) -> Plan:
    """Return a candidate's plan with the transport on which its messages travel; ``by``: not on a kernel."""
    transport = transport_of(candidate, job, hda, library, way) if by is None else Transport(by, name=by)
    if transport is None:
        return plan
    if transport.kind in KERNELS:
        operation, nbytes = job.library_call
        nbytes = job.most_moved * job.itemsize if job.splits else nbytes
        return with_transport(plan, transport, operation, job.ranks, nbytes)
    channels = tuple(replace(channel, transport=transport.name) for channel in plan.channels)
    return replace(plan, channels=channels, transports=(transport,))


@dataclass
class Floors:
    """What is known from smaller sizes of the same collective: prices only grow with size, so they are lower
    bounds still, and the best candidate is a good first guess."""

    nbytes: int = 0
    prices: dict[Key, int] = field(default_factory=dict)
    best: Candidate | None = None

    def learn(self, nbytes: int, ranking: Sequence[Candidate]) -> None:
        self.nbytes, self.best = nbytes, ranking[0]
        self.prices.update({c.key: c.price_ps for c in ranking if c.price_ps is not None})


def rank(
    hda: HDA,
    job: Job,
    among: Sequence[str] | None = None,
    launch: bool = True,
    floors: Floors | None = None,
    library: str | None = None,
    protocol: str | None = None,
    by: str | None = None,
    shapes: bool = False,
) -> list[Candidate]:
    """Return all candidates: simulated ones by time, then priced ones, then the unfit with their reason.
    ``shapes``: the time is that of the library's rule, and the Plan that comes nearest by itself is looked
    for."""
    known_prices: dict[Key, int] = {}
    search, guess = _Search(hda, job, among, launch, library, protocol, by, shapes), None
    if floors is not None and floors.best is not None and floors.nbytes <= job.nbytes:
        guess, known_prices = floors.best, floors.prices
        if guess.protocol not in search.protocols(algorithms()[guess.algorithm]):
            guess = None
    search.find_too_large()
    guess = guess or search.first_guess()
    first = search.timed(guess) if guess else None
    timed = {first.key: first} if first is not None and first.why_not is None else {}
    priced: list[Candidate] = []
    unfit = [first] if first is not None and first.why_not is not None else []
    for number, known in enumerate(algorithms().values()):
        if not search.asked_for(known.name):
            continue
        tell(f"pricing {known.name}", number, len(algorithms()))
        reason = known.reason_against(job)
        if reason is None:
            for each in search.protocols(known):
                priced += search.priced_variants(known, each, timed, known_prices)
        elif job.operation in known.operations:
            unfit.append(Candidate(known.name, why_not=reason))
    if search.too_large:
        left_out = ", ".join(dict.fromkeys(label.partition("(")[0] for label, _ in search.too_large))
        warnings.warn(
            f"{job.operation} over {job.ranks} ranks: not all variants of {left_out} were tried, as they "
            "take long to simulate; name one to wait for it",
            stacklevel=2,
        )
    usable = {c.key: c for c in priced if c.price_ps is not None}
    if not usable:
        reasons = "; ".join(dict.fromkeys(f"{c.label}: {c.why_not}" for c in [*priced, *unfit]))
        raise CollectiveError(
            f"no algorithm can do {job.operation} here ({reasons or 'none that was allowed does it'})",
            advice="name one of those that are too large, and wait; or ask for fewer ranks"
            if search.too_large
            else None,
        )
    usable = dict(sorted(usable.items(), key=lambda item: (item[1].price_ps or 0, item[0])))
    finalists = list(usable)[: None if job.ranks <= MAX_RANKS_TO_TRY_ALL else MAX_SIMULATED_CANDIDATES]

    def time(key: Key) -> int | None:
        tell(f"simulating {key[0]}", finalists.index(key), len(finalists))
        found = search.timed(usable[key])
        if found.why_not is not None:
            unfit.append(found)
        return found.time_ps

    times = cheapest(
        sorted({*finalists, *timed} - {c.key for c in unfit}),
        time,
        lambda key: usable[key].price_ps or 0,
        known={key: c.time_ps or 0 for key, c in timed.items()},
        ties=True,
    ).times
    if not times:
        raise CollectiveError(f"{unfit[-1].label}: {unfit[-1].why_not}", advice="use a smaller size")
    without = {*times, *(c.key for c in unfit)}
    ranking = [
        *(replace(usable.get(key) or timed[key], time_ps=took) for key, took in times.items()),
        *(c for key, c in usable.items() if key not in without),
        *(c for c in priced if c.price_ps is None),
        *unfit,
    ]
    if floors is not None:
        floors.learn(job.nbytes, ranking)
    return ranking


@dataclass
class _Search:
    """What is asked for, and what is known on the way. Plans are kept for other protocols, and with them
    what was found out about the machine, as far as there are few ranks."""

    hda: HDA
    job: Job
    among: Sequence[str] | None
    launch: bool
    library: str | None
    protocol: str | None
    by: str | None
    shapes: bool = False
    too_large: dict[Key, str] = field(default_factory=dict)
    """Why candidates are not tried, by label and protocol."""
    plans: dict[str, Plan] = field(default_factory=dict)

    def asked_for(self, name: str) -> bool:
        return name not in NAMED_ONLY if self.among is None else name in self.among

    @property
    def ring_piece(self) -> int | None:
        return rule_of(self.hda, self.library, self.job.scale).figures.ring_piece if self.library else None

    def protocols(self, known: Algorithm) -> tuple[str, ...]:
        """Return the protocols of an algorithm, or the one that was asked for if it has it."""
        every = _copied(known) if self.by else protocols(self.hda, known, self.job)
        return tuple(each for each in every if self.protocol in (None, each))

    def first_guess(self) -> Candidate | None:
        """Return a candidate that is rarely bad: what must take longer than it need not be priced to the
        end."""
        large = self.job.nbytes >= LARGE and self.job.ranks <= MAX_RANKS_TO_TRY_ALL
        for name in ("rail_rings", *GUESSES) if large else GUESSES:
            if name not in algorithms() or not self.asked_for(name):
                continue
            possible = self.protocols(algorithms()[name])
            if not possible or algorithms()[name].reason_against(self.job):
                continue
            guess = Candidate(name, tuple(_guessed_options(name, self.job).items()), possible[0])
            if guess.key not in self.too_large:
                return guess
        return None

    def priced_variants(
        self,
        known: Algorithm,
        protocol: str,
        timed: Mapping[Key, Candidate],
        known_prices: Mapping[Key, int],
    ) -> Iterator[Candidate]:
        """Yield an algorithm's option sets with prices; more chunks are tried as long as they make it
        cheaper.

        A price above the time of the first guess need not be exact: what cost more than that at a smaller
        size keeps its price. A guess of several lanes has more messages than all others together: it is left
        without.
        """
        enough = next((c.time_ps for c in timed.values()), None)
        before: int | None = None
        for options in variants(known, self.job, self.ring_piece):
            alike = "chunks" in options
            if alike and before == DEARER:
                continue
            candidate = Candidate(known.name, tuple(sorted(options.items())), protocol)
            if known.name in LANED and candidate.key in timed:
                continue
            if candidate.key in self.too_large:
                yield replace(candidate, why_not=self.too_large[candidate.key])
                continue
            floor = known_prices.get(candidate.key)
            if floor is not None and enough is not None and floor > enough:
                found = replace(candidate, price_ps=floor)
            else:
                found = self.priced(candidate)
            yield found
            if alike:
                dearer = before is not None and found.price_ps is not None and found.price_ps > before
                before = DEARER if dearer else found.price_ps

    def find_too_large(self) -> None:
        """With many ranks, try the candidates that are cheapest to simulate, for a few seconds."""
        if self.job.ranks <= MAX_RANKS_TO_TRY_ALL:
            return
        efforts: list[tuple[int, str, str]] = []
        for known in algorithms().values():
            if not self.asked_for(known.name) or known.reason_against(self.job):
                continue
            for options in variants(known, self.job, self.ring_piece):
                candidate = Candidate(known.name, tuple(sorted(options.items())))
                try:
                    needed = effort(plan_of(candidate, self.job))
                except MegatileError:
                    continue  # it is refused with its reason when it is priced
                efforts += [(needed, candidate.label, each) for each in self.protocols(known)]
        spent = 0
        for needed, label, protocol in sorted(efforts):
            if needed > MAX_COMMANDS_OF_A_TRIAL or spent + needed > MAX_COMMANDS_OF_ALL_TRIALS:
                self.too_large[label, protocol] = (
                    f"too large: about {needed / 1e6:.3g} million commands to simulate"
                )
            else:
                spent += needed

    def plan(self, candidate: Candidate) -> Plan:
        plan = self.plain_plan(candidate)
        library = own_way(self.hda, self.job, candidate, self.library)
        return on_transport(plan, candidate, self.job, self.hda, library, self.by)

    def plain_plan(self, candidate: Candidate) -> Plan:
        label = candidate.label
        if label not in self.plans:
            if self.job.ranks > MAX_RANKS_TO_TRY_ALL:
                self.plans.clear()
            self.plans[label] = plan_of(candidate, self.job)
        return self.plans[label]

    def priced(self, candidate: Candidate) -> Candidate:
        try:
            plan = self.plan(candidate)
            least = None if self.shapes else rule_ps(plan, self.job, self.hda)
            if least is None:
                least = lower_bound(plan, self.hda, launch=self.launch)
        except TimeBudgetExceeded:
            raise
        except MegatileError as problem:
            return replace(candidate, why_not=problem.message)
        return replace(candidate, price_ps=int(least))

    def timed(self, candidate: Candidate) -> Candidate:
        plan = self.plan(candidate)
        plan = plan if self.shapes else paced(plan, self.job, self.hda)
        return _timed(self.hda, candidate, plan, self.launch)


def own_way(hda: HDA, job: Job, candidate: Candidate, library: str | None) -> str | None:
    """Return whose kernel a candidate is: with options of one's own it is no longer what a library does."""
    return "own" if library is None and candidate.options and has_library(hda, job.scale) else library


def _guessed_options(name: str, job: Job) -> dict[str, Any]:
    if name == "rail_rings" and job.operation == "all_reduce":
        return {"lag": 2}
    if name == "in_network_tree" and job.nbytes >= CHUNKED_FROM:
        return {"chunks": 16}
    if name == "hierarchical" and job.ranks <= MAX_RANKS_TO_TRY_ALL and not overlaps(job):
        return {"inner": "direct"}
    return {}


def variants(known: Algorithm, job: Job, ring_piece: int | None = None) -> Iterator[dict[str, Any]]:
    """Option sets worth trying; a library's ring is cut from ``ring_piece`` for each rank on, a chain always:
    each of its ranks passes on everything."""
    yield {}
    start = CHUNKED_FROM >> 4 if known.name == "node_tree" else CHUNKED_FROM
    if ring_piece is not None and known.name == "ring" and job.operation not in CHAINS:
        start = job.ranks * ring_piece
    overlapped = "overlap" in known.options and overlaps(job)
    if "chunks" in known.options and job.nbytes >= start and not overlapped and known.name not in LANED:
        deep = known.name in DEEP or job.operation in CHAINS
        yield from ({"chunks": n} for n in ((4, 16, 64) if deep else (4,)))
    if "lag" in known.options and job.operation == "all_reduce":
        yield {"lag": 2}
    if "both_ways" in known.options and any(job.wrap):
        yield {"both_ways": True}
    if overlapped:
        yield {"overlap": False}
    if "near" in known.options and job.operation != "all_reduce" and len(job.nesting) > 1:
        yield from ({"near": True} for _ in range(job.count % job.ranks == 0))
    if "inner" in known.options:
        yield {"inner": "direct"}
        if job.operation == "all_reduce" and job.reduces and job.combined in job.reduces[-1]:
            yield {"outer": "in_network"}


def _timed(hda: HDA, candidate: Candidate, plan: Plan, launch: bool) -> Candidate:
    try:
        found = simulate(plan, machine=hda, launch=launch, record=False)
    except PlanError as problem:  # its queues do not fit the memory
        return replace(candidate, why_not=problem.message)
    return replace(candidate, time_ps=found.time_ps)


def named(
    hda: HDA,
    job: Job,
    known: Algorithm,
    protocol: str | None,
    settings: Mapping[str, Any],
    launch: bool,
    by: str | None = None,
) -> list[Candidate]:
    """Return the one algorithm asked for: on the protocol that the machine's library takes, or the
    fastest."""
    options = tuple(sorted(settings.items()))
    possible = _copied(known) if by else protocols(hda, known, job)
    if not possible:
        raise CollectiveError(f"'{known.name}' is done by the network: copy engines do not reduce")
    if protocol not in (None, *possible) and has_library(hda, job.scale):
        advice = f"use {' or '.join(possible)}"
        raise CollectiveError(f"'{known.name}' has no protocol '{protocol}'", advice=advice)
    open_choice = len(possible) > 1 and protocol is None and not settings
    library = library_of(hda, job.scale) if open_choice else None
    way = library_way(hda, job, library, launch=launch, algorithm=known.name) if library else None
    if way is not None:
        protocol = way.protocol
    if protocol is not None or len(possible) == 1:
        return [Candidate(known.name, options, protocol or possible[0])]
    plan = known.plan(job, **settings)
    candidates = [Candidate(known.name, options, each) for each in possible]
    own = "own" if settings else None
    every = [
        _timed(hda, c, paced(on_transport(plan, c, job, hda, own), job, hda), launch) for c in candidates
    ]
    if every[0].why_not is not None:
        raise PlanError(every[0].why_not)
    return sorted(every, key=lambda c: c.time_ps or 0)


def _copied(known: Algorithm) -> tuple[str, ...]:
    """Return the protocols of an algorithm by copy engines, which cannot let a switch reduce."""
    return () if known.protocol else ("Simple",)


# --- how much work it is to simulate a plan, estimated without running it -------------------------

MAX_COMMANDS_OF_A_TRIAL = 3_000_000
"""Commands that a plan may have to be tried without being named; a few seconds."""
MAX_COMMANDS_OF_ALL_TRIALS = 4_000_000
"""Of all plans that are tried for one choice."""

QUEUE = 100
"""What a queue with its path costs to set up, in commands."""
SAMPLES = 5
"""Rounds of a loop that are looked at."""


def effort(plan: pm.Plan) -> int:
    """Return about how many commands a plan issues, its queues counted as ``QUEUE`` commands each."""
    queues = sum(plan.units * channel.members for channel in plan.channels)
    return round(sum(_Commands(stream).found for stream in plan.streams)) + QUEUE * queues


class _Commands(Walk):
    """Counts the commands of a stream by some of its units and some rounds of its loops."""

    def __init__(self, stream: pm.Stream) -> None:
        self.found = 0.0
        units = np.concatenate([np.arange(*run) for run in stream.units])
        some = units[:: max(1, len(units) // 1024)]
        self.block(stream.body, {"unit": some}, np.full(len(some), len(units) / len(some)))

    def command(self, s: Any, known: Values, times: Any) -> None:
        self.found += times.sum()

    def loop(self, s: pm.Loop, known: Values, times: Any) -> None:
        bounds = [value_of(e, known) for e in (s.start, s.stop, s.step)]
        if any(b is None for b in bounds):
            self.block(s.body, known, 8 * times)
            return
        start, stop, step = (np.broadcast_to(b, times.shape) for b in bounds)
        trips = np.maximum(0, -(-(stop - start) // np.where(step == 0, 1, step)))
        most = int(trips.max(initial=0))
        rounds = np.unique(np.linspace(0, max(0, most - 1), SAMPLES).astype(np.int64)).tolist()
        for at in rounds:
            chosen = times * (at < trips) * most / len(rounds)
            self.block(s.body, {**known, s.index: start + step * at}, chosen)
