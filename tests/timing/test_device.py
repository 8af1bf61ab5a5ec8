"""``timing/device.py``: one device of a machine as the rules of library kernels see it."""

from pathlib import Path

import numpy as np
import pytest
from tests.timing.kernels_by_framework_cases import H100, SHAPES, us
from tests.timing.shared import predict

import megatile as mt
from megatile import hda
from megatile.core.errors import MegatileError
from megatile.hda import HDA
from megatile.hda.catalog import assumed_kernel
from megatile.timing.device import LIBRARIES
from megatile.timing.formulas import OPERATIONS, Device
from megatile.timing.schemes import SCHEMES


def test_figures_are_inherited_and_say_where_they_come_from(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nextends: dgx-h100\n", encoding="utf-8")
    shape = {"m": 512, "n": 512, "k": 512}
    mine, theirs = predict(machine=HDA.from_yaml(file), **shape), predict(**shape)
    assert mine == theirs
    assert theirs.origin.kind == "rule"
    assert "gemm_h100" in theirs.origin.source
    assert predict(machine="mi300x-8", **shape).origin.kind == "assumed"


def test_a_machine_without_a_tensor_engine_is_named(tmp_path):
    file = tmp_path / "bare.yaml"
    file.write_text(
        "{name: bare, extends: dgx-h100, engines: [{name: tensor_core, remove: true}]}", encoding="utf-8"
    )
    with pytest.raises(MegatileError, match="no tensor engine"):
        predict(machine=HDA.from_yaml(file), m=1, n=1, k=1)


def test_figures_are_assumed_for_every_kernel_without_any_and_say_so() -> None:
    described = HDA.from_yaml(Path(hda.__file__).with_name("assumed.yaml"))
    assert all(kernel.source for kernel in described.spec.kernels)
    device = Device.of(described)
    shape = {name: 1 for operation in OPERATIONS.values() for name in operation.extents}
    for operation in OPERATIONS.values():
        for dtype in ("bf16", "f8e4m3"):
            for name in operation.kernels(device, shape, dtype):
                assert device.kernel(name) is not None
    assert (assumed_kernel("attention").share, assumed_kernel("gemm").share) == (0.5, 0.8)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("operation", SHAPES)
def test_numbers_arrays_and_the_public_function_agree(operation, library):
    shape, several = SHAPES[operation], np.arange(1, 4)
    dtypes = (*SCHEMES, "bf16") if OPERATIONS[operation].schemes else ("bf16",)
    for dtype in dtypes:
        one = us(operation, dtype, library, **shape)
        many = us(operation, dtype, library, **{name: value + 0 * several for name, value in shape.items()})
        assert many == pytest.approx([one] * 3)
        told = mt.predict_kernel(
            operation, machine=H100, dtype=dtype, library=library, captured=True, **shape
        )
        assert told.time_us == pytest.approx(one)
        assert told.origin.kind in ("rule", "assumed")
        assert told.error is None or 0 < told.error < 1


def test_a_graph_hides_what_the_host_needs_to_issue_a_call():
    shape = {"m": 64, "n": 4096, "k": 4096}
    eager, captured = (
        mt.predict_kernel("gemm", machine=H100, dtype="fp8_block", captured=c, **shape).time_us
        for c in (False, True)
    )
    assert eager == H100.kernel("gemm_f8_block").issue_us
    assert captured < 15
    few = mt.predict_kernel("gemm", machine=H100, dtype="fp8_block", **shape | {"m": 8}).time_us
    assert few == H100.kernel("gemm_f8_block_few").issue_us
    odd = mt.predict_kernel("gemm", machine=H100, dtype="fp8_block", **shape | {"k": 4097}).time_us
    assert odd == H100.kernel("gemm_f8_block_odd").issue_us
