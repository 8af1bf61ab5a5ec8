"""Programs of machines that call memories and scales otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.ir.parser import parse
from megatile.targets.common.names import with_usual_memories, with_usual_scales
from megatile.targets.interpret.errors import RemoteAccessError

OWN = Path(__file__).parent.parent / "mine.yaml"


@T.program
def turned(X: T.Tensor((8, 4), "f32"), Y: T.Tensor((8, 4), "f32")):
    with T.Kernel(device=4), T.Scale("device") as (r, n):
        x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
        t = T.alloc((2, 4), "f32", level="l2")
        T.copy(t, x, dst=(r + 1) % n)
        T.barrier()
        T.copy(y, t)


@T.program
def reaching(X: T.Tensor((8, 4), "f32"), Y: T.Tensor((8, 4), "f32")):
    with T.Kernel(device=4), T.Scale("device") as (r, n):
        y = T.view(Y, layout=T.FullRow)
        T.copy(T.view(X, layout=T.FullRow), y)
        T.copy(y, X[(r + 1) % n * 2 : (r + 1) % n * 2 + 2, :])


def test_memories_and_scales_get_the_usual_names() -> None:
    own = mt.machine(str(OWN))
    program = turned.build(own)
    assert program.launch.device_scale == "gpu"
    usual = with_usual_scales(with_usual_memories(program, own), own)
    standard = turned.build("dgx-h100")
    assert str(usual).partition("with")[2] == str(standard).partition("with")[2]
    assert usual.launch.device_scale == usual.launch.dispatch == "device"
    assert with_usual_scales(standard) is standard


def test_the_name_of_the_scale_of_devices_survives_the_text() -> None:
    program = turned.build(mt.machine(str(OWN)))
    assert parse(str(program)).launch == program.launch
    assert program.launch.devices == 4


@pytest.mark.parametrize("machine", ["dgx-h100", str(OWN)])
def test_another_devices_part_is_out_of_reach_whatever_devices_are_called(machine: str) -> None:
    x = np.zeros((8, 4), np.float32)
    with pytest.raises(RemoteAccessError, match="in the part of another"):
        mt.run(reaching, x, x.copy(), machine=mt.machine(machine))
