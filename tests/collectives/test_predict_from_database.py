"""`predict(database=)`: measured rows first, the rule where there are none."""

import pytest

import megatile as mt
from megatile.collectives.planner import predict
from megatile.plan.model import Plan
from megatile.timing.collective_choice import rule_of, times_ps
from megatile.timing.database import Database, Measurement
from megatile.timing.measurements import CAPTURED

SIZES = [2**i for i in range(10, 31, 2)]


@pytest.fixture
def database(tmp_path):
    """Times of dgx-h100, all half as long again."""
    rows = []
    for size in SIZES:
        time = predict("all_reduce", machine="dgx-h100", nbytes=size, ranks=8, dtype="f16").time_ps / 1e6
        rows.append(
            Measurement("dgx-h100", "all_reduce", "f16", "", {"ranks": 8, "bytes": size}, 1.5 * time, "mine")
        )
    rows.append(
        Measurement("dgx-h100", "all_reduce", "f16", CAPTURED, {"ranks": 8, "bytes": 4096}, 3.0, "graph")
    )
    with Database(tmp_path / "perf.sqlite") as found:
        found.add(rows)
    return tmp_path / "perf.sqlite"


def asked(size: int, **more):
    return predict("all_reduce", machine="dgx-h100", nbytes=size, **{"ranks": 8, "dtype": "f16", **more})


def test_a_measured_row_is_taken_as_it_is(database):
    with_rows, rule = asked(4096, database=database), asked(4096)
    assert with_rows.time_ps == pytest.approx(1.5 * rule.time_ps, rel=1e-6)
    assert with_rows.origin.kind == "measured"
    assert with_rows.plan == rule.plan
    assert (with_rows.model, rule.model) == ("measured rows", "NCCL ring, LL")
    assert rule.origin is None


def test_between_rows_their_ratio_to_the_rule_is_taken(database):
    with_rows = asked(3 << 14, database=database)
    assert with_rows.origin.kind == "interpolated"
    assert with_rows.time_ps == pytest.approx(1.5 * asked(3 << 14).time_ps, rel=0.03)


def test_captured_graphs_have_rows_of_their_own(database):
    assert asked(4096, database=database, launch=False).time_ps == 3 * 10**6


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "f32"},
        {"algorithm": "tree"},
        {"env": {"NCCL_ALGO": "Ring"}},
        {"transport": "copy_engine"},
    ],
)
def test_the_rule_says_what_was_not_measured(database, other):
    found = asked(4096, database=database, **other)
    assert found.origin.kind == "rule"
    assert found.time_ps == asked(4096, **other).time_ps


def test_the_rule_takes_over_beyond_twice_the_measured_sizes(database):
    inside, outside = (asked(SIZES[-1] * factor, database=database) for factor in (2, 4))
    assert inside.origin.kind == "interpolated"
    assert outside.origin.kind == "rule"
    assert "no row of all_reduce, f16, 8 ranks within a factor of 2" in outside.origin.source
    assert outside.time_ps == asked(SIZES[-1] * 4).time_ps
    assert asked(SIZES[0] // 4, database=database).origin.kind == "rule"


def test_both_ways_to_ask_have_one_element_type():
    asked_kernel = mt.predict_kernel("all_reduce", machine="dgx-h100", ranks=8, bytes=1 << 20)
    f32 = mt.predict_kernel("all_reduce", machine="dgx-h100", ranks=8, bytes=1 << 20, dtype="f32")
    assert asked_kernel == f32
    assert predict("all_reduce", machine="dgx-h100", nbytes=1 << 20).job.dtype == "f32"


def test_registered_buffers_are_part_of_the_plan():
    usual, registered = (asked(1 << 28, ranks=4, registered=each) for each in (False, True))
    assert registered.time_ps < usual.time_ps
    assert mt.simulate(registered.plan, machine="dgx-h100").time_ps == registered.time_ps
    assert Plan.from_json(registered.plan.to_json()) == registered.plan
    assert registered.plan.transports[0].registered
    rule = rule_of(mt.machine("dgx-h100"), "nccl", "device", True)
    assert registered.time_ps == pytest.approx(float(times_ps(rule, "all_reduce", 4, 1 << 28)), rel=0.02)
