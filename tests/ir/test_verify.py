"""``ir/verify.py``: check the structure of a Program."""

import pytest
from tests.ir.shared import program

from megatile.ir.verify import VerificationError, verify


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("fill(t[0::1, 0::1])", "'t' is used before it is defined"),
        ("fill(A[0::1])", "'A' has 2 dimensions, the region 1"),
        ("fill(A[k::1, 0::1])", "variable 'k' is used before it has a value"),
        ('with scale("block"):\n    with scale("device"):\n        pass', "scale 'device' inside 'block'"),
        ('with scale("galaxy"):\n    pass', "scale 'galaxy' is not in the launch"),
        ('fill(A[rank("block", "launch")::1, 0::1])', "a rank of 'block' at scale 'launch'"),
        ('v = view("Z", shard(0), "device")', "view of 'Z', which is not defined"),
    ],
)
def test_verifier(body: str, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(program(body))
