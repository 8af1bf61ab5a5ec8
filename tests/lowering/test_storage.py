"""``lowering/storage.py``: homes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


def shifted(devices: int, rows: int = 6, by: str = "dst", inside: bool = False):
    """Every device's X goes to the next one's Y, doubled, by the device or by its blocks."""

    @T.program
    def kernel(X: T.Symmetric((rows, 4), "f32"), Y: T.Symmetric((rows, 4), "f32")):
        with T.Kernel(device=devices, block=2, threads=32) as bx, T.Scale("device") as (r, n):
            if inside:
                with T.Scale("block"):
                    x = T.alloc((rows // 2, 4), "f32", level="l1")
                    T.copy(x, X[bx * (rows // 2), 0])
                    T.copy(Y[bx * (rows // 2), 0], x, dst=(r + 1) % n, scale="device")
            elif by == "dst":
                T.copy(Y, X, dst=(r + 1) % n)
            else:
                T.copy(Y, X, src=(r - 1) % n)
            T.barrier()
            for i, j in T.Parallel(rows, 4):
                Y[i, j] = Y[i, j] * 2.0

    x = np.arange(devices * rows * 4, dtype="f4").reshape(devices, rows, 4)
    return kernel, [x, np.zeros_like(x)]


@pytest.mark.parametrize("more", [{}, {"by": "src"}, {"inside": True}], ids=str)
@pytest.mark.parametrize("devices", [2, 3])
def test_every_device_has_its_own_copy(devices: int, more: dict[str, Any]) -> None:
    prog, (x, y) = shifted(devices, **more)
    wanted = 2 * np.roll(x, 1, axis=0)
    got = y.copy()
    mt.run(prog, x, got)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(mt.execute(prog, x, y)["Y"], wanted)
    result = mt.simulate(prog, x, y)
    np.testing.assert_array_equal(result.outputs["Y"], wanted)
    if more.get("inside"):
        return  # C for puts of blocks is refused in a sentence
    compiled = mt.compile(prog, machine="dgx-h100")
    again = y.copy()
    compiled(x, again)
    np.testing.assert_array_equal(again, wanted)


def test_its_home_is_every_device() -> None:
    lowered = mt.lower(shifted(3)[0], machine="dgx-h100")
    assert "X: f32[1, 6, 4] in hbm as" in str(lowered)
    assert lowered.plan.tile("X").shape == (1, 6, 4)
    assert lowered.plan.owners(lowered.plan.tile("X")) == 3


def test_as_many_copies_as_devices() -> None:
    prog, (x, y) = shifted(3)
    with pytest.raises(
        mt.MegatileError, match=r"'X' has copies for 2 devices, and the launch has 3.*\(3, 6, 4\)"
    ):
        mt.run(prog, x[:2], y[:2])


def test_an_atomic_to_another_device() -> None:
    @T.program
    def kernel(X: T.Symmetric((4,), "i32")):
        with T.Kernel(device=3, block=2, threads=32), T.Scale("device") as (r, n), T.Scale("block"):
            one = T.alloc((4,), "i32")
            T.fill(one, 1)
            T.atomic_add(X[0:4], one, dst=(r + 1) % n, scale="device")

    x = np.zeros((3, 4), "i4")
    got = x.copy()
    mt.run(kernel, got)
    np.testing.assert_array_equal(got, np.full((3, 4), 2))
    np.testing.assert_array_equal(mt.execute(kernel, x)["X"], got)


def test_anothers_part_of_a_divided_tensor_needs_src() -> None:
    """An error names both devices."""

    @T.program
    def kernel(X: T.Tensor((8, 4), "f32"), Y: T.Tensor((8, 4), "f32")):
        with T.Kernel(device=2, block=1, threads=32), T.Scale("device") as r:
            T.view(X, layout=T.FullRow)
            y = T.view(Y, layout=T.FullRow)
            T.copy(y, X[(1 - r) * 4, 0])

    x = np.ones((8, 4), "f4")
    for go in (mt.run, mt.execute):
        with pytest.raises(mt.MegatileError, match=r"device 0.*device 1.*src="):
            go(kernel, x, x.copy())
