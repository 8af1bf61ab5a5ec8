"""What files that test rules share."""

from megatile.hda import machine
from megatile.plan.build import PlanBuilder

H100 = machine("dgx-h100")
MI = 1 << 20


def adding(count, memory, scale="device", units=1):
    b = PlanBuilder("adding", scale=scale, units=units)
    x, y = (b.tile(name, (count,), "f32", memory=memory) for name in "xy")
    b.compute("add", x, [x, y])
    return b.finish()


def slow_core(**changed):
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
