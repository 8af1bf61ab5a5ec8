"""How long commands take: the roofline holds for every one, rules can be added, origins are told."""

import pytest

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.requests import make_job
from megatile.hda import HDA, machine
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Transport, with_transport
from megatile.timing import Resources
from megatile.timing.rules import RULES, operands, rule

H100 = machine("dgx-h100")
MI = 1 << 20


def adding(count, memory, scale="device", units=1):
    b = PlanBuilder("adding", scale=scale, units=units)
    x, y = (b.tile(name, (count,), "f32", memory=memory) for name in "xy")
    b.compute("add", x, [x, y])
    return b.finish()


def test_adding_64_mi_floats_in_hbm_takes_their_bytes():
    plan = adding(64 * MI, "hbm")
    took = mt.simulate(plan, machine=H100).time_ps - Resources(H100, plan).start_ps(0)
    bytes_ps = 3 * 4 * 64 * MI / H100.memory("hbm").effective_bandwidth * 1e12
    assert took == pytest.approx(bytes_ps, rel=1e-4)
    bounds = mt.price(plan, H100)
    assert bounds.lower_ps <= took + Resources(H100, plan).start_ps(0) <= bounds.upper_ps


def test_units_that_share_a_memory_have_an_even_part_of_it():
    def per_unit(units):
        plan = adding(MI, "hbm", "block", units)
        return Resources(H100, plan).compute_ps(plan.streams[0].body[0], MI, 0)

    assert per_unit(132) == pytest.approx(132 * per_unit(1), rel=0.01)
    assert 132 * 3 * 4 * MI / (per_unit(132) * 1e-12) <= 1.001 * H100.memory("hbm").effective_bandwidth


def test_scratchpads_are_as_fast_as_the_engine_unless_the_file_says_otherwise():
    plan = adding(1024, "shared", "block")
    command = plan.streams[0].body[0]
    engine = next(e for e in H100.engines if e.kind == "vector")
    plain = Resources(H100, plan).compute_ps(command, 1024, 0)
    assert plain == pytest.approx(engine.startup_ps + 1024 / engine.rate("f32") * 1e12, abs=1)
    bound = Resources(machine("dgx-h100", **{"memory.shared.roofline": True}), plan)
    shared = H100.memory("shared")
    expected = engine.startup_ps + 12 * 1024 / shared.effective_bandwidth * 1e12
    assert bound.compute_ps(command, 1024, 0) == pytest.approx(expected, abs=1)


def test_operands_by_memory_and_in_slots_of_queues():
    b = PlanBuilder("mixed", scale="device", units=2)
    x = b.tile("x", (256,), "f32", memory="hbm")
    y = b.tile("y", (256,), "f16", memory="shared")
    b.compute("copy", y, [x], engine="vector")
    b.compute("mul", x, [x, x])
    plan = b.finish()
    first, second = (operands(plan)[id(s)].bytes for s in plan.streams[0].body)
    assert first == {"hbm": 1024, "shared": 512}
    assert second == {"hbm": 2048}, "a block is read once and written once"


def test_bytes_go_with_the_work_where_blocks_vary():
    b = PlanBuilder("tail", scale="device", units=1)
    x = b.tile("x", (1000,), "f32", memory="hbm")
    with b.loop(0, 4) as loop:
        i = loop.index
        length = 300 - (i // 3) * 200
        part = x[i * 300 : i * 300 + length]
        b.compute("add", part, [part, part])
    plan = b.finish()
    command = plan.streams[0].body[0].body[0]
    resources = Resources(H100, plan)
    startup = next(e for e in H100.engines if e.kind == "vector").startup_ps
    full, tail = (resources.compute_ps(command, n, 0) - startup for n in (300, 100))
    assert full == pytest.approx(3 * tail, abs=3)
    assert full == pytest.approx(2400 / H100.memory("hbm").effective_bandwidth * 1e12, abs=1)


def test_a_rule_of_ones_own():
    plan = adding(1024, "shared", "block")
    try:

        @rule("add")
        def slow(command):
            return 1000 * command.startup_ps + command.flops

        found = Resources(H100, plan).compute_ps(plan.streams[0].body[0], 1024, 0)
    finally:
        RULES._things.pop("add")
    engine = next(e for e in H100.engines if e.kind == "vector")
    assert found == 1000 * engine.startup_ps + 1024


def test_origins():
    job, _ = make_job("all_reduce", machine=H100, nbytes=1 << 20)
    plan = find_algorithm("ring").plan(job)
    bare = Resources(H100, plan).origins()
    assert bare["add on vector"].kind == bare["messages"].kind == "rule"
    assert "nvlink" in bare["messages"].source
    library = Resources(H100, mt.collective("all_reduce", machine=H100, nbytes=1 << 20)).origins()
    assert library["messages"].kind == library["start"].kind == "measured"
    assert "fit_transports" in library["messages"].source
    data = H100.to_dict()
    for part in (*data["engines"], *data["networks"]):
        part.pop("source")
    silent = Resources(HDA.from_dict(data), plan).origins()
    assert silent["add on vector"].kind == silent["messages"].kind == "assumed"


def test_library_kernels_were_measured_with_their_reductions():
    plan = adding(MI, "hbm")
    command = plan.streams[0].body[0]
    kernel = with_transport(plan, Transport("kernel", protocol="Simple"), "all_reduce", 1, MI)
    by_library = Resources(H100, kernel).compute_ps(command, MI, 0)
    assert by_library < Resources(H100, plan).compute_ps(command, MI, 0)


def _core(**changed):
    figures = {
        "engines.simd.throughput.any": "1 GFLOP/s", "engines.simd.startup": "0 ns",
        "engines.fma.throughput.any": "1 GFLOP/s", "engines.fma.startup": "0 ns",
        "memory.registers.roofline": False, "control.launch.call.overhead": "0 ns",
        "control.launch.argument.overhead": "0 ns", "control.launch.thread_wakeup.overhead": "0 ns",
        "engines.load_store.startup": "0 ns",
        "engines.load_store.bandwidth": "100 GB/s", "memory.ram.bandwidth": "4 GB/s",
        "memory.ram.unit_bandwidth": "1 GB/s", "memory.ram.latency": "90 ns",
        "memory.scratch.bandwidth": "100 GB/s", "memory.scratch.latency": "7 ns",
        "memory.l3_cache.bandwidth": "4 GB/s", "memory.l3_cache.unit_bandwidth": "1 GB/s",
    }  # fmt: skip
    return machine("cpu", cores=4, **(figures | changed))


@pytest.mark.parametrize(("shares", "expected"), [("core", 2_000_000), (None, 1_000_000)])
def test_engines_that_share_something_take_turns(shares, expected):
    """A thousand additions and a product of a thousand operations that do not wait for each other."""
    hda = _core(**{"engines.simd.shares": shares, "engines.fma.shares": shares})
    b = PlanBuilder("both", scale="block", units=1)
    x, y = (b.tile(name, (1000,), "f32", memory="scratch") for name in "xy")
    a, c = b.tile("a", (5, 10), "f32", memory="scratch"), b.tile("c", (5, 10), "f32", memory="scratch")
    d = b.tile("d", (10, 10), "f32", memory="scratch")
    b.compute("add", x, [x, y])
    b.compute("gemm", c, [a, d], engine="tensor")
    plan = b.finish()
    assert mt.simulate(plan, machine=hda).time_ps == pytest.approx(expected, rel=1e-3)
    bounds = mt.price(plan, hda)
    assert bounds.lower_ps <= expected <= bounds.upper_ps * 1.001


def test_one_unit_alone_gets_a_part_of_a_shared_memory():
    """100 kB at 1 GB/s by one core; as long by each of four that share 4 GB/s, twice as long at 2 GB/s."""

    def seconds(units, **changed):
        b = PlanBuilder("copies", scale="block", units=units)
        x = b.tile("x", (25_000,), "f32", memory="ram")
        y = b.tile("y", (25_000,), "f32", memory="scratch")
        b.copy(y, x)
        return mt.simulate(b.finish(), machine=_core(**changed)).time_ps / 1e12

    assert seconds(1) == pytest.approx(100e-6, rel=1e-3)
    assert seconds(1, **{"memory.l3_cache.unit_bandwidth": None}) == pytest.approx(25e-6, rel=1e-2)
    assert seconds(4, **{"memory.l3_cache.bandwidth": "2 GB/s"}) >= 2 * seconds(1)
    waits = seconds(1, **{"engines.load_store.prefetch": False})
    latencies = sum(_core().memory(name).latency_ps for name in ("ram", "l3_cache", "scratch")) / 1e12
    assert waits - seconds(1) == pytest.approx(latencies, rel=0.05)


def test_measured_figures_are_said_to_be_measured():
    hda = _core(**{"engines.simd.source": "measured: by hand", "engines.fma.source": "from the manual"})
    plan = adding(1000, "scratch", "block")
    assert Resources(hda, plan).origins()["add on vector"].kind == "measured"
