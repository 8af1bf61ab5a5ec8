"""``runtime/host/state.py``: what all parts of a host share."""

from __future__ import annotations

import pytest

import megatile as mt


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torch.zeroes(3)", "torch has no 'zeroes' on a simulated machine.*did you mean 'zeros'"),
        ("torch.nn.Linear(3, 4)", "torch.nn.Linear is not available: a simulated machine has no autograd"),
        ("torch.nn.functional.relux(3)", "did you mean 'relu'"),
        ("torch.cuda.CUDAGraph()", "torch.cuda has no 'CUDAGraph'"),
        ("torch.distributed.all_reduces(3)", "did you mean 'all_reduce'"),
        ("torch.distributed.tensor.DTensor", "import megatile.parallel"),
    ],
)
def test_names_that_are_missing_are_reported(name: str, said: str) -> None:
    with mt.host("ahbm") as torch:
        with pytest.raises(AttributeError, match=said):
            eval(name, {"torch": torch})  # noqa: S307
        assert not hasattr(torch, "compile")
