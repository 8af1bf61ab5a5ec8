"""Plans on ranks that are threads of this process, equal to their execution with NumPy; and exact errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.runtime.launch_cases import mixed_plan  # noqa: E402
from tests.runtime.test_launch import neighbours, product, reaching_plan  # noqa: E402
from tests.runtime.threads import on_threads  # noqa: E402
from tests.targets import sixteen  # noqa: E402

import megatile as mt  # noqa: E402
from megatile.collectives.planner import collective  # noqa: E402
from megatile.core.errors import MegatileError  # noqa: E402
from megatile.core.expr import unit  # noqa: E402
from megatile.plan.build import PlanBuilder  # noqa: E402
from megatile.plan.execute import execute  # noqa: E402
from megatile.plan.model import Plan  # noqa: E402


def equal(plan: Plan, inputs: dict[str, Any], folder: Path | None) -> None:
    expected = execute(plan, inputs)
    found, choices = on_threads(plan, inputs, folder)
    assert set(found) == set(expected)
    for name, array in expected.items():
        owners = plan.tile(name).owner
        rows = [int(owners.evaluate({"unit": u})) for u in range(plan.units)]
        np.testing.assert_allclose(found[name], array.astype("f4")[rows], rtol=1e-4, atol=1e-5, err_msg=name)
    assert {number: made for number, made in enumerate(choices) if made} == expected.choices


@pytest.mark.parametrize("units", [2, 3, 4])
def test_everything_in_one_plan(units: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(units, 4, 6)).astype("f4")
    equal(mixed_plan(units), {"x": x, "n": np.array([[0], [2], [3], [1]])[:units]}, tmp_path)


COLLECTIVES = [
    ("all_reduce", "ring"), ("all_reduce", "recursive_doubling"), ("all_gather", "ring"),
    ("reduce_scatter", "ring"), ("all_to_all", "pairwise"), ("broadcast", "binomial"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "algorithm"), COLLECTIVES)
@pytest.mark.parametrize("shared", [True, False])
def test_collectives(kind: str, algorithm: str, shared: bool, tmp_path: Path) -> None:
    plan = collective(kind, machine="dgx-h100", nbytes=240, ranks=4, algorithm=algorithm)
    rng = np.random.default_rng(1)
    inputs = {
        t.name: rng.integers(-4, 5, (4, *t.shape)).astype("f4")
        for t in plan.tiles
        if t.role in ("input", "inout")
    }
    equal(plan, inputs, tmp_path if shared else None)


PROGRAMS = [sixteen.allgather_gemm, sixteen.device_scan, sixteen.halo, sixteen.tensor_parallel_mlp,
            sixteen.context_parallel_decode, sixteen.all_to_all_with_counts]  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_programs(make: Any, tmp_path: Path) -> None:
    program, arrays, _ = make()
    low = mt.lower(program, *arrays, machine="dgx-h100")
    equal(low.plan, low.scatter(arrays), tmp_path)


@pytest.mark.parametrize("make", [product, neighbours], ids=["product", "neighbours"])
def test_blocks_of_a_unit(make: Any, tmp_path: Path) -> None:
    arrays = [
        np.random.default_rng(n).normal(size=p.shape).astype("f4")
        for n, p in enumerate(make.build("dgx-h100").params)
    ]
    low = mt.lower(make, *arrays, machine="dgx-h100")
    equal(low.plan, low.scatter(arrays), tmp_path)


def test_tiles_that_others_reach(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 3, 5)).astype("f4")
    equal(reaching_plan(), {"x": x}, tmp_path)


def one(units: int = 2) -> tuple[PlanBuilder, Any]:
    b = PlanBuilder("one", scale="device", units=units)
    return b, b.tile("x", (2, 3), "f32", memory="l2", role="inout")


def no_owner() -> Plan:
    b, x = one()
    b.copy(x, x.at(unit + 1))
    return b.finish()


def out_of_bounds() -> Plan:
    b, x = one()
    n = b.tile("n", (1,), "i32", memory="l2", role="input")
    b.read_scalar(n[0], 3)
    b.copy(x, x)
    return b.finish()


def wrong_queue() -> Plan:
    b, x = one()
    ring = b.channel("ring", source=(unit + 1) % 2, slot_bytes=24, memory="l2")
    b.send(ring, x, to=unit)
    return b.finish()


def later_message() -> Plan:
    b, x = one()
    own = b.channel("own", source=unit, slot_bytes=24, memory="l2")
    b.receive(own, (2, 3), "f32", into=x)
    b.send(own, x, to=unit)
    return b.finish()


def no_message() -> Plan:
    b, x = one()
    star = b.channel("star", source=(unit + 1) % 2, slot_bytes=24, memory="l2", members=1)
    b.receive_any(star, (2, 3), "f32")
    b.copy(x, x)
    return b.finish()


def no_signal() -> Plan:
    b, x = one()
    b.wait(b.flag("never"), 1)
    b.copy(x, x)
    return b.finish()


MESSAGES = {
    no_owner: "tile 'x' has 2 owners, from 0; there is no owner 2",
    out_of_bounds: "read_scalar gave 4, outside 0..3",
    wrong_queue: "unit 0 does not feed this queue: send(ring, x, to=unit, bytes=24)",
    later_message: "unit 0 waits for a message that it sends itself, later",
    no_message: "no message on any queue of 'star' within 0.05 s",
    no_signal: "unit 0 still waits after 0.05 s: wait(never, value=1)",
}


@pytest.mark.parametrize("make", MESSAGES, ids=lambda make: make.__name__)
def test_what_goes_wrong(make: Any, tmp_path: Path) -> None:
    plan = make()
    inputs = {"x": np.ones((2, 2, 3), "f4")} | (
        {"n": np.full((2, 1), 4)} if any(t.name == "n" for t in plan.tiles) else {}
    )
    with pytest.raises(MegatileError) as caught:
        on_threads(plan, inputs, tmp_path, timeout=0.05)
    assert caught.value.message.replace("unit 1", "unit 0").replace("owner 3", "owner 2") == MESSAGES[make]


def test_units_in_several_groups(tmp_path: Path) -> None:
    b, x = one(4)
    total = b.tile("total", (2, 3), "f32", memory="l2", role="output")
    most = b.tile("most", (2, 3), "f32", memory="l2", role="output")
    first = b.tile("first", (2, 3), "f32", memory="l2", role="output")
    pairs, across, every = b.group("pairs", key=unit // 2), b.group("across", key=unit % 2), b.group("all")
    b.collective("all_reduce", pairs, x, total)
    b.collective("all_reduce", across, x, most, reduction="max")
    b.collective("broadcast", every, x, first, root=3)
    b.barrier(pairs)
    data = np.random.default_rng(0).integers(-9, 9, (4, 2, 3)).astype("f4")
    plan = b.finish()
    equal(plan, {"x": data}, tmp_path)
    equal(replace(plan, name="again"), {"x": data}, None)


def test_versions_of_a_tile_take_turns(tmp_path: Path) -> None:
    """The last one written is read, and is the output."""
    b = PlanBuilder("versions", scale="device", units=2)
    x = b.tile("x", (2, 3), "f32", memory="l2", role="input")
    held = b.tile("held", (2, 3), "f32", memory="l2", versions=3, role="output")
    total = b.tile("total", (2, 3), "f32", memory="l2", role="output")
    b.compute("fill", total, value=0)
    for number in range(5):
        b.compute("fill", held, value=number, fresh=True)
        b.compute("add", held, [held, x])
        b.compute("add", total, [total, held])
    equal(b.finish(), {"x": np.arange(12, dtype="f4").reshape(2, 2, 3)}, tmp_path)
