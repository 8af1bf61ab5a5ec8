"""The workers of a host: each has a clock, submits launches and waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from megatile.core.limits import TimeBudgetExceeded, checked_seconds, enough_memory
from megatile.core.quantities import format_time, whole
from megatile.plan.model import Plan
from megatile.sim.launches import CANCELLED, Launch, SessionError
from megatile.sim.simulation import NEVER, Simulation


class Worker:
    """One thread of the host with a clock of its own."""

    def __init__(self, session: Any, name: str) -> None:
        self.session = session
        self.name = name
        self.clock_ps = session.now_ps
        self.pending: list[Launch] = []
        """Launches that it has submitted and not yet waited for."""
        self.waits_for: list[Launch] = []
        self.waiting = False
        self._ended = 0
        """The first of those it waits for have ended."""

    def __repr__(self) -> str:
        return f"Worker({self.name}, {format_time(self.clock_ps)})"

    @property
    def blocked(self) -> bool:
        """Whether it waits for something that has not ended."""
        while self._ended < len(self.waits_for) and self.waits_for[self._ended].over:
            self._ended += 1
        return self._ended < len(self.waits_for)

    def submit(self, plan: Plan, inputs: Mapping[str, Any] | None = None, **options: Any) -> Launch:
        """As `Session.submit`, at this worker's clock."""
        return self.session.submit(plan, inputs, worker=self, **options)

    def launch(self, plan: Plan, inputs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        return self.session.launch(plan, inputs, worker=self, **options)

    def install(self, plan: Plan, units: Iterable[int] | None = None) -> int:
        return self.session.install(plan, units, worker=self)

    def wait(self, *launches: Launch, **budget: Any) -> Any:
        return self.session.wait(*launches, worker=self, **budget)

    def block(self, *launches: Launch) -> None:
        """Wait for these (or for all that it has submitted) without letting time pass; see `advance`."""
        self.session.check_launches(launches)
        self.waits_for, self.waiting, self._ended = list(launches) or list(self.pending), True, 0

    def give_up(self) -> list[Launch]:
        """Wait no longer; what has not ended can be waited for again."""
        late = [launch for launch in self.waits_for if not launch.over]
        self.waits_for, self.waiting, self._ended = [], False, 0
        return late

    def close(self) -> None:
        """It does nothing more: time need not wait for it."""
        if self in self.session.workers:
            self.session.workers.remove(self)

    def results(self) -> list[Any]:
        """Return what it has waited for; its clock is then at the end of the last of them."""
        waited = self.waits_for
        self.waits_for, self.waiting, self._ended = [], False, 0
        over = {id(launch) for launch in waited}
        for worker in {launch.worker for launch in waited}:
            worker.pending = [p for p in worker.pending if id(p) not in over]
        self.clock_ps = max([self.clock_ps, *(w.end_ps for w in waited if w.end_ps is not None)])
        for launch in waited:
            if launch.error is not None:
                raise launch.error
            if launch.state == CANCELLED:
                raise SessionError(f"launch {launch.number} ('{launch.name}') was cancelled")
        return [launch.result for launch in waited]


class Host:
    """The workers of one machine, which let time pass (`step`) until what they wait for has ended."""

    simulation: Simulation

    def __init__(self) -> None:
        self.now_ps = 0
        """How far time has come."""
        self.workers: list[Worker] = []
        self.host = self.worker("host")

    def worker(self, name: str | None = None) -> Worker:
        """Another thread of the host; its clock begins now."""
        self.workers.append(Worker(self, name or f"worker {len(self.workers)}"))
        return self.workers[-1]

    def _worker(self, worker: Worker | None) -> Worker:
        if worker is not None and (not isinstance(worker, Worker) or worker.session is not self):
            raise SessionError(
                f"{worker!r} is not a worker of this session", advice="worker=session.worker(name)"
            )
        return worker or self.host

    def check_launches(self, launches: Iterable[Any]) -> None:
        for launch in launches:
            if not isinstance(launch, Launch) or launch.worker.session is not self:
                raise SessionError(
                    f"{launch!r} is not a launch of this session", advice="wait for what submit() gave"
                )

    def step(self, until: int = NEVER, deadline: float | None = None) -> bool:
        """Let time pass until a launch has ended; whether one has, before ``until`` and the deadline."""
        raise NotImplementedError

    def wait(
        self,
        *launches: Launch,
        worker: Worker | None = None,
        budget_ps: int | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Let time pass until these launches have ended: the `Result` of one, a list for several or (without
        arguments) for all that were submitted and not waited for.

        ``budget_ps`` of simulated time or ``seconds`` of wall-clock time that do not suffice raise
        `TimeBudgetExceeded`.
        """
        single = len(launches) == 1
        if not launches and worker is None:
            launches = tuple(p for w in self.workers for p in w.pending)
        worker = self._worker(worker)
        until = NEVER
        if budget_ps is not None:
            until = max(self.now_ps, worker.clock_ps) + whole_number("budget_ps", budget_ps)
        deadline = (
            None if seconds is None else monotonic() + checked_seconds(seconds, "seconds", SessionError)
        )
        worker.block(*launches)
        try:
            plans = [launch.plan for launch in worker.waits_for]
            with enough_memory(f"plan '{plans[0].name}' of {plans[0].units} units" if plans else "a session"):
                while worker.blocked and self.step(until, deadline):
                    pass
        except BaseException:
            worker.give_up()
            raise
        if worker.blocked:
            late = worker.give_up()
            if budget_ps is not None and deadline is None:
                worker.clock_ps = max(self.now_ps, worker.clock_ps)
            raise self.too_late(late[0])
        results = worker.results()
        return results[0] if single else results

    def too_late(self, launch: Launch) -> TimeBudgetExceeded:
        """Say how far a launch is that has not ended within the time given."""
        simulation = launch.simulation or self.simulation
        return TimeBudgetExceeded(
            f"plan '{launch.name}' has not ended within the time given: {simulation.how_far()}",
            advice="wait for it again, give more time, or find bounds by mt.price",
        )

    def advance(self) -> list[Worker]:
        """Let time pass until the first worker can go on; those that can. All workers must be blocked."""
        while True:
            woken = [w for w in self.workers if w.waiting and not w.blocked]
            if woken or not any(w.waiting for w in self.workers):
                return woken
            for worker in self._not_waiting():
                raise SessionError(
                    f"{worker} is not blocked, so time cannot pass",
                    advice="block() it, or close() it when it has ended",
                )
            if not self.step():
                raise self.too_late(next(p for w in self.workers for p in w.waits_for if not p.over))

    def _not_waiting(self) -> list[Worker]:
        """Return the workers that may still submit something."""
        return [w for w in self.workers if not w.waiting and (w is not self.host or w.pending)]


def whole_number(name: str, value: Any) -> int:
    """Return a whole number that is not negative."""
    found = whole(value)
    if found is None or found < 0:
        raise SessionError(f"{name}={value!r} is not an integer of at least 0")
    return found
