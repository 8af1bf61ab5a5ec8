"""A machine is shared by all that reads it: nothing of it changes by accident, every part can be a key."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from megatile.hda import HDA, ScaleView, machine

VIEWS = [
    ScaleView("gpu"),
    ScaleView("block", instance_num=512, is_flatten=True),
    ScaleView("thread", instance_num=256, is_flatten=True),
]


@pytest.mark.parametrize(
    "change",
    [
        lambda hda: hda.engines[0].throughput.update(f16=1.0),
        lambda hda: hda.scales[0].limits.update(block=1),
        lambda hda: hda.parameters.update(gpus=1),
        lambda hda: hda.instantiate(VIEWS).inferred.clear(),
        lambda hda: hda.levels.clear(),
        lambda hda: setattr(hda, "name", "other"),
        lambda hda: delattr(hda, "name"),
    ],
)
def test_parts_cannot_be_changed(change: Callable[[HDA], Any]) -> None:
    with pytest.raises(AttributeError):
        change(machine("dgx-h100"))


def test_lists_of_the_description_are_copies() -> None:
    hda = machine("dgx-h100")
    hda.hw_spec.pe.clear()
    hda.hw_spec.pe_groups.clear()
    hda.hw_abstr.scales.clear()
    assert hda == machine("dgx-h100")
    assert len(hda.hw_spec.pe) == 3


def test_every_part_can_be_a_key() -> None:
    hda, same = machine("h100-cluster"), machine("h100-cluster")
    for one, other in (
        (hda, same),
        (hda.instantiate(VIEWS), same.instantiate(VIEWS)),
        (hda.route("gpu:0", "gpu:9"), same.route("gpu:0", "gpu:9")),
        *((getattr(hda, name), getattr(same, name)) for name in ("levels", "scales", "memories", "networks")),
        *((getattr(hda, name), getattr(same, name)) for name in ("engines", "control", "channels")),
        (hda.hw_spec.pe[0], same.hw_spec.pe[0]),
        (tuple(hda.hw_abstr.scales), tuple(same.hw_abstr.scales)),
    ):
        assert one == other
        assert hash(one) == hash(other)
        assert copy.deepcopy(one) == one
