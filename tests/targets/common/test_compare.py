"""Predicted beside measured: what it says, what it writes, and that it is not far off."""

import ctypes
import time
from dataclasses import replace

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from bench_compare import all_reduce
from megatile.core.cached import write_cached
from megatile.hda import divided
from megatile.runtime.measure.figures import Figure, described
from megatile.targets.common.compare import Phase, _phases, _slower, as_called
from megatile.targets.common.toolchain import Making
from megatile.trace import read_trace

N = 1 << 16


@pytest.fixture(autouse=True)
def measured(tmp_path, monkeypatch):
    """Where 'megatile measure' would keep its figures: no test sees those of this computer, nor waits."""
    monkeypatch.setattr("megatile.targets.common.kernel.SPREAD", 0.0)
    monkeypatch.setattr("megatile.targets.common.compare.measured_file", lambda: tmp_path / "measured")
    return tmp_path / "measured"


@T.program
def two_phases(X: T.Tensor((N,), "f32"), Y: T.Tensor((N,), "f32")):
    with T.Kernel(block=N // 4096, threads=128) as bx, T.Scale("device"):
        with T.Scale("block"):
            x = T.alloc((4096,), "f32")
            T.copy(x, X[bx * 4096])
            for i in T.Parallel(4096):
                x[i] = T.exp(x[i])
            T.copy(Y[bx * 4096], x)
        with T.Scale("block"):
            y = T.alloc((4096,), "f32")
            T.copy(y, Y[bx * 4096])
            for i in T.Parallel(4096):
                y[i] = y[i] + 1.0
            T.copy(Y[bx * 4096], y)


@T.program
def product(A: T.Tensor((256, 256), "f32"), B: T.Tensor((256, 256), "f32"), C: T.Tensor((256, 256), "f32")):
    with T.Kernel(block=(4, 4), threads=128) as (bx, by):
        a = T.alloc((64, 32), "f32", level="l1")
        b = T.alloc((32, 64), "f32", level="l1")
        c = T.alloc((64, 64), "f32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(a, A[by * 64, k * 32])
            T.copy(b, B[k * 32, bx * 64])
            T.gemm(a, b, c)
        T.copy(C[by * 64, bx * 64], c)


def arrays(program):
    return [np.full(p.shape, 0.1, np.float32) for p in program.build("cpu").params]


def test_phases_are_predicted_and_measured(tmp_path):
    data = arrays(two_phases)
    found = mt.compile(two_phases, threads=1).compare(*data, repeat=10, trace=tmp_path / "both.json")
    np.testing.assert_allclose(data[1], np.exp(data[0]) + 1, rtol=1e-5)
    assert len(found.phases) == 2
    for phase in (*found.phases, found.total):
        assert 0 < phase.predicted <= found.total.predicted
        assert 0 < phase.measured <= found.total.measured
    assert found.phases[0].predicted > found.phases[1].predicted  # exp
    said = found.json()
    assert said["ratio"] == pytest.approx(said["predicted_s"] / said["measured_s"])
    assert [p["name"] for p in said["phases"]] == [p.name for p in found.phases]
    assert said["origins"]["copies"]["kind"] == "assumed"
    assert str(found).startswith("predicted on cpu, measured on this computer\n")
    trace = read_trace(tmp_path / "both.json")
    assert any(name.startswith("predicted/") for name in trace.units)
    mine = [e for e in trace if e.unit == "measured"]
    assert [e.operation for e in mine] == ["two_phases", *(p.name for p in found.phases)]
    assert mine[0].end_ps == pytest.approx(found.total.measured * 1e12)


@pytest.fixture(scope="module")
def clock() -> str:
    """The clock at which this computer runs, from a chain of two operations of one cycle each: a virtual
    machine tells the nominal clock, which may be half of it."""
    source = (
        "unsigned long chain(unsigned long x, long n) { for (long i = 0; i < n; i++) x ^= x << 1; return x; }"
    )
    chain, rounds = Making(source).load("chain").chain, 1_000_000
    chain.argtypes, chain.restype = [ctypes.c_ulong, ctypes.c_long], ctypes.c_ulong
    seconds = []
    for _ in range(5):
        begun = time.thread_time()
        chain(1, rounds)
        seconds.append(time.thread_time() - begun)
    return f"{2 * rounds / min(seconds):.0f} Hz"


@pytest.mark.parametrize("program", [two_phases, product], ids=["elementwise", "product"])
def test_the_shipped_description_is_not_far_off(program, clock):
    """Typical figures at the clock of this computer, which others use too: a factor of three."""
    machine = mt.machine("cpu", clock=clock)
    found = mt.compile(program, threads=1).compare(*arrays(program), machine=machine, repeat=20)
    assert 1 / 3 < found.ratio < 3, str(found)


def test_what_was_measured_represents_this_computer(measured):
    k, data = mt.compile(product, threads=1), arrays(product)
    before = k.compare(*data, seconds=1.0)
    found = [Figure("control.launch.call.overhead", 1.0, "s", 0.0, 3, "by hand")]
    write_cached(measured, described("cpu-measured", found).encode())
    after = k.compare(*data, seconds=1.0)
    assert (before.machine.name, after.machine.name) == ("cpu", "cpu-measured")
    assert after.total.predicted > 1 > before.total.predicted
    assert k.compare(*data, machine=mt.machine("cpu", clock="1 GHz"), seconds=1.0).machine.name == "cpu"
    both = mt.compile(all_reduce(2, 64), threads=2)
    x, y = np.ones((2, 64), np.float32), np.zeros(64, np.float32)
    assert both.compare(x, y, machine=divided(mt.machine("cpu"), 2), seconds=1.0).total.predicted > 1
    measured.write_bytes(b"damaged")
    assert k.compare(*data, seconds=1.0).machine.name == "cpu"


def test_seconds_of_elsewhere():
    found = mt.compile(product, threads=1).compare(*arrays(product), machine="dgx-h100", seconds=1.0)
    assert found.total.measured == 1.0
    assert found.phases == ()
    assert found.machine.name == "dgx-h100"
    assert "measured elsewhere" in str(found)
    assert "'dgx-h100' is not this computer" in str(replace(found, elsewhere=False))


def test_what_prepares_a_phase_is_part_of_it():
    lines, seconds = _phases({"pack A for block_1": 1.0, "block_1 line 15": 2.0, "block_2 line 30": 4.0})
    assert lines == {"block_1 line 15": 15, "block_2 line 30": 30}
    assert seconds == {"block_1 line 15": 3.0, "block_2 line 30": 4.0}
    assert Phase("x", 1.0, None).ratio is None


def test_arrays_are_where_they_fit():
    """Copies of arrays in the second cache have its rate, of arrays twice as large that of the last cache."""
    hda = mt.machine("cpu", cores=4, l2="1 MiB", l3="32 MiB", clock="2 GHz", memory_bandwidth="10 GB/s")
    near, middle, far = (as_called(hda, size, 2) for size in (1 << 19, 1 << 21, 1 << 30))
    own, last = hda.memory("scratch").bandwidth, hda.memory("l3_cache")
    assert near.count("block") == 2
    assert near.memory("ram").bandwidth == pytest.approx(2 * own, rel=1e-4)
    assert near.memory("ram").unit_bandwidth == pytest.approx(own, rel=1e-4)
    assert middle.memory("ram").bandwidth == pytest.approx(last.bandwidth, rel=1e-4)
    assert middle.memory("ram").unit_bandwidth == pytest.approx(last.unit_bandwidth, rel=1e-4)
    kept_share = 2**25 / 2**30  # the last cache keeps what it has room for
    assert far.memory("l3_cache").bandwidth == pytest.approx(
        1 / (kept_share / last.bandwidth + (1 - kept_share) / 10e9), rel=1e-4
    )
    part = as_called(hda, 3 << 19, 1).memory("ram").unit_bandwidth
    assert part == pytest.approx(2 / (1 / own + 1 / last.unit_bandwidth), rel=1e-4)
    other = mt.machine("dgx-h100")
    assert as_called(other, 1 << 20, 1) is other


def test_a_call_touches_the_bytes_of_all_arrays(monkeypatch):
    from megatile.targets.common import compare

    sizes = []
    monkeypatch.setattr(
        compare, "as_called", lambda hda, size, *more: sizes.append(size) or as_called(hda, size, *more)
    )
    given = arrays(two_phases)
    mt.compile(two_phases, threads=1).compare(*given)
    assert sizes == [sum(array.nbytes for array in given)]


def test_one_core_has_less_of_a_cache_that_others_use():
    sizes = {"memory.l3_cache.size": "24 MiB", "memory.l3_cache.unit_size": "8 MiB"}
    hda = mt.machine("cpu", cores=3, memory_bandwidth="10 GB/s", **sizes)
    last, ram = hda.memory("l3_cache"), hda.memory("ram")
    for threads, room in ((1, 8), (2, 16), (3, 24)):
        found = as_called(hda, 32 << 20, threads).memory("ram").bandwidth
        expected = 1 / (room / 32 / last.bandwidth + (1 - room / 32) / ram.bandwidth)
        assert found == pytest.approx(expected, rel=1e-4)


def test_every_array_of_a_call_takes_its_time_and_threads_are_woken():
    hda = mt.machine("cpu")
    before = {s.name: s.overhead_ps for s in hda.control.launch}
    for threads, arrays in ((1, 3), (2, 2)):
        found = {s.name: s.overhead_ps for s in as_called(hda, 64, threads, arrays=arrays).control.launch}
        assert found["argument"] == arrays * before["argument"] > 0
        assert found["call"] == before["call"]
        assert found["thread_wakeup"] == (threads > 1) * before["thread_wakeup"]


def test_tiles_that_copies_push_out_of_the_first_cache_come_back():
    hda = mt.machine("cpu", cores=2, l1="32 KiB", clock="2 GHz", **{"memory.l1_cache.fill": "100 GB/s"})
    own = hda.memory("scratch").bandwidth
    rates = [as_called(hda, 1 << 19, 1, tile=kib << 10).memory("ram").unit_bandwidth for kib in (8, 16, 64)]
    assert rates == pytest.approx([1 / (1 / own + again / 100e9) for again in (0, 0.5, 1)], rel=1e-4)
    without = mt.machine("cpu", cores=2, l1="32 KiB", clock="2 GHz")
    assert as_called(without, 1 << 19, 1, tile=1 << 16).memory("ram").unit_bandwidth == pytest.approx(
        own, rel=1e-4
    )


def test_a_kernel_says_what_does_its_statements_elsewhere():
    text = mt.compile(product).explain(machine="dgx-h100")
    (line,) = (x for x in text.splitlines() if x.startswith("gemm "))
    assert "tensor" in line or "vector" in line
    assert "test_compare.py:" in line


def test_collectives_of_several_devices_are_predicted_beside_measured(tmp_path):
    """A program gets as many devices of this computer as it asks for."""
    program, x, y = all_reduce(3, 4096), np.ones((3, 4096), np.float32), np.zeros(4096, np.float32)
    found = mt.compile(program, threads=2).compare(x, y, repeat=5, trace=tmp_path / "both.json")
    assert found.machine.count("device") == 3
    assert len(found.phases) == 1
    assert 0 < found.phases[0].measured <= found.total.measured
    units = {e.unit for e in read_trace(tmp_path / "both.json")}
    assert {"measured", "predicted/socket0", "predicted/socket2"} <= units
    elsewhere = mt.compile(program, threads=1).compare(x, y, seconds=1.0)
    assert elsewhere.total.measured == 1.0


def test_more_work_for_a_collective_takes_longer_in_the_prediction():
    def seconds(devices, count, threads):
        hda = as_called(mt.machine("cpu", cores=4), 8 * devices * count, threads, devices)
        return mt.simulate(all_reduce(devices, count), (devices, count), (count,), machine=hda).time_ns

    assert seconds(2, 1 << 14, 2) < seconds(2, 1 << 16, 2) < seconds(2, 1 << 16, 1)
    assert seconds(4, 1 << 16, 4) < seconds(4, 1 << 16, 2)


def test_devices_of_this_computer_share_its_cores():
    host = mt.machine("cpu", cores=8)
    assert host.count("device") == 1
    assert divided(host, 1) is host
    four = divided(host, 4)
    assert (four.count("device"), four.count("block", within="device")) == (4, 2)
    assert divided(host, 16).count("block", within="device") == 1
    fixed = mt.machine("dgx-h100")
    assert divided(fixed, 64) is fixed


def test_a_core_that_a_device_has_for_half_of_the_time_is_half_as_fast():
    hda = mt.machine("cpu")
    changed = _slower(hda, 0.5)
    own = {f"memory.{m.name}.bandwidth" for m in hda.memories if m.level == "core"}
    assert own == {key for key in changed if key.startswith("memory.")} != set()
    assert any(key.startswith("engines.") for key in changed)
    assert not _slower(hda, 1)
