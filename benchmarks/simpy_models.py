"""The same workloads as plain SimPy models: the reference for the engine's semantics and the speed to beat.

They know nothing of megatile: times come in as numbers, traffic as lists. Every model returns the time
at which everything has ended (in ps), and `per_hop_fabric` the arrival of every message.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

Process = Generator[Any, Any, Any]


# -- a fabric of links, hop by hop --------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """One message: its sender, the (link, busy_ps, latency_ps) of its hops, and the DMA's part."""

    sender: int
    hops: tuple[tuple[Any, int, int], ...]
    startup_ps: int
    occupied_ps: int
    before_ps: int = 0
    """Latency before the first link (out of the memory)."""
    after_ps: int = 0
    """Latency after the last link (into the memory)."""


def per_hop_fabric(queues: Sequence[Sequence[Message]]) -> list[list[int]]:
    """Every sender works through its own list; links are FIFO servers; arrivals per sender and message.

    A sender starts the next message when the tail of the one before has left: that is when its head got its
    turn on the first link, plus the time the narrowest part needs.
    """
    env = simpy.Environment()
    links: dict[Any, simpy.Resource] = {}
    arrivals: list[list[int]] = [[0] * len(q) for q in queues]

    def hold(request: Any, resource: simpy.Resource, busy: int) -> Process:
        yield env.timeout(busy)
        resource.release(request)

    def travel(sender: int, index: int, message: Message, left: simpy.Event) -> Process:
        yield env.timeout(message.startup_ps + message.before_ps)
        tail = env.now + message.occupied_ps
        for hop, (link, busy, latency) in enumerate(message.hops):
            resource = links.setdefault(link, simpy.Resource(env))
            request = resource.request()
            yield request
            env.process(hold(request, resource, busy))
            if hop == 0:
                env.process(leave(left, message.occupied_ps - message.before_ps))
            tail = max(tail, env.now + busy) + latency
            yield env.timeout(latency)
        arrivals[sender][index] = tail + message.after_ps

    def leave(left: simpy.Event, after: int) -> Process:
        yield env.timeout(max(0, after))
        left.succeed()

    def sender(number: int, messages: Sequence[Message]) -> Process:
        for index, message in enumerate(messages):
            left = env.event()
            env.process(travel(number, index, message, left))
            yield left

    for number, messages in enumerate(queues):
        env.process(sender(number, messages))
    env.run()
    return arrivals


# -- the chunked ring with slots and credits -------------------------------------------------------------


@dataclass(frozen=True)
class RingTimes:
    """What one step of a ring costs; see `chunked_ring`."""

    send_ps: int
    """The sender's DMA is busy."""
    flight_ps: int
    """From the tail leaving to its arrival."""
    add_ps: int
    copy_ps: int
    """The receiver's DMA is busy with the copy out of the slot."""
    copy_latency_ps: int
    credit_ps: int


def chunked_ring(n: int, slots: int, t: RingTimes) -> int:
    """Ring all-reduce of n ranks: n-1 steps that add, n-1 steps that copy; queues with slots and credits."""
    env = simpy.Environment()
    data = [simpy.Store(env) for _ in range(n)]
    credits = [simpy.Container(env, init=slots, capacity=slots) for _ in range(n)]
    send_dma = [simpy.Resource(env) for _ in range(n)]
    copy_dma = [simpy.Resource(env) for _ in range(n)]
    vector = [simpy.Resource(env) for _ in range(n)]
    end = [0]

    def send(rank: int, ready: simpy.Event | None) -> Process:
        with send_dma[rank].request() as turn:
            yield turn
            if ready is not None:
                yield ready
            yield env.timeout(t.send_ps)
        yield env.timeout(t.flight_ps)
        yield data[(rank + 1) % n].put(env.now)

    def give_back(rank: int) -> Process:
        yield env.timeout(t.credit_ps)
        yield credits[(rank - 1) % n].put(1)

    def add(rank: int, done: simpy.Event) -> Process:
        with vector[rank].request() as turn:
            yield turn
            yield env.timeout(t.add_ps)
        done.succeed()
        env.process(give_back(rank))
        end[0] = max(end[0], env.now)

    def copy(rank: int, done: simpy.Event) -> Process:
        with copy_dma[rank].request() as turn:
            yield turn
            yield env.timeout(t.copy_ps)
        yield env.timeout(t.copy_latency_ps)
        done.succeed()
        env.process(give_back(rank))
        end[0] = max(end[0], env.now)

    def rank(number: int) -> Process:
        ready: simpy.Event | None = None
        for work in [add] * (n - 1) + [copy] * (n - 1):
            yield credits[number].get(1)
            env.process(send(number, ready))
            yield data[number].get()
            ready = env.event()
            env.process(work(number, ready))

    for number in range(n):
        env.process(rank(number))
    env.run()
    return end[0]


# -- puts and gets through bounded queues, one-sided puts, a contended memory ---------------------------


def producers_and_consumers(pairs: int, count: int, slots: int, t: RingTimes) -> int:
    """Each producer puts ``count`` messages into a bounded queue, its consumer gets them and adds them up."""
    env = simpy.Environment()
    end = [0]

    def send(dma: simpy.Resource, data: simpy.Store) -> Process:
        with dma.request() as turn:
            yield turn
            yield env.timeout(t.send_ps)
        yield env.timeout(t.flight_ps)
        yield data.put(env.now)

    def give_back(credits: simpy.Container) -> Process:
        yield env.timeout(t.credit_ps)
        yield credits.put(1)

    def add(vector: simpy.Resource, credits: simpy.Container) -> Process:
        with vector.request() as turn:
            yield turn
            yield env.timeout(t.add_ps)
        env.process(give_back(credits))
        end[0] = max(end[0], env.now)

    def producer(dma: simpy.Resource, data: simpy.Store, credits: simpy.Container) -> Process:
        for _ in range(count):
            yield credits.get(1)
            env.process(send(dma, data))

    def consumer(vector: simpy.Resource, data: simpy.Store, credits: simpy.Container) -> Process:
        for _ in range(count):
            yield data.get()
            env.process(add(vector, credits))

    for _ in range(pairs):
        data, credits = simpy.Store(env), simpy.Container(env, init=slots, capacity=slots)
        env.process(producer(simpy.Resource(env), data, credits))
        env.process(consumer(simpy.Resource(env), data, credits))
    env.run()
    return end[0]


def puts(n: int, rounds: int, put_ps: int, flight_ps: int, signal_ps: int) -> int:
    """Every unit puts into its neighbour's memory, signals it, and waits for its own signal, in turns."""
    env = simpy.Environment()
    flags = [simpy.Container(env) for _ in range(n)]
    dma = [simpy.Resource(env) for _ in range(n)]
    end = [0]

    def put(number: int, done: simpy.Event) -> Process:
        with dma[number].request() as turn:
            yield turn
            yield env.timeout(put_ps)
        yield env.timeout(flight_ps)
        done.succeed()

    def signal(number: int, done: simpy.Event) -> Process:
        yield done
        yield env.timeout(signal_ps)
        yield flags[(number + 1) % n].put(1)

    def unit(number: int) -> Process:
        for _ in range(rounds):
            done = env.event()
            env.process(put(number, done))
            env.process(signal(number, done))
            yield flags[number].get(1)
        end[0] = max(end[0], env.now)

    for number in range(n):
        env.process(unit(number))
    env.run()
    return end[0]


@dataclass(frozen=True)
class LoadTimes:
    """What a load from a shared memory and the work on it cost; see `contended`."""

    startup_ps: int
    memory_ps: int
    """The shared memory is busy with one load."""
    latency_ps: int
    work_ps: int


def contended(n: int, rounds: int, t: LoadTimes) -> int:
    """n units load from one memory that serves one load at a time, and work on what they loaded.

    Commands are issued without waiting: DMA and vector engine are queues of their own, a load into a buffer
    waits for the work that reads it (two buffers, taken in turns).
    """
    env = simpy.Environment()
    memory = simpy.Resource(env)
    end = [0]

    def load(dma: simpy.Resource, free: simpy.Event | None, done: simpy.Event) -> Process:
        with dma.request() as turn:
            yield turn
            if free is not None:
                yield free
            yield env.timeout(t.startup_ps)
            with memory.request() as served:
                yield served
                yield env.timeout(t.memory_ps)
        yield env.timeout(t.latency_ps)
        done.succeed()

    def work(vector: simpy.Resource, ready: simpy.Event, done: simpy.Event) -> Process:
        with vector.request() as turn:
            yield turn
            yield ready
            yield env.timeout(t.work_ps)
        done.succeed()
        end[0] = max(end[0], env.now)

    for _ in range(n):
        dma, vector = simpy.Resource(env), simpy.Resource(env)
        used: list[simpy.Event] = []
        for number in range(rounds):
            loaded, done = env.event(), env.event()
            env.process(load(dma, used[number - 2] if number > 1 else None, loaded))
            env.process(work(vector, loaded, done))
            used.append(done)
    env.run()
    return end[0]


def loads_and_sends(n: int, rounds: int, slots: int, t: LoadTimes, r: RingTimes) -> int:
    """As in `contended`, n units load from one memory; what they make of it goes round a ring.

    Every round: load, work on it, send it to the next unit (a slot must be free), receive from the one
    before and add that up; a slot is free again when it has been added.
    """
    env = simpy.Environment()
    memory = simpy.Resource(env)
    data = [simpy.Store(env) for _ in range(n)]
    credits = [simpy.Container(env, init=slots, capacity=slots) for _ in range(n)]
    end = [0]

    def load(dma: simpy.Resource, free: list[simpy.Event], done: simpy.Event) -> Process:
        with dma.request() as turn:
            yield turn
            yield from free
            yield env.timeout(t.startup_ps)
            with memory.request() as served:
                yield served
                yield env.timeout(t.memory_ps)
        yield env.timeout(t.latency_ps)
        done.succeed()

    def work(vector: simpy.Resource, ready: simpy.Event | None, done: simpy.Event) -> Process:
        with vector.request() as turn:
            yield turn
            if ready is not None:
                yield ready
            yield env.timeout(t.work_ps)
        done.succeed()
        end[0] = max(end[0], env.now)

    def send(dma: simpy.Resource, ready: simpy.Event, to: int, left: simpy.Event) -> Process:
        with dma.request() as turn:
            yield turn
            yield ready
            yield env.timeout(r.send_ps)
        left.succeed()
        yield env.timeout(r.flight_ps)
        yield data[to].put(env.now)

    def give_back(number: int, added: simpy.Event) -> Process:
        yield added
        yield env.timeout(r.credit_ps)
        yield credits[number].put(1)

    def unit(number: int) -> Process:
        loads, sends, vector = simpy.Resource(env), simpy.Resource(env), simpy.Resource(env)
        used: list[list[simpy.Event]] = []
        for round_ in range(rounds):
            loaded, worked, left, added = (env.event() for _ in range(4))
            env.process(load(loads, used[round_ - 2] if round_ > 1 else [], loaded))
            env.process(work(vector, loaded, worked))
            used.append([worked, left])
            yield credits[(number + 1) % n].get(1)
            env.process(send(sends, worked, (number + 1) % n, left))
            yield data[number].get()
            env.process(work(vector, None, added))
            env.process(give_back(number, added))

    for number in range(n):
        env.process(unit(number))
    env.run()
    return end[0]


# -- a ring in which every message is sent on, and loads before barriers --------------------------------


@dataclass(frozen=True)
class Hop:
    """What a message from one rank to the next costs, and the credit that comes back for it."""

    send_ps: int
    flight_ps: int
    credit_ps: int


def forwarding_ring(
    hops: Sequence[Hop], rounds: int, slots: int, start_ps: int, copy_ps: int, latency_ps: int, add_ps: int
) -> int:
    """Every rank loads its block, then ``rounds`` times sends on what came last and adds what comes next, and
    stores the sum. ``hops[rank]`` is what its messages cost; a slot is free when its message has been added
    and sent on. ``copy_ps`` and ``latency_ps`` are the load's and the store's."""
    n = len(hops)
    env = simpy.Environment()
    data = [simpy.Store(env) for _ in range(n)]
    credits = [simpy.Container(env, init=slots, capacity=slots) for _ in range(n)]
    sending = [simpy.Resource(env) for _ in range(n)]
    vector = [simpy.Resource(env) for _ in range(n)]
    end = [0]

    def load(done: simpy.Event) -> Process:
        yield env.timeout(copy_ps + latency_ps)
        done.succeed()

    def send(rank: int, ready: simpy.Event | None, left: simpy.Event) -> Process:
        with sending[rank].request() as turn:
            yield turn
            if ready is not None:
                yield ready
            yield env.timeout(hops[rank].send_ps)
        left.succeed()
        yield env.timeout(hops[rank].flight_ps)
        yield data[(rank + 1) % n].put(env.now)

    def add(rank: int, ready: simpy.Event, done: simpy.Event) -> Process:
        with vector[rank].request() as turn:
            yield turn
            if not ready.processed:
                yield ready
            yield env.timeout(add_ps)
        done.succeed()

    def give_back(rank: int, added: simpy.Event, left: simpy.Event) -> Process:
        yield added
        yield left
        yield env.timeout(hops[rank - 1].credit_ps)
        yield credits[rank - 1].put(1)

    def rank(number: int) -> Process:
        yield env.timeout(start_ps)
        loaded = env.event()
        env.process(load(loaded))
        added: simpy.Event | None = None
        for _ in range(rounds):
            yield credits[number].get(1)
            left = env.event()
            env.process(send(number, loaded if added is None else None, left))
            if added is not None:
                env.process(give_back(number, added, left))
            yield data[number].get()
            added = env.event()
            env.process(add(number, loaded, added))
        yield loaded if added is None else added
        yield env.timeout(copy_ps + latency_ps)
        end[0] = max(end[0], env.now)

    for number in range(n):
        env.process(rank(number))
    env.run()
    return end[0]


def loads_and_barriers(n: int, rounds: int, loads: int, t: LoadTimes, barrier_ps: int) -> int:
    """n units load ``loads`` blocks each from one memory that serves one load at a time, work on each, and
    meet at a barrier; that ``rounds`` times. Every load has a buffer of its own, free again when the work on
    it in the round before has been done."""
    env = simpy.Environment()
    memory = simpy.Resource(env)
    dma = [simpy.Resource(env) for _ in range(n)]
    vector = [simpy.Resource(env) for _ in range(n)]
    meetings = [env.event() for _ in range(rounds)]
    came = [0] * rounds
    end = [0]

    def load(unit: int, free: simpy.Event | None, done: simpy.Event) -> Process:
        with dma[unit].request() as turn:
            yield turn
            if free is not None:
                yield free
            yield env.timeout(t.startup_ps)
            with memory.request() as served:
                yield served
                yield env.timeout(t.memory_ps)
        yield env.timeout(t.latency_ps)
        done.succeed()

    def work(unit: int, ready: simpy.Event, done: simpy.Event) -> Process:
        with vector[unit].request() as turn:
            yield turn
            yield ready
            yield env.timeout(t.work_ps)
        done.succeed()
        end[0] = max(end[0], env.now)

    def meet(round_: int) -> Process:
        yield env.timeout(barrier_ps)
        meetings[round_].succeed()

    def unit(number: int) -> Process:
        used: list[simpy.Event | None] = [None] * loads
        for round_ in range(rounds):
            for k in range(loads):
                loaded, done = env.event(), env.event()
                env.process(load(number, used[k], loaded))
                env.process(work(number, loaded, done))
                used[k] = done
            came[round_] += 1
            if came[round_] == n:
                env.process(meet(round_))
            yield meetings[round_]
        end[0] = max(end[0], env.now)

    for number in range(n):
        env.process(unit(number))
    env.run()
    return end[0]
