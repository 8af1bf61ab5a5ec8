"""``language/kernel/symbols.py``: integers whose value is not known while a kernel is read."""

from __future__ import annotations

import numpy as np
import pytest
from tests.language.kernel.reader_cases import run

from megatile.language import tl


def test_text_of_a_rank_reads_unit_by_unit_and_merges():
    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        mine = t_ptr + rank * 8
        x = tl.load(mine, (4,))
        if f"{rank % 2}" == "1":
            x = x * 2
        tl.store(mine, x)

    plan, x, result = run(kernel, units=6)
    assert len(plan.streams) == 2
    expected = x.copy()
    expected[1::2] *= 2
    np.testing.assert_array_equal(result, expected)


def test_a_loop_whose_length_depends_on_the_rank_is_unrolled_per_unit():
    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        mine = t_ptr + rank * 8
        seen = [tl.load(mine, (4,))]
        for step in range(rank):
            seen.append(seen[step] + step)
        tl.store(mine, seen[rank])

    plan, x, result = run(kernel, units=4)
    assert len(plan.streams) == 4
    np.testing.assert_array_equal(result, x + np.asarray([[0], [0], [1], [3]]))


def test_a_runtime_number_cannot_be_a_number_while_reading():
    def kernel(t_ptr, tl):
        x = tl.load(t_ptr, (4,))
        times = tl.read_scalar(x, 0, bound=3)
        tl.store(t_ptr, [x, x + 1][times])

    with pytest.raises(
        tl.KernelError, match=r"test_symbols.py:\d+: the value of 'scalar' is needed as an index"
    ):
        run(kernel, units=1)
