"""``language/tile/recording.py``: launches without a kernel."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as ours
from megatile.core.errors import MegatileError
from megatile.hda import ScaleView, machine


def launched():
    return machine("dgx-h100").instantiate([
        ScaleView("gpu", instance_num=2), ScaleView("block", instance_num=4, is_flatten=True),
        ScaleView("thread", instance_num=32, is_flatten=True),
    ])  # fmt: skip


def test_a_bare_launch_is_a_program():
    T, instance = ours, launched()
    source, result = T.Tensor((2, 4, 64), "f32"), T.Tensor((2, 4, 64), "f32")
    with instance, T.Scale("gpu") as g:
        with T.Scale("block") as b:
            tile = T.alloc((64,), "f32")
            T.copy(tile, source[g, b, 0:64])
            for k in T.serial(2):
                for i in T.Parallel(64):
                    tile[i] = tile[i] * 2 + k
            T.copy(result[g, b, 0:64], tile)
    a = np.random.default_rng(2).random((2, 4, 64), np.float32)
    found = np.zeros_like(a)
    mt.run(instance.program, a, found)
    np.testing.assert_allclose(found, 4 * a + 1, rtol=1e-6)
    assert mt.simulate(instance.program).time_ns > 0


def test_the_seeds_bare_launch_and_its_errors():
    T, instance = ours, launched()
    with pytest.raises(MegatileError, match="no statement was recorded"):
        _ = instance.program
    with instance, T.Scale("block"), T.Scale("thread"):
        ...
    assert instance.program.launch.count("thread", "block") == 32
    with pytest.raises(MegatileError, match="Python condition"), instance, T.Scale("block") as (b, _):
        assert b == 0
    with pytest.raises(MegatileError, match="no statement was recorded"):
        _ = instance.program
    dynamic = T.Tensor((T.dynamic("M"),), "f32")
    with pytest.raises(MegatileError, match="a tensor of a bare launch"), instance, T.Scale("block"):
        T.clear(dynamic)
    fixed = T.Tensor((8,), "f32")
    with pytest.raises(MegatileError, match="in a bare launch has no layout"), instance, T.Scale("block"):
        T.view(fixed)
    with pytest.raises(MegatileError, match="outside a kernel"):
        T.alloc((4,), "f32")
