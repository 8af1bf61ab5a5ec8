"""The sizes of a sweep, as nccl-tests counts them."""

import pytest

from megatile.collectives.sweeps import sizes


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((8, 64, 2.0), [8, 16, 32, 64]),
        ((8, 63, 2.0), [8, 16, 32]),
        ((1, 4, 1.1), [1, 2, 3, 4]),
        ((4, 20, 2.0, 8), [4, 12, 20]),
        ((4, 19, 2.0, 8), [4, 12]),
        ((64, 8, 2.0), []),
    ],
)
def test_sizes_grow_by_a_factor_or_a_step(asked, found):
    assert list(sizes(*asked)) == found
