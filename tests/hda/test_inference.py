"""``hda/inference.py``: how many instances of each scale a launch has."""

from typing import Any

import pytest
from tests.hda.shared import H100, SEED, flat, launch
from tests.hda.small import SMALL

from megatile.core.errors import InstanceError, MegatileError
from megatile.hda import HDA, ScaleView, machine


def test_4096_blocks_for_the_node() -> None:
    assert launch(SEED, flat("block", 4096), flat("thread", 256)).shape == (4096, 256)


def test_one_block_per_sm() -> None:
    assert launch(SEED, flat("block", -1), flat("thread", 256)).shape == (1152, 256)


def test_three_warp_groups() -> None:
    inst = launch(
        SEED,
        flat("block", -1),
        ScaleView("warp_group", instance_num=3),
        ScaleView("warp", instance_num=4),
        ScaleView("thread", instance_num=32),
    )
    assert inst.names == ("block", "warp_group", "warp", "thread")
    assert inst.shape == (1152, 3, 4, 32)
    assert inst.total("warp") == 1152 * 12


@pytest.mark.parametrize("hda", [SEED, H100], ids=["seed", "h100"])
def test_threads_make_warps_make_warp_groups(hda: HDA) -> None:
    inst = launch(hda, flat("block", 4), flat("thread", 256))
    assert (inst.count("warp"), inst.count("warpgroup"), inst.count("warp_group")) == (8, 2, 2)
    assert (inst.total("warp"), inst.total("warpgroup")) == (32, 8)


def test_without_flatten_the_scales_between_stay() -> None:
    inst = launch(SEED, flat("block", 4), ScaleView("thread", instance_num=256))
    assert (inst.names, inst.shape) == (("block", "warp_group", "warp", "thread"), (4, 2, 4, 32))
    assert launch(SEED, ScaleView("gpu"), ScaleView("block")).shape == (8, 8, 9, 2)


def test_too_few_threads_make_no_warp_group() -> None:
    inst = launch(SEED, flat("block", 4), flat("thread", 96))
    assert inst.count("warp") == 3
    with pytest.raises(InstanceError, match="3 warps are too few for one warp_group"):
        inst.count("warpgroup")
    with pytest.raises(InstanceError, match="too few"):
        launch(SEED, flat("block", 4), ScaleView("thread", instance_num=96))


def test_names_alone_are_views() -> None:
    assert H100.instantiate(["device", "block"]).total("block") == 1056  # type: ignore[list-item]


def test_a_view_may_bring_its_own_rule() -> None:
    inst = launch(
        SEED, flat("block", 2), ScaleView("warp", infer_lambda="lambda _t, _b: _b // 64"), flat("thread", 256)
    )
    assert inst.shape == (2, 4, 64)


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ([], "a launch needs at least one scale"),
        ([ScaleView("block"), ScaleView("block")], "scale 'block' appears twice .*name each scale once"),
        ([ScaleView("gpu"), ScaleView("device")], r"scale 'device' appears twice \(as 'gpu' and 'device'\)"),
        (
            [ScaleView("thread"), ScaleView("block")],
            "scale 'block' is larger than 'thread' but comes after it",
        ),
        ([ScaleView("blok")], "no scale 'blok' .*did you mean 'block'"),
        ([ScaleView("sm")], "'sm' is a level of the hardware, not a scale"),
        ([ScaleView("block", target="gpu")], "scale 'block' lies on level 'sm', not 'gpu'"),
        ([ScaleView("block", instance_num=0)], "0 is not a count of 'block' .*-1 to infer"),
        ([ScaleView("block", instance_num=-2)], "-2 is not a count of 'block'"),
        ([flat("block", (3, 0))], "not a count of 'block'"),
        ([flat("block", ())], "not a count of 'block'"),
        ([ScaleView("block", instance_num=1.5)], "1.5 is not a count of 'block'"),  # type: ignore[arg-type]
        ([ScaleView("block", instance_num=True)], "True is not a count"),
        ([ScaleView("gpu", instance_num=9)], "9 instances of 'device' asked for, but there are 8"),
        ([ScaleView("node", instance_num=2)], "2 instances of 'node' asked for, but there are 1"),
        ([flat("block", 4), flat("thread", 2048)], "2048 threads in one block are more than the 1024"),
        (
            [flat("block", 4), ScaleView("warp", instance_num=64), ScaleView("thread", instance_num=32)],
            "2048 threads in one block are more than the 1024",
        ),
        ([flat("cluster", 1), flat("block", 17)], "17 blocks in one cluster are more than the 16"),
        ([flat("block", 4), ScaleView("thread", instance_num=100)], "do not divide|too few"),
        ([flat("block", 4), ScaleView("warp", infer_lambda="lambda _t, _b: _b / 3")], "not a whole number"),
        ([flat("block", 4), ScaleView("warp", infer_lambda="lambda _t, _b: 0 * _b")], "gives 0 instances"),
        ([3], "3 is not a scale view"),
    ],
)
def test_contradictory_views(views: list[ScaleView], message: str) -> None:
    with pytest.raises(MegatileError, match=message):
        H100.instantiate(views)


@pytest.mark.parametrize(
    ("views", "words"),
    [
        (None, "None is not a list of scale views"),
        (7, "7 is not a list of scale views"),
        ("gpu", "'gpu' is not a list of scale views"),
        (ScaleView("gpu"), "is not a list of scale views"),
    ],
)
def test_views_that_are_not_a_list_are_refused(views: Any, words: str) -> None:
    with pytest.raises(InstanceError, match=words) as caught:
        machine("dgx-h100").instantiate(views)
    assert "[ScaleView(" in str(caught.value.advice)


def test_t_is_the_count_of_the_next_larger_scale_whether_named_or_collapsed() -> None:
    data = {**SMALL, "hw_abstr": [dict(scale) for scale in SMALL["hw_abstr"]]}
    data["hw_abstr"].insert(
        1, {"name": "warp", "target": "core", "infer_lambda": "lambda _t, _b: _b // (_t * 2)"}
    )
    hda = HDA.from_dict(data)
    named = launch(hda, flat("block", 3), ScaleView("warp"), ScaleView("thread", instance_num=24))
    assert named.shape == (3, 4, 6)  # 24 threads // (3 blocks * 2)
    assert launch(hda, flat("block", 3), flat("thread", 24)).count("warp") == 4
    assert launch(hda, flat("block", 3), ScaleView("thread", instance_num=24)).shape == (3, 4, 6)
