"""How kernels are read: hidden state, jumps, symbols used as numbers, data-dependent programs, wrong use."""

from __future__ import annotations

import re
from itertools import count

import numpy as np
import pytest
from tests.language.kernel.reader_cases import both, run

from megatile.language import tl
from megatile.language.common.rewrite import RewriteError
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.plan.model import Loop, statements


def loops(plan):
    return [s for stream in plan.streams for s in statements(stream.body) if isinstance(s, Loop)]


def test_a_growing_list_unrolls_the_loop():
    def kernel(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        seen = []
        for step in range(3):
            seen.append(tl.load(mine, (4,)) + step)
        total = seen[0]
        for tile in seen[1:]:
            total = total + tile
        tl.store(mine, total)

    plan, x, result = run(kernel)
    assert not loops(plan)
    np.testing.assert_array_equal(result, 3 * x + 3)


def test_an_attribute_that_changes_unrolls_the_loop():
    class Box:
        value = 0

    def kernel(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        box = Box()
        box.value = 1
        x = tl.load(mine, (4,))
        for _ in range(3):
            box.value = box.value + 1
            x = x + box.value
        tl.store(mine, x)

    plan, x, result = run(kernel)
    assert not loops(plan)
    np.testing.assert_array_equal(result, x + 2 + 3 + 4)


def test_a_hidden_counter_is_found_by_reading_twice():
    numbers = count(1)

    def kernel(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        x = tl.load(mine, (4,))
        for _ in range(2):
            x = x + next(numbers)
        tl.store(mine, x)

    plan, _, _ = run(kernel)
    assert not loops(plan)


def test_break_unrolls_and_still_counts_right():
    def kernel(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        x = tl.load(mine, (4,))
        for step in range(10):
            if step == 3:
                break
            if step == 1:
                continue
            x = x + 1
        tl.store(mine, x)

    _, x, result = run(kernel)
    np.testing.assert_array_equal(result, x + 2)


def test_early_return_on_a_rank():
    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        mine = t_ptr + rank * 8
        if rank == 1:
            return
        tl.store(mine, tl.load(mine, (4,)) * 2)

    plan, x, result = run(kernel)
    assert len(plan.streams) == 1
    expected = x * 2
    expected[1] = x[1]
    np.testing.assert_array_equal(result, expected)


def test_a_jump_out_of_a_loop_on_a_rank_splits_units():
    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        mine = t_ptr + rank * 8
        x = tl.load(mine, (4,))
        for step in range(3):
            if rank == step:
                break
            x = x + 1
        tl.store(mine, x)

    plan, x, result = run(kernel, units=4)
    assert len(plan.streams) == 4
    np.testing.assert_array_equal(result, x + np.asarray([[0], [1], [2], [3]]))


def test_tables_indexed_by_symbols():
    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        mine = t_ptr + rank * 8
        x = tl.load(mine, (4,))
        for _ in range([2, 0, 5][rank]):
            x = x + 1
        tl.store(mine, x)

    plan, x, result = run(kernel)
    assert len(plan.streams) == 1
    np.testing.assert_array_equal(result, x + np.asarray([[2], [0], [5]]))


def test_value_first_made_in_a_loop_is_there_after_it():
    def kernel(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        x = tl.load(mine, (4,))
        for step in range(4):
            last = x + step
            number = step * 2
        tl.store(mine, last + number)

    plan, x, result = run(kernel)
    assert len(loops(plan)) == 1
    np.testing.assert_array_equal(result, x + 3 + 6)


def test_while_with_known_numbers():
    def kernel(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        x = tl.load(mine, (4,))
        left = 3
        while left > 0:
            x = x + left
            left -= 1
        tl.store(mine, x)

    _, x, result = run(kernel)
    np.testing.assert_array_equal(result, x + 6)


def test_read_scalar_drives_a_loop():
    def kernel(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        x = tl.load(mine, (4,))
        times = tl.read_scalar(x, 1, bound=8)
        for _ in range(times):
            x = x + 1
        if times > 2:
            x = x * 2
        tl.store(mine, x)

    plan, x, result = run(kernel)
    assert len(loops(plan)) == 1
    times = x[:, 1:2]
    np.testing.assert_array_equal(result, (x + times) * np.where(times > 2, 2, 1))
    mock = run_kernel_in_mock(kernel, 3, "ring_1d", list(x), ())
    np.testing.assert_array_equal(np.stack(mock), result)


def test_a_branch_on_data_says_so():
    def kernel(t_ptr, tl):
        x = tl.load(t_ptr, (4,))
        if x > 0:
            tl.store(t_ptr, x)

    with pytest.raises(tl.DataBranchError, match=r"(?s)test_reader.py:\d+: a branch on data.*read_scalar"):
        run(kernel)


def test_nonlocal_is_refused():
    state = 0

    def kernel(t_ptr, tl):
        nonlocal state
        state += 1

    with pytest.raises(RewriteError, match="'nonlocal' is not supported"):
        run(kernel)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tl.recieve(dir='W')", r"tl has no 'recieve' \(try: did you mean"),
        (
            "tl.recv(direction='W', shape=(4,))",
            r"tl\.recv\(\) got an unexpected keyword .*'direction'",
        ),
        ("tl.send('E', 'abc')", "tl.send takes a tile, not 'abc'"),
        ("tl.store(t_ptr, 3)", "tl.store takes a tile, not 3"),
        ("tl.zeros((4,))[0]", "cannot be taken one by one.*tl.read_scalar"),
        ("missing + 1", "NameError: name 'missing' is not defined"),
        ("1 // 0", "ZeroDivisionError"),
    ],
)
def test_mistakes_in_python_name_the_line_of_the_kernel(line, message, tmp_path):
    file = tmp_path / "mistake.py"
    file.write_text(f"def kernel(t_ptr, tl):\n    {line}\n")
    found: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), found)
    error = both(found["kernel"], tl.KernelError)
    assert re.search(message, str(error))
    assert error.place.line == 2


def test_raw_memory_in_a_loop():
    def kernel(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8 * 2
        x = tl.load(mine, (8,))
        for _ in range(3):
            tl.store(0x1000, x)
            x = tl.load(0x1000, (8,)) + 1.0
        tl.store(mine, x)

    plan, x, result = run(kernel, elements=8)
    assert len([s for s in plan.streams[0].body if isinstance(s, Loop)]) == 1
    np.testing.assert_array_equal(result, x + 3)


def test_shapes_that_do_not_fit_name_the_line():
    def kernel(t_ptr, tl):
        tl.dot(tl.load(t_ptr, (2, 2)), tl.load(t_ptr, (1, 4)))

    with pytest.raises(tl.KernelError, match=r"test_reader.py:\d+: gemm: inner extents 2 and 1 differ"):
        run(kernel, units=1)


def test_slots_are_given_back_through_branches_and_inner_loops():
    """With two slots per queue, one that is never given back would end in a deadlock."""

    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        mine = t_ptr + rank * 8
        current = tl.load(mine, (4,))
        for step in range(12):
            tl.send(dir="E", src=current)
            got = tl.recv(dir="W", shape=(4,))
            if rank % 2 == 0:
                current = got + 1
            elif step > 5:
                current = got
            else:
                current = got * 1
            for _ in range(2):
                tl.send(dir="W", src=current)
                tl.recv(dir="E", shape=(4,))
                current = current + 0
        tl.store(mine, current)

    plan, x, result = run(kernel, units=4, n_slots=2)
    mock = run_kernel_in_mock(kernel, 4, "ring_1d", list(x))
    np.testing.assert_array_equal(result, np.stack(mock))
    assert len(plan.streams) == 1
