"""``language/tile/builder.py``: the state of building one Program."""

import pytest

import megatile.language as T
from megatile.language.tile.errors import ProgramError


def test_partial_terms_are_combined_as_they_say() -> None:
    @T.program
    def p(A: T.Tensor((4,), "f32")):
        with T.Kernel(device=2), T.Scale("device"):
            T.allreduce(T.view(A, layout=T.Partial("max")))

    with pytest.raises(ProgramError, match=r"op='sum' of 'A_device', whose terms are T.Partial\('max'\)"):
        p.build()
