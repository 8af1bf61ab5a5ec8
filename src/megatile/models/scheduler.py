"""Continuous batching: which requests each step of an inference engine holds, and how long the steps take.

Requests wait, are prefilled in chunks within the token budget, decode one token per step and leave. Between
two events (a request arrives, begins, ends, or the cache is full) a step's time is affine in the cached
tokens, so all steps between them are one evaluation at the first and one at the last.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from megatile.models.engines import ServingEngine
from megatile.models.schemes import ModelError

StepUs = Callable[[tuple[tuple[int, int, int], ...]], float]
"""Microseconds of a step, of its (requests, new, cached) groups."""
MAX_EVENTS = 50_000_000
"""Steps of one simulation of an engine."""


@dataclass(eq=False)
class Request:
    """A request: when it arrives, its tokens, and what became of it (microseconds)."""

    arrival_us: float
    prompt: int
    output: int
    cached: int = 0
    """Tokens of the prompt that are in the cache already (a prefix hit)."""
    prefilled: int = 0
    generated: int = 0
    first_us: float = -1.0
    end_us: float = -1.0
    finishes_at: int = -1
    """The decode step in which its last token comes."""
    preempted: int = 0

    @property
    def to_prefill(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return self.prompt + self.generated - self.prefilled


@dataclass
class Segment:
    """Steps in a row with the same requests: how many, and the gaps of the first and of the last."""

    steps: int
    requests: int
    first_us: float
    last_us: float


@dataclass
class Scheduler:
    """One engine with its waiting, prefilling and decoding requests."""

    engine: ServingEngine
    step_us: StepUs
    cache_tokens: int
    """Tokens that the KV cache holds."""
    now_us: float = 0.0
    waiting: deque[Request] = field(default_factory=deque)
    prefilling: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    """Decoding requests in the order in which they began; those that have left are skipped."""
    finishing: list[tuple[int, int, Request]] = field(default_factory=list)
    decoding: int = 0
    context: int = 0
    """Cached tokens of all decoding requests."""
    decode_steps: int = 0
    segments: list[Segment] = field(default_factory=list)
    done: list[Request] = field(default_factory=list)
    steps: int = 0
    preemptions: int = 0
    _order: int = 0
    _pauses: list[tuple[int, float]] = field(default_factory=list)
    """Prefill steps since the last decode step: how many requests each kept waiting, and how long."""

    def add(self, request: Request) -> None:
        """Take a request; one that can never fit the cache is an error."""
        if self._room(request.prompt + request.output) > self.cache_tokens:
            raise ModelError(
                f"a request of {request.prompt} + {request.output} tokens exceeds the KV cache, which holds "
                f"{self.cache_tokens} tokens",
                advice="shorter requests, more devices, or kv_dtype='fp8'",
            )
        self.waiting.append(request)

    @property
    def running(self) -> int:
        return self.decoding + len(self.prefilling)

    def _room(self, tokens: int) -> int:
        """Return tokens of whole blocks."""
        return -(-tokens // self.engine.block_tokens) * self.engine.block_tokens

    @property
    def cached(self) -> int:
        """Tokens in the cache; half a block of each request is empty on average."""
        half = (self.engine.block_tokens // 2) * self.running
        return self.context + sum(r.prefilled for r in self.prefilling) + half

    def advance(self, until_us: float) -> None:
        """Run steps until a request has left or the next one arrives; let time pass where none is here."""
        left = len(self.done)
        while len(self.done) == left and self.now_us < until_us:
            if not self.running and not self.waiting:
                self.now_us = until_us
                return
            self._step(until_us)

    def _step(self, until_us: float) -> None:
        chunks = self._prefill_chunks()
        if not chunks:
            self._decode(until_us)
            return
        groups = [(1, tokens, r.prefilled) for r, tokens in chunks]
        if self.engine.mixed:
            self._make_room(1)
        decode = self.decoding if self.engine.mixed else 0
        if decode:
            groups.append((decode, 1, max(1, self.context // decode)))
        taken = self.step_us(tuple(groups))
        self._pass(taken)
        if decode:
            self._decoded(1, decode, taken, taken)
        elif self.decoding:
            self._pauses.append((self.decoding, taken))
        for request, tokens in chunks:
            request.prefilled += tokens
            if request.to_prefill == 0:
                self.prefilling.remove(request)
                self._begin_decoding(request)

    def _prefill_chunks(self) -> list[tuple[Request, int]]:
        """Return the prompts of the next step with their tokens, and admit those that begin."""
        engine = self.engine
        budget = engine.token_budget - (self.decoding if engine.mixed else 0)
        free = self.cache_tokens - self.cached
        chunks: list[tuple[Request, int]] = []
        for request in self.prefilling:
            tokens = min(request.to_prefill, budget)
            if tokens > 0:
                chunks.append((request, tokens))
                budget -= tokens
        while self.waiting and budget > 0 and self.running < engine.max_num_seqs:
            request = self.waiting[0]
            whole = request.to_prefill
            if self._room(request.prompt + request.generated + 1) > free:
                break
            if not engine.chunked and whole > budget and chunks:
                break  # one that is alone in its step runs whole: whoever serves it gave it the budget
            tokens = min(whole, budget) if engine.chunked else whole
            self.waiting.popleft()
            request.prefilled = min(request.cached, request.prompt - 1)
            tokens = min(tokens, request.to_prefill)
            self.prefilling.append(request)
            chunks.append((request, tokens))
            budget -= tokens
            free -= self._room(request.prompt + request.generated + 1)
        return chunks

    def _begin_decoding(self, request: Request) -> None:
        request.generated += 1
        if request.first_us < 0:
            request.first_us = self.now_us
        if request.generated >= request.output:
            self._finish(request)
            return
        self.decoding += 1
        self.context += request.prompt + request.generated
        request.finishes_at = self.decode_steps + request.output - request.generated
        self._order += 1
        heapq.heappush(self.finishing, (request.finishes_at, self._order, request))
        self.admitted.append(request)

    def _decode(self, until_us: float) -> None:
        """Decode until the next event."""
        self._make_room(1)
        requests = self.decoding
        if not requests:
            if not self.prefilling and self.waiting:
                raise ModelError(
                    f"{len(self.waiting)} requests wait and none can run",
                    advice="raise memory_share, token_budget or max_num_seqs",
                )
            return
        steps = self.finishing[0][0] - self.decode_steps
        steps = max(1, min(steps, (self.cache_tokens - self.cached) // requests))
        first = self.step_us(((requests, 1, max(1, self.context // requests)),))
        last = first
        if steps > 1:
            last = self.step_us(((requests, 1, self.context // requests + steps - 1),))
            room = until_us - self.now_us
            if steps * (first + last) / 2 > room:
                steps = max(1, min(steps, ceil(room / ((first + last) / 2))))
                last = self.step_us(((requests, 1, self.context // requests + steps - 1),))
        self._pass(steps * (first + last) / 2, steps)
        self._decoded(steps, requests, first, last)

    def _decoded(self, steps: int, requests: int, first: float, last: float) -> None:
        """Count steps in which ``requests`` requests got a token each, and let those leave that are done."""
        gap, begun = first + sum(us for _, us in self._pauses), 0
        for before, pause in self._pauses:  # who began to decode later waited for fewer pauses
            if before > begun:
                self.segments.append(Segment(1, before - begun, gap, gap))
            gap, begun = gap - pause, max(begun, before)
        if requests > begun:
            self.segments.append(Segment(1, requests - begun, first, first))
        if steps > 1:
            slope = (last - first) / (steps - 1)
            self.segments.append(Segment(steps - 1, requests, first + slope, last))
        self._pauses.clear()
        self.decode_steps += steps
        self.context += steps * requests
        while self.finishing and self.finishing[0][0] <= self.decode_steps:
            _, _, request = heapq.heappop(self.finishing)
            if request.finishes_at < 0:
                continue
            request.generated = request.output
            request.finishes_at = -1
            self.decoding -= 1
            self.context -= request.prompt + request.output
            self._finish(request)

    def _finish(self, request: Request) -> None:
        request.end_us = self.now_us
        self.done.append(request)

    def _make_room(self, tokens: int) -> None:
        """Preempt the latest requests until every decoding one has room for so many tokens."""
        while self.decoding > 1 and self.cached + self.decoding * tokens > self.cache_tokens:
            request = self.admitted.pop()
            if request.finishes_at < 0:
                continue
            remaining = request.finishes_at - self.decode_steps
            request.generated = request.output - remaining
            request.finishes_at, request.prefilled = -1, 0
            request.preempted += 1
            self.preemptions += 1
            self.decoding -= 1
            self.context -= request.prompt + request.generated
            self.finishing = [entry for entry in self.finishing if entry[2] is not request]
            heapq.heapify(self.finishing)
            self.waiting.appendleft(request)

    def _pass(self, taken_us: float, steps: int = 1) -> None:
        self.now_us += taken_us
        self.steps += steps
        if self.steps > MAX_EVENTS:
            raise ModelError(f"more than {MAX_EVENTS} steps", advice="fewer requests")
