"""Questions to a machine: units, parents, coordinates, routes, neighbours, shared memory, bisection."""

import pytest
from tests.hda.shared import AHBM, CLUSTER, H100, SEED, WAFER
from tests.hda.small import SMALL, small

from megatile.core.errors import MachineError, MissingDescriptionError, RouteError
from megatile.hda import (
    HDA,
    ComputeUnit,
    HardwareAbstraction,
    HardwareSpecification,
    ScaleView,
    machine,
)


def test_the_seed_file_loads_unchanged() -> None:
    assert [level.total for level in SEED.levels] == [147456, 4608, 1152, 576, 64, 8, 1]
    assert [s.name for s in SEED.scales][:3] == ["thread", "warp", "warp_group"]
    assert SEED.count("block", within="gpu") == 144


def test_who_needs_more_says_which_keys() -> None:
    with pytest.raises(
        MissingDescriptionError, match=r"does not describe: memory, engines .*add the keys memory"
    ):
        SEED.require("memory", "engines")
    for ask in (lambda: SEED.memory("l1"), lambda: SEED.network("x"), lambda: SEED.bisection("gpu")):
        with pytest.raises(MissingDescriptionError):
            ask()
    with pytest.raises(MissingDescriptionError, match="networks"):
        SEED.route(("gpu", 0), ("gpu", 1))
    H100.require("memory", "networks", "engines", "control")


def test_made_of_objects() -> None:
    made = HDA(
        HardwareSpecification([ComputeUnit("lane", 1)], [ComputeUnit("core", 8)]),
        HardwareAbstraction([ScaleView("thread", "lane"), ScaleView("block", "core", "lambda _t, _b: _b")]),
        name="made",
    )
    assert (made.name, made.count("thread"), made.count("block")) == ("made", 8, 1)
    assert HDA.from_dict(made.to_dict()) == made
    assert made.hw_spec.pe[0].name == "lane"
    assert made.hw_abstr.scales[1].target == "core"


# routes


def test_via() -> None:
    assert CLUSTER.route(("gpu", 0), ("gpu", 1), via="infiniband").networks == ("infiniband",)
    with pytest.raises(RouteError, match="no network nvlink joins"):
        CLUSTER.route(("gpu", 0), ("gpu", 8), via="nvlink")
    with pytest.raises(MachineError, match=r"no network 'nvlnk' .*did you mean 'nvlink'"):
        CLUSTER.route(("gpu", 0), ("gpu", 1), via="nvlnk")


def test_shared_memory() -> None:
    assert H100.shared_memory(("thread", 0), ("thread", 40)).name == "shared"  # type: ignore[union-attr]
    assert H100.shared_memory(("sm", 0), ("sm", 1)).name == "hbm"  # type: ignore[union-attr]
    assert H100.shared_memory(("gpu", 0), ("gpu", 1)) is None


# neighbours and bisection


def test_neighbours() -> None:
    assert [u.index for u in H100.neighbors(("gpu", 3))] == [0, 1, 2, 4, 5, 6, 7]
    assert {u.index for u in WAFER.neighbors(("core", (1, 1)))} == {851 + 1, 851 - 1, 851 + 850, 851 - 850}
    assert [u.index for u in AHBM.neighbors(("cube", 16))] == [17, 20], "no wrap, inside its own SIP"
    assert list(H100.neighbors(("tpc", 0))) == []


def test_bisection() -> None:
    assert H100.bisection("gpu") == pytest.approx(4 * 450e9 * 0.873)
    assert WAFER.bisection("core") == pytest.approx(850 * 4 * 1.1e9)
    assert CLUSTER.bisection("gpu") == pytest.approx(50_000 * 50e9 * 0.97)
    assert machine("mi300x-8").bisection("gpu") == pytest.approx(16 * 64e9 * 0.727)
    assert H100.bisection("node") == 0
    with pytest.raises(RouteError, match="no network joins units of 'chip'"):
        HDA.from_dict(SMALL).bisection("chip")


# names, equality, text


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: H100.scale("blok"), "no scale 'blok' .*did you mean 'block'"),
        (lambda: H100.memory("share"), "no memory 'share' .*did you mean 'shared'"),
        (lambda: H100.network("nvlnk"), "no network 'nvlnk' .*did you mean 'nvlink'"),
    ],
)
def test_unknown_names(ask: object, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        ask()  # type: ignore[operator]


def test_equal_machines_have_equal_hashes() -> None:
    one = HDA.from_dict(small(memory__0__bandwidth="0.5 TB/s"))
    two = HDA.from_dict(small(memory__0__bandwidth="500 GB/s"))
    assert one == two
    assert hash(one) == hash(two)
    assert one != HDA.from_dict(SMALL)
    assert one != 3


def test_a_machine_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="cannot be changed"):
        H100.name = "x"  # type: ignore[misc]


def test_engines_and_throughput() -> None:
    assert [e.name for e in H100.engines_of("block", "tensor")] == ["tensor_core"]
    assert [e.name for e in H100.engines_of("device")] == ["copy_engine"]
    assert H100.throughput("device", "f8e5m2") == H100.throughput("device", "f8e4m3")
    assert H100.throughput("node", "f16") == pytest.approx(8 * H100.throughput("device", "f16"))
    assert H100.throughput("device", "bool", kind="dma") == 0


def test_text() -> None:
    assert repr(H100) == "HDA(dgx-h100: 8 gpu × 6 gpc × 11 tpc × 2 sm × 4 subcore × 32 lane)"


def test_a_million_units_are_cheap() -> None:
    for i in range(2000):
        assert WAFER.route(("core", i * 400), ("core", 849_999 - i)).hop_count >= 0


def test_who_asks_for_engines_or_neighbours_says_which_keys() -> None:
    with pytest.raises(MissingDescriptionError, match="engines"):
        SEED.throughput("gpu", "f16")
    with pytest.raises(MissingDescriptionError, match="networks"):
        SEED.neighbors("gpu:0")
