"""``collectives/libraries.py``: what communication libraries offer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import megatile as mt
from megatile.collectives.job import CollectiveError
from megatile.collectives.libraries import offered
from megatile.collectives.planner import predict
from megatile.collectives.ranking import rank
from megatile.collectives.requests import make_job
from megatile.hda import machine
from megatile.timing import TimingError
from megatile.timing.fit import fit, machine_file
from megatile.timing.measurements import read_measurements

KERNELS = Path(__file__).parents[2] / "benchmarks" / "data" / "kernels"


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize(("library", "engine"), [("custom", "vllm"), ("trtllm", "trtllm")])
@pytest.mark.parametrize(
    ("ranks", "nbytes"), [(2, 4096), (2, 8 << 20), (4, 1 << 18), (4, 1 << 20), (8, 65536), (8, 1 << 20)]
)
def test_a_plan_takes_the_time_of_the_engines_kernel(library, engine, ranks, nbytes, captured) -> None:
    asked = {"machine": "dgx-h100", "ranks": ranks, "dtype": "f16"}
    kernel = mt.predict_kernel("all_reduce", bytes=nbytes, library=engine, captured=captured, **asked)
    if kernel.model.startswith("NCCL"):
        with pytest.raises(CollectiveError, match="it calls NCCL there"):
            predict("all_reduce", nbytes=nbytes, algorithm=library, **asked)
        return
    found = predict("all_reduce", nbytes=nbytes, algorithm=library, launch=not captured, **asked)
    again = mt.simulate(mt.Plan.from_text(str(found.plan)), machine="dgx-h100", launch=not captured)
    assert again.time_ps == found.time_ps
    assert kernel.time_us == pytest.approx(found.time_us, rel=0.005)
    assert kernel.model == found.model == again.model


@pytest.mark.parametrize("low_latency", [False, True])
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
@pytest.mark.parametrize("tokens", [16, 4096])
def test_a_plan_takes_the_time_of_deepep(phase, low_latency, tokens) -> None:
    shape = {"hidden": 7168, "tokens": tokens, "topk": 8, "experts": 256}
    kernel = mt.predict_kernel(
        f"moe_{phase}", machine="dgx-h100", sms=16, low_latency=int(low_latency), **shape
    )
    token = 7168 * 33 // 32 if low_latency and phase == "dispatch" else 2 * 7168
    sent = tokens * token * (8 if low_latency else 8 * (1 - (7 / 8) ** 8))
    settings = {"token": token, "sms": 16, "phase": phase, "low_latency": low_latency, "experts": 256}
    found = predict(
        "all_to_all",
        machine="dgx-h100",
        nbytes=int(sent) // 16 * 16,
        dtype="f16",
        algorithm="deepep",
        settings=settings,
    )
    assert found.time_us == pytest.approx(kernel.time_us, rel=0.001)
    assert found.model == kernel.model
    assert mt.simulate(found.plan, machine="dgx-h100").time_ps == found.time_ps


@pytest.mark.parametrize("nbytes", [8, 4 * 1001, 1 << 20])
def test_one_shot_adds_everything_up(nbytes: int) -> None:
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=nbytes, ranks=4, algorithm="one_shot")
    x = np.random.default_rng(0).integers(-9, 9, (4, nbytes // 4)).astype("f4")
    outputs = mt.execute(plan, {"x": x})
    (found,) = outputs.values()
    np.testing.assert_array_equal(np.asarray(found), np.broadcast_to(x.sum(0), x.shape))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"op": "all_gather", "algorithm": "custom"}, "does all_reduce, not all_gather"),
        ({"op": "all_reduce", "algorithm": "custom", "ranks": 3}, "among 3 ranks"),
        ({"op": "all_reduce", "algorithm": "custom", "reduction": "max"}, "'max'"),
        ({"op": "all_reduce", "algorithm": "custom", "machine": "mi300x-8"}, "has no transport 'custom'"),
        ({"op": "all_reduce", "algorithm": "deepep"}, "DeepEP does all_to_all"),
        ({"op": "all_to_all", "algorithm": "deepep"}, "DeepEP needs token"),
        ({"op": "all_to_all", "algorithm": "deepep", "settings": {"tokens": 3}}, "no setting 'tokens'"),
        (
            {"op": "all_to_all", "algorithm": "deepep", "settings": {"token": 64, "low_latency": True}},
            "DeepEP needs experts",
        ),
        (
            {"op": "all_to_all", "algorithm": "deepep", "machine": "hgx-a100", "settings": {"token": 64}},
            "has no transport 'deepep'",
        ),
        (
            {"op": "all_to_all", "algorithm": "deepep", "machine": "h100-cluster", "settings": {"token": 64}},
            "devices of one node",
        ),
    ],
)
def test_what_they_cannot_do_is_reported(asked: dict, said: str) -> None:
    with pytest.raises(mt.MegatileError, match=said):
        mt.collective(**{"machine": "dgx-h100", "nbytes": 65536, **asked})


def test_the_fastest_is_of_any_transport() -> None:
    asked = {"machine": "dgx-h100", "nbytes": 65536, "ranks": 8, "launch": False}
    found = predict("all_reduce", algorithm="fastest", **asked)
    others = [predict("all_reduce", algorithm=a, **asked) for a in ("nccl", "custom", "trtllm")]
    others.append(predict("all_reduce", transport="copy_engine", **asked))
    assert found.time_ps <= min(one.time_ps for one in others)
    assert found.model == "TensorRT-LLM one-shot"


def test_a_fit_of_deepep_is_written_as_a_transport(tmp_path) -> None:
    rows = read_measurements(KERNELS / "deepep_low_latency_h100.csv.gz", "dgx-h100")
    text = machine_file("mine", "dgx-h100", fit(mt.machine("dgx-h100"), rows), "a log")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    mine = mt.machine(str(tmp_path / "mine.yaml"))
    assert mine.kernel("dispatch_low_latency").start_us > 0
    assert mine.spec.transports["device"]["deepep"].protocols["dispatch_low_latency"].source == "a log"


@pytest.mark.parametrize(
    ("change", "machine", "said"),
    [
        ({"token": 0}, "dgx-h100", "says the bytes of a token"),
        ({"algorithm": "combine_low_latency"}, "dgx-h100", "and experts"),
        ({}, "hgx-a100", "has no transport 'deepep'"),
    ],
)
def test_a_transport_without_its_figures_is_refused(change: dict, machine: str, said: str) -> None:
    plan = mt.collective(
        "all_to_all", machine="dgx-h100", nbytes=1 << 20, algorithm="deepep", settings={"token": 4096}
    )
    changed = replace(plan, transports=(replace(plan.transports[0], **change),))
    with pytest.raises(mt.MegatileError, match=said):
        mt.simulate(changed, machine=machine)


@pytest.mark.parametrize(("name", "library"), [("dgx-h100", "nccl"), ("mi300x-8", "rccl")])
def test_a_library_is_a_choice_among_its_algorithms(name, library):
    for operation in ("all_reduce", "all_to_all"):
        found = predict(operation, machine=name, nbytes=1 << 16, algorithm=library)
        assert found.algorithm in offered(library, operation)
        assert found.explanation is not None
        assert {c.algorithm for c in found.explanation.candidates} <= set(offered(library, operation))


def test_a_library_that_the_machine_has_not_is_named():
    with pytest.raises(TimingError, match="machine 'mi300x-8' has no transport 'nccl'"):
        predict("all_reduce", machine="mi300x-8", nbytes=64, algorithm="nccl")


@pytest.mark.parametrize(("name", "library"), [("dgx-h100", "nccl"), ("mi300x-8", "rccl")])
def test_prices_of_libraries_are_lower_bounds(name, library):
    hda = machine(name)
    for nbytes in (8, 64, 4096, 1 << 17, 1 << 20):
        job, _ = make_job("all_reduce", machine=hda, nbytes=nbytes)
        for candidate in rank(hda, job, offered(library, "all_reduce"), library=library):
            if candidate.time_ps is not None:
                assert candidate.price_ps <= candidate.time_ps
