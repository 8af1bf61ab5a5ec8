"""``timing/schemes.py``: how weights and activations of a product are stored and multiplied."""

import pytest
from tests.timing.kernels_by_framework_cases import H100

import megatile as mt
from megatile.core.errors import MegatileError


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"library": "vlm"}, "library 'vlm' is unknown (try: did you mean 'vllm'"),
        ({"library": 3}, "library 3 is unknown"),
        ({"dtype": "fp8_blok"}, "did you mean 'fp8_block'"),
        ({"dtype": "f17"}, "dtype 'f17' is unknown"),
    ],
)
def test_bad_input_is_one_clear_error(asked, message):
    with pytest.raises(MegatileError) as caught:
        mt.predict_kernel("gemm", machine=H100, m=1, n=1, k=1, **asked)
    assert message in str(caught.value)
