"""``tuning/search.py``: ``tune(factory, choices, machine=…)``."""

import os
import runpy
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.patience import patience, wait_until
from tests.tuning.factories import CHOICES, adding, by_time, rounded_down, two_products
from tests.tuning.shared import FAST, kept

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.tuning.work import points_of

ROOT = Path(__file__).parents[2]


def everything(factory=adding, choices=CHOICES):
    """Every choice simulated, without any search: (time, number) or None."""
    found = []
    for number, point in enumerate(points_of(choices)):
        try:
            found.append((mt.simulate(factory(**point), machine="dgx-h100").time_ps, number))
        except (MegatileError, ValueError):
            found.append(None)
    return found


@pytest.fixture(scope="module")
def truth():
    return everything()


def check(found, truth):
    best = min(t for t in truth if t is not None)
    assert (found.value, found.points.index(found.best)) == best
    for outcome, real in zip(found.outcomes, truth, strict=True):
        assert bool(outcome.why) == (real is None)
        if outcome.value is not None:
            assert outcome.value == real[0]
        elif real is not None:
            assert outcome.bound <= real[0]


def test_the_best_is_exact_and_most_are_pruned(truth):
    found = mt.tune(adding, CHOICES, workers=1, **FAST)
    check(found, truth)
    counts = found.counts
    assert sum(counts.values()) == len(truth) == 36
    assert counts["refused"] == sum(t is None for t in truth) > 0
    assert counts["pruned"] > 10
    assert found.speedup == truth[0][0] / found.value if truth[0] else found.speedup is None
    assert "first choice" in found.verified
    assert found.rows()[0]["time_us"] == found.value / 1e6
    assert "simulated" in repr(found)
    reasons = {row["why"] for row in found.rows() if row["result"] == "refused"}
    assert any("not these two" in why for why in reasons)
    assert any("memory 'shared'" in why for why in reasons)


@pytest.mark.parametrize("kind", ["own", "threads", "processes", "loky", "dask"])
def test_any_executor_finds_the_same(truth, kind):
    if kind == "own":
        check(mt.tune(lambda **c: adding(**c), CHOICES, workers=2, **FAST), truth)
    elif kind == "threads":
        with ThreadPoolExecutor(2) as pool:
            check(mt.tune(adding, CHOICES, executor=pool, **FAST), truth)
    elif kind == "processes":
        with ProcessPoolExecutor(2) as pool:
            check(mt.tune(adding, CHOICES, executor=pool, **FAST), truth)
    elif kind == "loky":
        loky = pytest.importorskip("joblib.externals.loky", reason="needs joblib")
        with loky.ProcessPoolExecutor(2) as pool:
            check(mt.tune(lambda **c: adding(**c), CHOICES, executor=pool, **FAST), truth)
    else:
        distributed = pytest.importorskip("distributed", reason="needs dask")
        with (
            distributed.LocalCluster(
                n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            check(mt.tune(lambda **c: adding(**c), CHOICES, executor=client.get_executor(), **FAST), truth)


RUN = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell ignores it
import megatile as mt
from megatile.tuning import work
from tests.tuning.factories import CHOICES, adding, by_time, rounded_down

real = work.simulate

def slow(*arguments, **options):
    time.sleep(0.3)
    return real(*arguments, **options)

work.simulate = slow
mt.tune(adding, CHOICES, machine="dgx-h100", objective=by_time, workers=1, store=sys.argv[1])
"""


def test_killed_and_resumed_it_goes_on(tmp_path):
    script, store = tmp_path / "run.py", tmp_path / "s.sqlite"
    script.write_text(RUN, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    run = subprocess.Popen([sys.executable, script, store], env=environment)
    wait_until(lambda: len(kept(store)) >= 3 or run.poll() is not None, 60)
    run.kill()
    run.wait()
    before = kept(store)

    def simulated(**options):
        said = []
        asked = {"machine": "dgx-h100", "objective": by_time, "workers": 1, **options}
        found = mt.tune(adding, CHOICES, progress=lambda *a: said.append(a), **asked)
        return found, sum(what == "simulated" for what, _, _ in said)

    (resumed, count), (fresh, whole) = simulated(store=store), simulated()
    assert (resumed.best, resumed.value) == (fresh.best, fresh.value)
    assert 3 <= len(before) == whole - count
    assert count > 0


def test_ctrl_c_stops_all_at_once(tmp_path):
    script, store = tmp_path / "run.py", tmp_path / "s.sqlite"
    script.write_text(
        RUN.replace("sleep(0.3)", "sleep(3)").replace("workers=1", "workers=2"), encoding="utf-8"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    pipes = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    run = subprocess.Popen([sys.executable, script, store], env=environment, **pipes)
    wait_until(lambda: kept(store) or run.poll() is not None, 60)
    began = time.monotonic()
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=patience(60))
    assert time.monotonic() - began < patience(10)
    assert run.returncode != 0
    assert said.count("Traceback") == 1
    assert said.rstrip().endswith("KeyboardInterrupt")


def test_another_objective_is_sought_without_pruning():
    found = mt.tune(adding, {"parts": [8, 16]}, objective=lambda r: -r.time_ps, workers=1, **FAST)
    assert found.counts == {"simulated": 2, "pruned": 0, "refused": 0}
    assert found.value == min(o.value for o in found.outcomes)


def test_a_list_of_configurations():
    found = mt.tune(adding, [{"parts": 8, "passes": 2}, {"parts": 8}], workers=1, **FAST)
    assert found.best == {"parts": 8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choices": {}}, "nothing to choose from"),
        ({"choices": {"parts": []}}, "'parts' has no values"),
        ({"choices": {"parts": 8}}, "'parts' has no values"),
        ({"choices": [8]}, "nothing to choose from"),
        ({"choices": None}, "nothing to choose from"),
        ({"choices": {"parts": "12"}}, "'parts' has no values"),
        ({"choices": {"part": [1]}}, "did you mean 'parts'"),
        ({"choices": {c: range(100) for c in ("parts", "passes", "memory", "n")}}, "more than 1000000"),
        ({"choices": {"parts": [2], "passes": [3]}}, "none of 1 choices is possible (1: not these two)"),
        ({"factory": 3}, "does not make Plans"),
        ({"machine": 3}, "not a machine"),
        ({"machine": "dgx"}, "no machine 'dgx'"),
        ({"objective": "beauty"}, "unknown objective 'beauty'"),
        ({"executor": 3}, "is not an executor"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"store": "/"}, "cannot be stored"),
    ],
)
def test_mistakes(change, message):
    asked = {"factory": adding, "choices": {"parts": [1, 4]}, "workers": 1, **FAST, **change}
    with pytest.raises(MegatileError) as caught:
        mt.tune(asked.pop("factory"), asked.pop("choices"), **asked)
    assert message in str(caught.value)


PROGRAMS = {
    "21_gemm_block": ("gemm", (128, 128, 128), {"bM": [32, 64], "bN": [32, 64], "bK": [16, 64]}),
    "25_softmax": ("softmax", (128, 256), {"bM": [32, 8], "bN": [64, 256]}),
    "27_flash_attention": ("flash_attention", (1, 2, 2, 256, 32), {"bM": [128, 32, 64], "bN": [32, 64]}),
}


@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_tuned_beats_the_default(name, machine):
    function, fixed, choices = PROGRAMS[name]
    factory = partial(runpy.run_path(str(ROOT / "examples" / f"{name}.py"))[function], *fixed)
    found = mt.tune(factory, choices, machine=machine, workers=1, progress=False)
    assert found.speedup > 1.01
    assert found.verified.startswith("results match the interpreter")


def test_choices_that_leave_out_part_of_a_result_are_refused():
    found = mt.tune(rounded_down, {"step": [32, 64]}, **FAST)
    assert found.best == {"step": 32}
    assert "each index from 64 to 95 of dimension 0 of 'X' is never read" in found.outcomes[1].why
    found = mt.tune(rounded_down, {"step": [64, 80]}, **FAST)
    assert not any(o.why for o in found.outcomes)  # the same is left out whatever is chosen


def test_choices_that_leave_threads_no_registers_do_not_win():
    """Two sums of 128 x 256 take all registers of an H100's SM."""
    found = mt.tune(two_products, [{"threads": 512}, {"threads": 256, "columns": 128}], **FAST)
    assert found.best == {"threads": 256, "columns": 128}
    assert "a compiler would spill" in found.outcomes[0].why
    assert mt.tune(two_products, [{"threads": 512}], **FAST).best == {"threads": 512}
