"""Engines that serve a load together: one that does all, or some that prefill and others that decode.

A user's request reaches an engine after the front end's time. Engines know nothing of each other; whoever is
behind runs next, never beyond the time up to which all that may reach it is known.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from megatile.models.batch import Batch
from megatile.models.deployment import Deployment
from megatile.models.memory import Memory, cache_bytes, memory, require_fit
from megatile.models.operators import collective
from megatile.models.prices import prices
from megatile.models.scheduler import Request, Scheduler, Segment
from megatile.models.step import step_us


@dataclass
class Worker:
    """An engine with the requests that are on their way to it."""

    scheduler: Scheduler
    held: Memory
    arriving: list[tuple[float, int, Request]] = field(default_factory=list)
    sent: int = 0

    def send(self, request: Request, at_us: float) -> None:
        """Let a request reach the engine at a time."""
        self.sent += 1
        heapq.heappush(self.arriving, (at_us, self.sent, request))

    @property
    def waits(self) -> bool:
        """Whether the engine has nothing to do until the next request arrives."""
        return not (self.scheduler.running or self.scheduler.waiting)

    @property
    def clock_us(self) -> float:
        """The time at which the engine does something next; infinite if nothing is on its way."""
        if not self.waits:
            return self.scheduler.now_us
        return max(self.scheduler.now_us, self.arriving[0][0]) if self.arriving else float("inf")

    def run(self, until_us: float) -> list[Request]:
        """Run until a request has left or up to a time; return those that left."""
        scheduler, before = self.scheduler, len(self.scheduler.done)
        scheduler.now_us = self.clock_us
        while self.arriving and self.arriving[0][0] <= scheduler.now_us:
            scheduler.add(heapq.heappop(self.arriving)[2])
        following = self.arriving[0][0] if self.arriving else float("inf")
        # A step that begins now is certain: others are not behind.
        scheduler.advance(min(following, max(until_us, scheduler.now_us + 1e-3)))
        return scheduler.done[before:]


def run_workers(workers: Sequence[Worker], left: Callable[[Worker, Request], None]) -> None:
    """Run engines until nothing is left to do; ``left`` says what follows when a request leaves one."""
    while True:
        clocks = sorted((worker.clock_us, number) for number, worker in enumerate(workers))
        if clocks[0][0] == float("inf"):
            return
        worker = workers[clocks[0][1]]
        for request in worker.run(clocks[1][0] if len(clocks) > 1 else float("inf")):
            left(worker, request)


def make_worker(d: Deployment, requests: Sequence[Request], concurrency: int | None) -> Worker:
    """Return an idle engine whose cache is what the memory has room for."""
    longest = max(r.prompt + r.output for r in requests)
    held = memory(d, requests=1, context=longest)
    require_fit(d, held, 1, longest)
    per_token = cache_bytes(d, longest) / longest
    priced, engine = prices(d.hda, d.library), d.engine
    if not engine.chunked:  # whole prompts: the budget must hold the longest beside decoding requests
        needed = max(r.prompt for r in requests) + min(engine.max_num_seqs, concurrency or len(requests))
        engine = replace(engine, token_budget=max(engine.token_budget, needed))

    def time_us(groups: tuple[tuple[int, int, int], ...]) -> float:
        return step_us(d, Batch.from_groups(groups).share(d.pp), priced)

    return Worker(Scheduler(engine, time_us, int(held.cache_room / per_token) * d.attention_dp), held)


@dataclass(frozen=True)
class Served:
    """Requests that were answered, gaps between their tokens, and what engines did."""

    requests: tuple[Request, ...]
    segments: tuple[Segment, ...]
    memory: Memory
    preemptions: int
    steps: int


@dataclass
class Load:
    """Requests, and the users of a closed loop, who begin evenly over ``ramp_s``."""

    waiting: deque[Request]
    concurrency: int | None = None
    ramp_s: float = 0.0

    def first(self) -> Iterable[Request]:
        """Yield the requests whose time is known before any is answered."""
        users = len(self.waiting) if self.concurrency is None else min(self.concurrency, len(self.waiting))
        for number in range(users):
            request = self.waiting.popleft()
            if self.concurrency is not None:
                request.arrival_us = self.ramp_s * 1e6 * number / users
            yield request

    def next(self, now_us: float) -> Request | None:
        """Return what a user asks who has just been answered."""
        if not self.waiting:
            return None
        request = self.waiting.popleft()
        request.arrival_us = now_us
        return request


def serve_together(d: Deployment, load: Load) -> Served:
    """Serve a load on one replica that prefills and decodes."""
    worker = make_worker(d, load.waiting, load.concurrency)
    frontend_us = d.engine.frontend_ms * 1e3
    for request in load.first():
        worker.send(request, request.arrival_us + frontend_us)

    def left(_: Worker, request: Request) -> None:
        following = load.next(request.end_us)
        if following is not None:
            worker.send(following, following.arrival_us + frontend_us)

    run_workers([worker], left)
    s = worker.scheduler
    return Served(tuple(s.done), tuple(s.segments), worker.held, s.preemptions, s.steps)


def serve_apart(prefill: Deployment, decode: Deployment, load: Load) -> Served:
    """Serve a load on engines that prefill (``prefill.dp`` of them) and others that decode (``decode.dp``).

    The first token comes from the engine that prefills; the cache then goes to one that decodes.
    """
    requests = tuple(load.waiting)
    first = [make_worker(replace(prefill, dp=1), requests, load.concurrency) for _ in range(prefill.dp)]
    second = [make_worker(_decoding(decode), requests, load.concurrency) for _ in range(decode.dp)]
    users: dict[int, Request] = {}
    gaps: list[Segment] = []
    done: list[Request] = []

    def ask(request: Request) -> None:
        worker = min(first, key=_load_of)
        own = Request(request.arrival_us, request.prompt, 1, request.cached)
        users[id(own)] = request
        worker.send(own, request.arrival_us + prefill.engine.frontend_ms * 1e3)

    def left(worker: Worker, own: Request) -> None:
        request = users.pop(id(own))
        if own.prefilled and request.first_us < 0:
            request.first_us = own.end_us
            if request.output > 1:
                hand_over(request)
                return
        else:
            gap = own.first_us - request.first_us
            gaps.append(Segment(1, 1, gap, gap))
            request.preempted = own.preempted
        request.end_us = own.end_us
        done.append(request)
        following = load.next(own.end_us)
        if following is not None:
            ask(following)

    def hand_over(request: Request) -> None:
        """The token that prefill gave is the last of the prompt of what decodes; the rest is cached."""
        own = Request(request.first_us, request.prompt + 1, request.output - 1, request.prompt)
        users[id(own)] = request
        taken = transfer_us(prefill, request.prompt, decode.devices)
        min(second, key=_load_of).send(own, request.first_us + taken)

    for request in load.first():
        ask(request)
    workers = [*first, *second]
    run_workers(workers, left)
    schedulers = [worker.scheduler for worker in workers]
    return Served(
        tuple(done), (*gaps, *(s for own in schedulers for s in own.segments)), second[0].held,
        sum(own.preemptions for own in schedulers), sum(own.steps for own in schedulers),
    )  # fmt: skip


def transfer_us(d: Deployment, tokens: int, others: int) -> float:
    """Return the microseconds in which the cache of a prompt goes from a device to one of ``others`` more, on
    another node unless all fit one."""
    moved = round(cache_bytes(d, tokens))
    ranks = 2 if d.devices + others <= d.node_devices else d.node_devices + 1
    return prices(d.hda, d.library).time_us(collective("send_recv", "cache", "pipeline", 1, ranks, moved))


def _decoding(d: Deployment) -> Deployment:
    """Return a deployment whose requests join the running batch at once."""
    return replace(d, dp=1, engine=replace(d.engine, mixed=True))


def _load_of(worker: Worker) -> int:
    return len(worker.arriving) + len(worker.scheduler.waiting) + worker.scheduler.running
