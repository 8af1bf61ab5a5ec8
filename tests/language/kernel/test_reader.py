"""How kernels are read: hidden state, jumps, symbols used as numbers, data-dependent programs, wrong use."""

from __future__ import annotations

import re
from itertools import count

import numpy as np
import pytest
from tests.language.kernel import kernels

from megatile.cost.price import price
from megatile.language import tl
from megatile.language.common.rewrite import RewriteError
from megatile.language.kernel.directions import TopologyError
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Loop, PlanError, statements
from megatile.plan.races import RaceError
from megatile.sim import simulate


def run(kernel, units=3, elements=4, extra=(), **options):
    """Read, check and execute a kernel; its plan, its input and its result."""
    options.setdefault("topology", "ring_1d")
    plan = tl.read_kernel(kernel, [tl.Tensor("t", (elements,)), *extra], world_size=units, **options)
    check(plan)
    x = np.random.default_rng(0).integers(0, 4, (units, elements)).astype("f2")
    return plan, x, execute(plan, {"t": x})["t"]


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
        tl.KernelError, match=r"test_reader.py:\d+: the value of 'scalar' is needed as an index"
    ):
        run(kernel, units=1)


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


def test_choosing_between_tiles_and_integers():
    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        mine = t_ptr + rank * 8
        x = tl.load(mine, (4,))
        y = x * 2 if rank > 0 and not (rank == 2 or rank == 9) else x
        factor = 3 if 0 < rank <= 2 else 1
        tl.store(mine, y * factor + min(rank, 1) + max(rank, 1) + abs(rank - 2))

    plan, x, result = run(kernel, units=4)
    assert len(plan.streams) == 1
    y = x * np.asarray([1, 2, 1, 2])[:, None]
    extra = np.asarray([0 + 1 + 2, 1 + 1 + 1, 1 + 2 + 0, 1 + 3 + 1])[:, None]
    np.testing.assert_array_equal(result, y * np.asarray([1, 3, 3, 1])[:, None] + extra)


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


def told(error_info):
    """Class, message and line of an error: what the plan and the mock have to agree on."""
    error = error_info.value
    return type(error), error.message, error.place.file, error.place.line


def both(kernel, error, units=4, topology="ring_1d", elements=4, extra=(), **options):
    """The error that a kernel gives as a plan and in the mock; both must be the same."""
    with pytest.raises(error) as as_plan:
        run(kernel, units, elements, extra, topology=topology, **options)
    inputs = list(np.zeros((units, elements), "f2"))
    with pytest.raises(error) as in_mock:
        run_kernel_in_mock(kernel, units, topology, inputs, extra, **options)
    assert told(as_plan) == told(in_mock)
    return as_plan.value


def test_unknown_direction():
    def kernel(t_ptr, tl):
        tl.send(dir="N", src=tl.load(t_ptr, (4,)))

    error = both(kernel, tl.IpcqInvalidDirection)
    assert "there is no direction 'N'" in str(error)
    assert "test_reader.py" in str(error)
    assert "E, W" in str(error)


@pytest.mark.parametrize("sending", [True, False])
def test_a_direction_over_the_edge(sending):
    def sends(t_ptr, tl):
        tl.send(dir="E", src=tl.load(t_ptr + tl.rank * 8, (4,)))
        tl.recv(dir="W", shape=(4,))

    def receives(t_ptr, tl):
        tl.recv(dir="N", shape=(4,))

    kernel = sends if sending else receives
    error = both(kernel, tl.IpcqInvalidDirection, topology="mesh_2d_no_wrap")
    words = "unit 1 sends in direction E" if sending else "unit 0 receives in direction N"
    assert f"{words} on channel 'ipcq', where it has no neighbour" in str(error)


def test_deadlock_in_plan_and_mock():
    def kernel(t_ptr, tl):
        tl.recv(dir="W", shape=(4,))

    error = both(kernel, tl.IpcqDeadlock, units=3)
    assert "unit 0 waits for a message on ipcq.W from unit 2 at " in str(error)
    assert "each waits for the next: 0 -> 2 -> 1 -> 0" in str(error)


def test_a_deadlock_of_some():
    def kernel(t_ptr, tl):
        if tl.rank == 0:
            tl.send(dir="E", src=tl.load(t_ptr, (4,)))
        else:
            tl.recv(dir="W", shape=(4,))

    assert "unit 2 waits for a message on ipcq.W from unit 1" in str(both(kernel, tl.IpcqDeadlock))


def test_deadlock_for_want_of_slots():
    error = both(kernels.naive_ring, tl.IpcqDeadlock, extra=(4, 4), n_slots=1)
    assert "waits for a free slot of ipcq.W of unit 1" in str(error)

    def flood(t_ptr, tl):
        for _ in range(3):
            tl.send(dir="E", src=tl.load(0, (4,)))

    error = both(flood, tl.IpcqDeadlock, n_slots=2)
    # head 2: two messages sent, no credit is back
    assert "unit 0          ->ipcq.W    unit 1             2    0" in str(error)
    assert len(error.graph.cycle()) == 4
    assert error.graph.dot().startswith("digraph")


def test_tiles_that_are_kept_hold_their_slots():
    def keeps(t_ptr, count, tl):
        mine = t_ptr + tl.rank * 8
        x = tl.load(mine, (4,))
        kept = []
        for _ in range(count):
            tl.send(dir="E", src=x)
            kept.append(tl.recv(dir="W", shape=(4,)))
        for tile in kept:
            x = x + tile
        tl.store(mine, x)

    inputs = list(np.ones((3, 4), "f2"))
    assert (np.stack(run_kernel_in_mock(keeps, 3, "ring_1d", inputs, (4,))) == 5).all()
    error = both(keeps, tl.IpcqDeadlock, units=3, extra=(5,))
    assert "waits for a free slot of ipcq.W" in str(error)
    run_kernel_in_mock(keeps, 3, "ring_1d", inputs, (5,), n_slots=None)


def test_messages_that_nobody_receives():
    def kernel(t_ptr, tl):
        tl.send(dir="E", src=tl.load(t_ptr + tl.rank * 8, (4,)))

    for go in (run, lambda k: run_kernel_in_mock(k, 3, "ring_1d", list(np.zeros((3, 4), "f2")))):
        with pytest.raises(
            PlanError, match=r"reader.py:\d+: 1 message from unit 2 is never received on ipcq.W of unit 0"
        ):
            go(kernel)


def test_sizes_that_differ():
    def kernel(t_ptr, tl):
        tl.send(dir="E", src=tl.load(t_ptr + tl.rank * 8, (4,)))
        tl.recv(dir="W", shape=(2,))

    for go in (run, lambda k: run_kernel_in_mock(k, 3, "ring_1d", list(np.zeros((3, 4), "f2")))):
        with pytest.raises(PlanError, match=r"unit \d expects 4 bytes, the message has 8"):
            go(kernel)


def test_a_race_is_found_by_plan_and_mock():
    def kernel(t_ptr, tl):
        mine = t_ptr + tl.rank * 8
        other = t_ptr + (tl.rank + 1) % tl.world_size * 8
        tl.store(other, tl.load(mine, (4,)))

    for go in (run, lambda k: run_kernel_in_mock(k, 3, "ring_1d", list(np.zeros((3, 4), "f2")))):
        with pytest.raises(RaceError, match="race on tile 't' of owner"):
            go(kernel)


def test_wrong_use_names_the_line_in_the_mock_too():
    def shapes(t_ptr, tl):
        a, b = tl.load(t_ptr + tl.rank * 8, (4,)), tl.zeros((3,), "f16")
        tl.store(t_ptr, a + b)

    def outside(t_ptr, tl):
        tl.load(t_ptr + tl.rank * 8, (64,))

    def another_type(t_ptr, tl):
        tl.load(t_ptr + tl.rank * 8, (2,), "f32")

    def too_large(t_ptr, tl):
        tl.send(dir="E", src=tl.load(t_ptr + tl.rank * 8, (4,)))

    def scalar(t_ptr, tl):
        tl.read_scalar(tl.full((1,), 7, "i32"), bound=3)

    both(shapes, tl.KernelError)
    both(another_type, tl.KernelError)
    both(too_large, tl.KernelError, slot_size=4)
    for kernel, error, text in (
        (outside, PlanError, r"'t' of extents \(4,\) has no elements 0:64"),
        (scalar, PlanError, r"read_scalar gave 7, outside 0\.\.3"),
    ):
        for go in (run, lambda k: run_kernel_in_mock(k, 3, "ring_1d", list(np.zeros((3, 4), "f2")))):
            with pytest.raises(error, match=rf"(?s)reader.py:\d+: {text}"):
                go(kernel)


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


def test_messages_in_pieces_in_the_mock():
    x = np.arange(48, dtype="f2").reshape(3, 16)
    options = {"slot_size": 8, "split": True}
    outputs = run_kernel_in_mock(kernels.hello_send, 3, "ring_1d", list(x), (16,), n_slots=4, **options)
    np.testing.assert_array_equal(np.stack(outputs), np.roll(x, 1, axis=0))
    both(kernels.hello_send, tl.IpcqDeadlock, 3, elements=16, extra=(16,), n_slots=2, **options)


def test_a_tile_larger_than_a_slot_is_refused_or_split():
    with pytest.raises(
        tl.KernelError, match=r"a tile of 32 bytes does not fit a slot of 8 bytes.*split=True"
    ):
        run(kernels.hello_send, elements=16, extra=(16,), slot_size=8)
    plan, x, result = run(kernels.hello_send, elements=16, extra=(16,), slot_size=8, split=True, n_slots=4)
    assert plan.channel("ipcq").slot_bytes == 8
    np.testing.assert_array_equal(result, np.roll(x, 1, axis=0))
    with pytest.raises(tl.KernelError, match="not even one element of f16 fits a slot of 1 bytes"):
        run(kernels.hello_send, elements=16, extra=(16,), slot_size=1, split=True)


@pytest.mark.parametrize("units", [0, -1])
def test_a_kernel_needs_units(units):
    with pytest.raises(tl.KernelError, match=f"world_size={units} is not a number of 1 or more"):
        run(kernels.hello_send, units=units, extra=(4,))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"world_size": "4"}, "world_size='4' is not a number of 1 or more"),
        ({"grid": 4}, "grid=4 is not a sequence of counts"),
        ({"grid": (2, 0)}, "grid=0 is not a number"),
        ({"scale": 3}, "scale=3 is not a name"),
        ({"memory": 3}, "memory=3 is not a name"),
        ({"n_slots": 0}, "n_slots=0 is not a number"),
        ({"n_slots": 1.5}, "n_slots=1.5 is not a number"),
        ({"slot_size": -1}, "slot_size=-1 is not a number"),
        ({"neighbors": 3}, "neighbors=3 is not a function"),
        ({"kernel": None}, "kernel=None is not a function"),
        ({"arguments": None}, "arguments=None is not a list"),
        (
            {"machine": "ahbm", "memory": "hmb"},
            r"'ahbm' has no memory 'hmb' \(memory=\) .*did you mean 'hbm'",
        ),
        ({"machine": "ahbm", "scale": "block"}, r"'ahbm' has no scale 'block' \(scale=\)"),
    ],
)
def test_errors_name_the_argument(given, words):
    whole = {"kernel": kernels.hello_send, "arguments": [tl.Tensor("t", (4,)), 4], "world_size": 2, **given}
    with pytest.raises(tl.KernelError, match=words):
        tl.read_kernel(whole.pop("kernel"), whole.pop("arguments"), **whole)


@pytest.mark.parametrize(
    ("machine", "names"),
    [
        ("dgx-h100", ("block", "hbm", "shared")),
        ("ahbm", ("pe", "hbm", "tcm")),
        ("cerebras-wse2", ("core", "sram", "sram")),
        ("cpu", ("block", "ram", "scratch")),
    ],
)
def test_a_machine_gives_scale_and_memories(machine, names):
    plan = tl.read_kernel(kernels.hello_send, [tl.Tensor("t", (4,)), 4], world_size=2, machine=machine)
    assert (plan.scale, plan.tile("t").memory, plan.channels[0].memory) == names
    simulate(plan, machine=machine)


def test_a_missing_argument_is_told_by_the_kernels_own_name():
    with pytest.raises(TypeError, match=r"^hello_send\(\) missing"):
        run(kernels.hello_send)


def test_raw_memory_that_overlaps_is_the_same_memory_or_refused():
    def tail(t_ptr, step, tl):
        mine = t_ptr + tl.program_id(0) * 8 * 2
        tl.store(0x1000, tl.load(mine, (8,)))
        tl.store(0x2000, tl.load(mine, (8,)))
        tl.store(mine, tl.load(0x1000 + step, (4,)))

    _plan, x, result = run(tail, elements=8, extra=(8,))
    np.testing.assert_array_equal(result[:, :4], x[:, 4:])
    mock = run_kernel_in_mock(tail, 3, "ring_1d", list(x.copy()), (8,))
    np.testing.assert_array_equal(np.stack(mock), result)
    for step in (10, 7, -2):  # over the end, between elements, over the begin
        with pytest.raises(tl.KernelError, match=r"overlaps f16\[8\] at 4096"):
            run(tail, elements=8, extra=(step,))

    def turns(t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8 * 2
        for i in range(4):
            tl.store(0x1000 + i % 2 * 16, tl.load(mine, (8,)))
            tl.store(mine, tl.load(0x1000 + (i + 1) % 2 * 16, (8,)))

    with pytest.raises(tl.KernelError, match="may overlap"):
        run(turns, elements=8)


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


def retyped(t_ptr, tl):
    """The same address as f16, as f32, and as f16 again."""
    mine = t_ptr + tl.program_id(0) * 8 * 2
    x = tl.load(mine, (8,))
    for _ in range(2):
        tl.store(0x1000, x)
        a = tl.load(0x1000, (8,))
        tl.store(0x1000, tl.cast(x, "f32"))
        x = a + tl.cast(tl.load(0x1000, (8,), "f32"), "f16")
    tl.store(mine, x)


def test_raw_memory_used_again_with_another_type():
    plan, x, result = run(retyped, elements=8)
    np.testing.assert_array_equal(result, 4 * x)
    mock = run_kernel_in_mock(retyped, 3, "ring_1d", list(x.copy()))
    np.testing.assert_array_equal(np.stack(mock), result)
    times = {e: simulate(plan, machine="ahbm", engine=e).time_ps for e in ("plain", "compiled")}
    bounds = price(plan, "ahbm")
    assert bounds.lower_ps <= times["plain"] == times["compiled"] <= bounds.upper_ps

    def gone(t_ptr, tl):
        x = tl.load(t_ptr + tl.program_id(0) * 16, (8,))
        tl.store(0x1000, x)
        tl.store(0x1004, tl.cast(x, "f32"))
        tl.store(t_ptr + tl.program_id(0) * 16, tl.load(0x1000, (2,)))

    with pytest.raises(tl.KernelError, match=r"f16\[2\] at 4096: what was there has been written over"):
        run(gone, elements=8)

    def on_one_side(t_ptr, tl):
        x = tl.load(t_ptr + tl.program_id(0) * 16, (8,))
        tl.store(0x1000, x)
        if tl.program_id(0) == 0:
            tl.store(0x1000, tl.cast(x, "f32"))

    with pytest.raises(tl.KernelError, match="under a condition memory keeps its type"):
        run(on_one_side, elements=8)


def test_neighbours_that_do_not_exist():
    with pytest.raises(TopologyError, match="neighbour 9 in direction E, but there are 3 units"):
        run(kernels.hello_send, extra=(4,), topology=lambda rank, size: {"E": 9})


def test_addresses_must_be_blocks_of_the_tensor():
    def odd(t_ptr, tl):
        tl.load(t_ptr + 1, (2,))

    with pytest.raises(tl.KernelError, match="not a multiple of the element size"):
        run(odd)

    def outside(t_ptr, tl):
        tl.store(t_ptr, tl.load(t_ptr + tl.program_id(0) * 8 + 4, (4,)))

    with pytest.raises(PlanError, match=r"'t' of extents \(4,\) has no elements 2:6"):
        run(outside, units=1)

    def wrong_type(t_ptr, tl):
        tl.load(t_ptr, (2,), "f32")

    with pytest.raises(tl.KernelError, match="tensor 't' holds f16, not f32"):
        run(wrong_type)


def test_another_units_memory_by_address():
    """Reading a neighbour's part is a get; without a barrier it races with the neighbour's store."""

    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        other = (rank + 1) % tl.num_programs(0)
        tl.store(t_ptr + rank * 8, tl.load(t_ptr + other * 8, (4,)))

    with pytest.raises(Exception, match=r"race on tile 't'"):
        run(kernel)


def test_shapes_that_do_not_fit_name_the_line():
    def kernel(t_ptr, tl):
        tl.dot(tl.load(t_ptr, (2, 2)), tl.load(t_ptr, (1, 4)))

    with pytest.raises(tl.KernelError, match=r"test_reader.py:\d+: gemm: inner extents 2 and 1 differ"):
        run(kernel, units=1)


def test_replicated_tensors():
    def kernel(w_ptr, t_ptr, tl):
        mine = t_ptr + tl.program_id(0) * 8
        tl.store(mine, tl.load(mine, (4,)) * tl.load(w_ptr, (4,)))

    w = tl.Tensor("w", (4,), role="input", replicated=True)
    plan = tl.read_kernel(kernel, [w, tl.Tensor("t", (4,))], world_size=2, topology="none")
    x, weights = np.full((2, 4), 3, "f2"), np.asarray([[1, 2, 3, 4], [5, 6, 7, 8]], "f2")
    np.testing.assert_array_equal(execute(plan, {"t": x, "w": weights})["t"], x * weights)


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


def test_mock_refuses_wrong_inputs():
    with pytest.raises(tl.KernelError, match="1 inputs for 2 ranks"):
        run_kernel_in_mock(kernels.hello_send, 2, "ring_1d", [np.zeros(4, "f2")], (4,))
    with pytest.raises(tl.KernelError, match="one shape and dtype"):
        run_kernel_in_mock(kernels.hello_send, 2, "ring_1d", [np.zeros(4, "f2"), np.zeros(5, "f2")], (4,))


def test_own_neighbors_of_an_algorithm_module():
    class Module:
        @staticmethod
        def neighbors(rank, world_size):
            return {"E": (rank + 2) % world_size, "W": (rank - 2) % world_size}

    x = np.arange(20).reshape(5, 4).astype("f2")
    mock = run_kernel_in_mock(kernels.hello_send, 5, "none", list(x), (4,), algo_module=Module)
    np.testing.assert_array_equal(np.stack(mock), np.roll(x, 2, axis=0))
    plan = tl.read_kernel(
        kernels.hello_send, [tl.Tensor("t", (4,)), 4], world_size=5, neighbors=Module.neighbors
    )
    np.testing.assert_array_equal(execute(plan, {"t": x})["t"], np.roll(x, 2, axis=0))
