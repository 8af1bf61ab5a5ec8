"""``ir/launch.py``: scales of a launch and their units."""

from megatile.ir.launch import ROOT, Launch, LaunchScale

LAUNCH = Launch(
    (LaunchScale("device", (4,)), LaunchScale("block", (2, 3)), LaunchScale("thread", (128,))),
    dispatch="block", slots=2, host="device",
)  # fmt: skip


def test_units_are_counted_below_any_scale() -> None:
    assert [LAUNCH.depth(s) for s in (ROOT, "device", "block", "thread")] == [0, 1, 2, 3]
    assert [LAUNCH.at(depth) for depth in range(4)] == [ROOT, "device", "block", "thread"]
    assert (LAUNCH.count("block"), LAUNCH.count("block", "device"), LAUNCH.count("thread", "block")) == (
        24,
        6,
        128,
    )
    assert (LAUNCH.devices, LAUNCH.extents("block")) == (4, (2, 3))
    assert Launch((LaunchScale("block", (5,)),), dispatch="block").devices == 1


def test_several_scales_are_one_axis_and_those_of_one_unit_are_left_out() -> None:
    assert LAUNCH.grid("block", "device") == (2, 3)
    assert LAUNCH.grid("block") == (24,)
    single = Launch((LaunchScale("device", (1,)), LaunchScale("block", (2, 3))), dispatch="block")
    assert single.grid("block") == (2, 3)
    assert single.grid("device") == (1,)


def test_blocks_end_with_their_tiles_and_devices_stay() -> None:
    assert [LAUNCH.is_private(s) for s in ("device", "block", "thread")] == [False, True, True]
    assert LAUNCH.is_dispatched(0, 2)
    assert LAUNCH.is_dispatched(1, 2)
    assert not LAUNCH.is_dispatched(2, 3)
    devices = Launch((LaunchScale("device", (4,)),), dispatch="device", resident=True)
    assert not devices.is_private("device")
