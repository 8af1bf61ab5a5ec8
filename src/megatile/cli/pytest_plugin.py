"""A pytest plugin: tests marked ``megatile`` return a program, which is checked on a machine and timed.

@pytest.mark.megatile(machine="dgx-h100", max_us=20)
def test_gemm():
    return gemm(512, 512, 512)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from megatile.cli.mcp import SCHEDULES

MARKER = (
    "megatile(machine=, max_us=, races=True): the test returns a tile program or Plan, or a tuple of it and "
    "its arrays or shapes; it is checked on the machine, run for races, and predicted to take at most max_us"
)
FIXTURE = "megatile_machine"
_TIMES = pytest.StashKey[list[tuple[str, str, float, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("megatile").addoption(
        "--megatile-machine",
        action="append",
        metavar="NAME",
        help="A shipped machine or a YAML file, for marked tests that name none (dgx-h100). Repeatable.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.stash[_TIMES] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test on its machine, or on each one of the command line."""
    marker = metafunc.definition.get_closest_marker("megatile")
    if marker is None and FIXTURE not in metafunc.fixturenames:
        return
    named = marker.kwargs.get("machine") if marker is not None else None
    machines = [named] if named else metafunc.config.getoption("--megatile-machine") or ["dgx-h100"]
    if FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(FIXTURE)
    metafunc.parametrize(FIXTURE, machines, ids=str)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a marked test and check what it returns."""
    from megatile.core.errors import MegatileError

    marker = pyfuncitem.get_closest_marker("megatile")
    if marker is None:
        return None
    unknown = marker.kwargs.keys() - {"machine", "max_us", "races"}
    if unknown or marker.args:
        pytest.fail(f"the marker is {MARKER.partition(':')[0]}, not {marker}", pytrace=False)
    wanted, found = pyfuncitem._fixtureinfo.argnames, ""
    machine = pyfuncitem.callspec.params[FIXTURE]
    try:
        returned = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
        time_us = _checked(returned, machine, marker.kwargs.get("races", True))
    except MegatileError as error:
        found = str(error)
    if found:
        pytest.fail(found, pytrace=False)
    most = marker.kwargs.get("max_us")
    pyfuncitem.config.stash[_TIMES].append((pyfuncitem.nodeid, str(machine), time_us, most))
    pyfuncitem.user_properties.append(("megatile_us", time_us))
    if most is not None and time_us > most:
        pytest.fail(f"{time_us:.4g} µs predicted on {machine}, more than max_us={most}", pytrace=False)
    return True


def _checked(returned: Any, machine: Any, races: bool) -> float:
    """Check a program or Plan on a machine; return the microseconds that it is predicted to take."""
    from megatile.hda import HDA, machine as find_machine
    from megatile.lowering.calls import check, is_program, simulate
    from megatile.lowering.lowered import Lowered, lower
    from megatile.plan.model import Plan
    from megatile.plan.unwritten import check_first_reads
    from megatile.targets.interpret.run import run
    from megatile.targets.interpret.verify import random_arrays, verify

    found, *given = returned if isinstance(returned, (tuple, list)) and returned else (returned,)
    hda = machine if isinstance(machine, HDA) else find_machine(machine)
    if isinstance(found, Plan):
        check(found, hda)
        check_first_reads(found)
        return simulate(found, *given, machine=hda).time_ps / 1e6
    if not is_program(found):
        pytest.fail(
            f"a test marked megatile returns a tile program or a Plan, not {type(found).__name__}",
            pytrace=False,
        )
    lowered = found if isinstance(found, Lowered) else lower(found, *given, machine=hda)
    check(lowered)
    arrays = list(given) if given and all(hasattr(a, "dtype") for a in given) else random_arrays(lowered)
    if races:
        for schedule, seed in SCHEDULES:
            copies = [a.copy() if hasattr(a, "copy") else a.clone() for a in arrays]
            run(lowered.source, *copies, machine=hda, schedule=schedule, seed=seed, output=lambda text: None)
        verify(lowered, *arrays)
    return simulate(lowered, *arrays).time_ps / 1e6


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the predicted times."""
    for line in _lines(config.stash[_TIMES]):
        terminalreporter.write_line(line)


def _lines(times: list[tuple[str, str, float, Any]]) -> Iterator[str]:
    if times:
        yield f"megatile: predicted times of {len(times)} tests"
    for name, machine, time_us, most in times:
        limit = "" if most is None else f" (at most {most:g})"
        yield f"  {time_us:10.4g} µs{limit}  {name} on {machine}"
