"""Signals, a time limit and too little memory end a long simulation with one sentence, soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from tests.patience import patience
from tests.sim.toys import toy

from megatile.core.errors import MegatileError
from megatile.core.expr import unit
from megatile.core.limits import held_signals
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import Session, TimeBudgetExceeded, simulate

ENDLESS = 10**9


def rounds(times: int, units: int = 1) -> Plan:
    """Work in a loop; of several units, in a ring."""
    b = PlanBuilder("rounds", scale="core", units=units)
    x = b.tile("x", (16,), "f32", memory="local", role="inout")
    c = b.channel("c", source=(unit - 1) % units, slot_bytes=64, memory="local") if units > 1 else None
    with b.loop(0, times):
        b.compute("exp", x, [x])
        if c is not None:
            b.send(c, x, to=(unit + 1) % units)
            b.compute("add", x, [x, b.receive(c, (16,), "f32")])
    return b.finish()


SCRIPT = """
import os, sys
from megatile.plan.model import Plan
from megatile.sim import simulate
from tests.sim.toys import toy
from tests.sim.test_limits import *

def began(what, done, of):
    print("began", flush=True) if not done_once else None
    done_once.append(1)

done_once = []
{work}
"""


def _signalled(work: str, number: int) -> tuple[int, float, str]:
    """Send a signal to a process that says "began"; its exit code, the seconds it still took, its errors."""
    command = sys.executable, "-c", SCRIPT.format(work=work)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        sent = monotonic()
        process.send_signal(number)
        errors = process.communicate(timeout=patience(60))[1]
        took = monotonic() - sent
    finally:
        process.kill()
    assert took < patience(1.0)
    return process.returncode, took, errors


@pytest.mark.parametrize("engine", ["compiled", "plain"])
@pytest.mark.parametrize("units", [1, 3])
def test_ctrl_c_ends_a_long_simulation(engine: str, units: int) -> None:
    work = f"simulate(rounds(ENDLESS, {units}), machine=toy({units}), engine='{engine}', progress=began)"
    code, _, errors = _signalled(work, signal.SIGINT)
    assert code == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt")


def test_sigterm_ends_a_long_simulation() -> None:
    work = "simulate(rounds(ENDLESS), machine=toy(1), progress=began)"
    assert _signalled(work, signal.SIGTERM)[0] == -signal.SIGTERM
    handler = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    assert _signalled(handler + work, signal.SIGTERM)[0] == 7


def _send_soon(number: int, after: float = 0.2) -> threading.Timer:
    timer = threading.Timer(after, os.kill, (os.getpid(), number))
    timer.start()
    return timer


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_a_session_goes_on_after_an_interrupt(engine: str) -> None:
    times = 3_000_000 if engine == "compiled" else 100_000
    session, again = Session(toy(1), engine=engine, record=0), Session(toy(1), engine="compiled", record=0)
    launch = session.submit(rounds(times))
    simulate(rounds(1), machine=toy(1), engine=engine)  # loads the engine
    before = signal.getsignal(signal.SIGINT)
    timer = _send_soon(signal.SIGINT, 0.03)
    with pytest.raises(KeyboardInterrupt):
        session.wait(launch)
    timer.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert session.wait(launch).time_ps == again.wait(again.submit(rounds(times))).time_ps


def test_a_handler_that_returns_lets_it_go_on() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        timer = _send_soon(signal.SIGINT, 0.02)
        found = simulate(rounds(2_000_000), machine=toy(1), engine="compiled", record=False)
        timer.join()
        sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]
    assert found.time_ps > 0


def test_signals_held_inside_each_other_are_delivered_once() -> None:
    with held_signals() as outer:
        with held_signals() as inner:
            os.kill(os.getpid(), signal.SIGINT)
            sleep(0.01)
            assert inner is outer
            assert outer.came == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            outer.deliver()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_simulate_without_handlers() -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(simulate(rounds(1000), machine=toy(1)).time_ps)
        try:
            simulate(rounds(ENDLESS), machine=toy(1), max_seconds=0.1)
        except TimeBudgetExceeded as late:
            found.append(late)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] == simulate(rounds(1000), machine=toy(1)).time_ps
    assert isinstance(found[1], TimeBudgetExceeded)


@pytest.mark.parametrize("engine", ["compiled", "plain"])
@pytest.mark.parametrize("units", [1, 3])
def test_max_seconds_says_how_far_it_came(engine: str, units: int) -> None:
    simulate(rounds(1), machine=toy(1), engine=engine)
    before = monotonic()
    with pytest.raises(
        TimeBudgetExceeded, match=r"'rounds' has not ended .* about .*% is done, .* simulated"
    ) as late:
        simulate(rounds(ENDLESS, units), machine=toy(units), engine=engine, max_seconds=0.2)
    assert 0.2 <= monotonic() - before < patience(5)
    assert "the rest may take" in str(late.value)
    assert "mt.price" in str(late.value)
    for seconds in (60, 10**400):
        assert simulate(rounds(10, units), machine=toy(units), max_seconds=seconds).time_ps > 0


def test_max_seconds_holds_for_data_too() -> None:
    simulate(rounds(1), machine=toy(1), engine="compiled")
    with pytest.raises(TimeBudgetExceeded, match="'rounds' was not followed to its end"):
        simulate(rounds(200_000), {"x": np.zeros((1, 16), "f4")}, machine=toy(1), max_seconds=1)


@pytest.mark.parametrize("value", [-1, float("nan"), "soon", True])
def test_max_seconds_that_are_not_a_time(value: Any) -> None:
    with pytest.raises(MegatileError, match="max_seconds must be a non-negative number of seconds, got"):
        simulate(rounds(1), machine=toy(1), max_seconds=value)


def test_progress_is_reported_for_long_runs_only() -> None:
    told: list[tuple[str, int, int]] = []
    simulate(rounds(10), machine=toy(1), progress=lambda *what: told.append(what))
    assert not told
    with pytest.raises(TimeBudgetExceeded):
        simulate(rounds(ENDLESS), machine=toy(1), progress=lambda *what: told.append(what), max_seconds=1.3)
    assert {(what, of) for what, _, of in told} == {("simulating 'rounds'", 3 * ENDLESS + 2)}
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_the_command_line_ends_with_130(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(str(rounds(ENDLESS)))
    work = f"""
import threading
from megatile.__main__ import main
sys.argv = ["megatile", "plan", "simulate", "{tmp_path / "long.txt"}", "-m", "{_machine(tmp_path)}"]
threading.Timer(1.0, lambda: print("began", flush=True)).start()
main()
"""
    code, _, errors = _signalled(work, signal.SIGINT)
    assert code == 130
    assert "Traceback" not in errors


def _machine(folder: Path) -> Path:
    toy(1).to_yaml(folder / "toy.yaml")
    return folder / "toy.yaml"
