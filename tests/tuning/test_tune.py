"""Tuning: the exact best, whoever works; refused, pruned, resumed, killed, verified."""

import os
import runpy
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.patience import patience, wait_until
from tests.tuning.factories import CHOICES, adding, by_time, gemm, killing

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.tuning import TuneError, work
from megatile.tuning.work import points_of

ROOT = Path(__file__).parents[2]
FAST = {"machine": "dgx-h100", "progress": False}


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


def test_an_executor_that_cannot_send_closures_says_so():
    with ProcessPoolExecutor(1) as pool, pytest.raises(TuneError, match="cannot send the factory"):
        mt.tune(lambda **c: adding(**c), CHOICES, executor=pool, **FAST)


def test_a_killed_worker_is_one_error_and_results_are_kept(tmp_path):
    store = tmp_path / "s.sqlite"
    with pytest.raises(TuneError, match="a worker was killed"):
        mt.tune(killing, {"parts": [8, 16, 32]}, workers=2, store=store, **FAST)
    found = mt.tune(partial(killing, die=0), {"parts": [8, 16, 32]}, workers=2, store=store, **FAST)
    assert found.counts["refused"] == 0


RUN = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell ignores it
import megatile as mt
from megatile.tuning import work
from tests.tuning.factories import CHOICES, adding, by_time

real = work.simulate

def slow(*arguments, **options):
    time.sleep(0.3)
    return real(*arguments, **options)

work.simulate = slow
mt.tune(adding, CHOICES, machine="dgx-h100", objective=by_time, workers=1, store=sys.argv[1])
"""


def kept(store):
    try:
        with sqlite3.connect(store) as link:
            return dict(link.execute("SELECT key, value FROM results"))
    except sqlite3.Error:
        return {}


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


def test_what_is_kept_is_not_simulated_again(tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    first = mt.tune(adding, CHOICES, workers=1, store=store, **FAST)

    def never(*_, **__):
        raise AssertionError("simulated again")

    monkeypatch.setattr(work, "simulate", never)
    again = mt.tune(adding, CHOICES, workers=1, store=store, **FAST)
    assert (again.best, again.value, again.counts) == (first.best, first.value, first.counts)
    with pytest.raises(AssertionError):  # another machine is another question
        mt.tune(adding, CHOICES, workers=1, store=store, machine="hgx-a100", progress=False)


def test_another_objective_is_sought_without_pruning():
    found = mt.tune(adding, {"parts": [8, 16]}, objective=lambda r: -r.time_ps, workers=1, **FAST)
    assert found.counts == {"simulated": 2, "pruned": 0, "refused": 0}
    assert found.value == min(o.value for o in found.outcomes)


def test_a_list_of_configurations():
    found = mt.tune(adding, [{"parts": 8, "passes": 2}, {"parts": 8}], workers=1, **FAST)
    assert found.best == {"parts": 8}


def test_wrong_data_are_an_error():
    with pytest.raises(TuneError, match="'z' is not what the first choice gives"):
        mt.tune(partial(adding, wrong=True), {"passes": [2, 1], "parts": [8]}, workers=1, **FAST)


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


def test_a_factory_of_something_else():
    with pytest.raises(TypeError, match="gives a int"):
        mt.tune(lambda parts: parts, {"parts": [1]}, workers=1, **FAST)


def test_a_store_that_is_something_else(tmp_path):
    file = tmp_path / "s.sqlite"
    file.write_text("hello " * 1000, encoding="utf-8")
    with pytest.raises(TuneError, match="cannot be stored"):
        mt.tune(adding, {"parts": [1, 4]}, store=file, workers=1, **FAST)


# tile programs

TILES = {"bM": [16, 64], "bN": [16, 64], "bK": [16, 64]}


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


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-8"])
def test_a_tile_program_is_tuned_and_verified(name):
    found = mt.tune(gemm, TILES, machine=name, workers=1, progress=False)
    times = [(mt.simulate(gemm(**p), machine=name).time_ps, i) for i, p in enumerate(points_of(TILES))]
    assert (found.value, found.points.index(found.best)) == min(times)
    for outcome, (time_ps, _) in zip(found.outcomes, times, strict=True):
        assert outcome.bound <= time_ps
    assert found.speedup > 1.05
    assert found.verified.startswith("results match the interpreter")


def test_autotune():
    made = []

    @T.autotune({"bM": [16, 64], "bN": [16, 64]}, machine="dgx-h100", workers=1, progress=False)
    def tuned(M, N, K, bM=16, bN=16):
        made.append((bM, bN))
        return gemm(M, N, K, bM, bN)

    program = tuned(128, 128, 64)
    count = len(made)
    assert tuned(128, 128, 64) is program
    assert len(made) == count
    (found,) = tuned.tuned.values()
    assert found.made is program
    assert tuned.__name__ == "tuned"
    tuned(128, 128, 64, bM=64)
    assert made[-1] == (64, 16)
    assert tuned.tune(64, 64, 64, machine="mi300x-8").machine.name == "mi300x-8"
    with pytest.raises(TuneError, match="no machine is given"):
        T.autotune({"bM": [16]})(gemm)()
    with pytest.raises(TuneError, match="no option 'machin'"):
        T.autotune({"bM": [16]}, machin="dgx-h100")
    with pytest.raises(TuneError, match="choices are missing"):
        T.autotune(gemm)


def test_results_of_other_code_do_not_count(tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    first = mt.tune(adding, CHOICES, workers=1, store=store, **FAST)
    before = kept(store)
    monkeypatch.setattr(work, "code_digest", lambda: "the engine was mended")
    again = mt.tune(adding, CHOICES, workers=1, store=store, **FAST)
    assert again.best == first.best
    assert len(kept(store)) == 2 * len(before)
