"""Tensors on machines whose memory belongs to cores: they lie in blocks with them, and routes are paid."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from tests.lowering.shared import BYTES, ROUNDS, WAFER, own, reads, spread_plan
from tests.tuning.factories import gemm

import megatile as mt
import megatile.language as T
from megatile.core.dtypes import numpy_dtype
from megatile.cost import links
from megatile.timing.resources import Resources

EXAMPLES = Path(__file__).parents[2] / "examples"


def all_of_them(b, i):
    return i


def crossed(result: mt.Result) -> int:
    """Bytes over links, each hop counted."""
    return sum(n for name, n in result.usage.bytes_on.items() if not name.startswith("memory"))


@pytest.mark.parametrize("machine", [WAFER, mt.machine("ahbm")], ids=lambda m: m.name)
def test_reading_one_tensor_from_64_cores_costs_its_routes(machine) -> None:
    near, far = (mt.simulate(reads(64, which), machine=machine) for which in (own, all_of_them))
    assert crossed(near) == 0
    busiest = max(n for name, n in far.usage.bytes_on.items() if not name.startswith("memory"))
    assert crossed(far) >= 64 * (ROUNDS - 1) * BYTES
    if machine is WAFER:  # a link takes 4 bytes a cycle, and all blocks come over those of 8 cores
        assert far.time_ps - near.time_ps > busiest / 4.4e9 * 1e12 / 2
    assert far.time_ps > near.time_ps
    assert "spread over 64 × " in far.summary()
    assert "X (4×64), Y (4×64)" in far.summary()


@pytest.mark.parametrize("machine", [WAFER, mt.machine("ahbm")], ids=lambda m: m.name)
@pytest.mark.parametrize("make", [lambda: reads(8, all_of_them), lambda: gemm(64, 96, 32, 16, 16, 16)])
def test_data_and_bounds_hold(machine, make) -> None:
    program = make()
    low = mt.lower(program, machine=machine)
    assert all(t.over for t in low.plan.tiles if t.role != "local")
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-2, 3, p.shape).astype(numpy_dtype(p.dtype)) for p in low.program.params]
    expected = [a.copy() for a in arrays]
    mt.run(low.program, *expected, machine=machine)
    mt.check(low.plan, machine)
    for name, found in mt.execute(low, *arrays).items():
        at = [p.name for p in low.program.params].index(name)
        np.testing.assert_array_equal(found, expected[at])
    bounds = mt.price(low)
    assert bounds.lower_ps <= mt.simulate(low, record=False).time_ps <= bounds.upper_ps


def test_a_product_on_the_wafer_touches_the_fabric() -> None:
    result = mt.simulate(gemm(256, 256, 256, 16, 16, 16, 2), machine=WAFER)
    least = 2 * 256 * 256 * 2 * 15  # every core but one of a row or column gets each block from another
    assert crossed(result) > least
    assert result.time_ps >= mt.price(gemm(256, 256, 256, 16, 16, 16, 2), machine=WAFER).lower_ps


@pytest.mark.parametrize("machine", [WAFER, mt.machine("ahbm")], ids=lambda m: m.name)
@pytest.mark.parametrize("rows", [0, 3, 13])
def test_tensors_smaller_than_their_blocks(machine, rows: int) -> None:
    @T.program
    def kernel(X: T.Tensor((rows, 8), "f32"), Y: T.Tensor((rows, 8), "f32")):
        with T.Kernel(block=4, threads=1) as b:
            x = T.alloc((4, 8), "f32", level="l1")
            T.copy(x, X[b * 4, 0])
            T.copy(Y[b * 4, 0], x)

    low = mt.lower(kernel, machine=machine)
    bounds = mt.price(low)
    assert 0 < bounds.lower_ps <= mt.simulate(low, record=False).time_ps <= bounds.upper_ps


@pytest.mark.parametrize(("rows", "pairs", "run"), [(1 << 20, 1 << 22, 4), (1 << 9, 1 << 10, 2), (1, 1, 99)])
def test_bounds_see_the_busiest_link(rows: int, pairs: int, run: int, monkeypatch) -> None:
    """However the transfers are divided to be counted: the bytes of the simulated link at 4 a cycle."""
    low = mt.lower(gemm(256, 256, 256, 16, 16, 32), machine=WAFER)
    monkeypatch.setattr(links._Transfers, "MAX_ROWS", rows)
    monkeypatch.setattr(links, "MAX_PAIRS", pairs)
    monkeypatch.setattr(links, "MIN_RUN", run)
    result = mt.simulate(low)
    busiest = max(n for name, n in result.usage.bytes_on.items() if not name.startswith("memory"))
    found = links.busiest_link(Resources(WAFER, low.plan))
    assert found == pytest.approx(busiest / 4.4e9 * 1e12, rel=1e-4)
    assert found < result.time_ps


def test_a_plan_with_more_routes_than_can_be_followed_has_a_stated_bound(monkeypatch) -> None:
    program = gemm(8192, 8192, 8192, 32, 32, 32)
    monkeypatch.setattr(links, "MAX_LOOP_ROWS", 0)  # the bytes of its links take seconds
    result = mt.simulate(program, machine="cerebras-wse2")
    assert re.search(r"a lower bound: its copies cross about 2\.\de\+09 links", result.timed_by)
    assert result.time_ps == mt.price(program, machine="cerebras-wse2").lower_ps > 1.9e9


def test_parts_have_to_fit_with_the_tiles() -> None:
    with pytest.raises(mt.MegatileError, match=r"'sram'.*49152 bytes, the plan needs"):
        mt.simulate(gemm(512, 512, 512, 64, 64, 64), machine=WAFER)


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("number", "machine", "crosses"),
    [
        ("20", "ahbm", False), ("20", "cerebras-wse2", False), ("24", "ahbm", True), ("25", "ahbm", False),
        ("26", "cerebras-wse2", True), ("29", "ahbm", True), ("30", "ahbm", True), ("34", "ahbm", True),
        ("35", "ahbm", True), ("38", "cerebras-wse2", True),
    ],
)  # fmt: skip
def test_examples_show_their_fabric_traffic(number: str, machine: str, crosses: bool, monkeypatch) -> None:
    """Those whose units read and write their own parts alone have none."""
    (path,) = EXAMPLES.glob(f"{number}_*.py")
    found = []

    def kept(*given, **options):
        found.append(mt.simulate(*given, machine=machine))
        raise Stop

    monkeypatch.setattr(mt, "run", kept)
    with pytest.raises(Stop):
        runpy.run_path(str(path))["main"](machine)
    assert ("link " in found[0].summary()) is crosses is (crossed(found[0]) > 0)
    assert "spread over " in found[0].summary() or number in ("34", "35", "38")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over": "cor"}, "spread over 'cor', which is not a level right below"),
        ({"block": (2,)}, r"of shape \(8, 4\) is spread in blocks of \(2,\)"),
        ({"block": (0, 4)}, r"in blocks of \(0, 4\)"),
    ],
)
def test_wrong_spreads_are_refused(options, message) -> None:
    with pytest.raises(mt.MegatileError, match=message):
        mt.check(spread_plan(**options), WAFER)
