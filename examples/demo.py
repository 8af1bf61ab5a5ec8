"""What `make demo` shows. Files go to the folder named as argument, or to out/."""

import sys
from pathlib import Path
from runpy import run_path

import numpy as np

import megatile as mt
import megatile.language as T
from megatile.core.quantities import format_bytes, format_rate, format_time
from megatile.lowering.explain import figures
from megatile.report import draw_timeline
from megatile.report.machine_picture import draw_machine

M, N, K, DEVICES = 128, 128, 256, 4


@T.program
def gemm(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
    """Tensor-parallel: every device has a part of K, and all-reduce adds the partial products."""
    with T.Kernel(device=DEVICES, block=(N // 64, M // 64), threads=256) as (bx, by):
        with T.Scale("device"):
            a = T.view(A, layout=T.FullCol)
            b = T.view(B, layout=T.FullRow)
            c = T.view(C, layout=T.Replica)
        with T.Scale("block"):
            a_tile = T.alloc((64, 32), "f32", level="l1")
            b_tile = T.alloc((32, 64), "f32", level="l1")
            c_tile = T.alloc((64, 64), "f32", level="l0")
            T.clear(c_tile)
            for k in T.Pipelined(a.shape[1] // 32, num_stages=2):
                T.copy(a_tile, a[by * 64, k * 32])
                T.copy(b_tile, b[k * 32, bx * 64])
                T.gemm(a_tile, b_tile, c_tile)
            T.copy(c[by * 64, bx * 64], c_tile)
        with T.Scale("device"):
            T.allreduce(c)


def show_machine(folder: Path) -> None:
    print("\n1. A machine from one YAML file")
    hda = mt.machine("h100-cluster", nodes=4)
    route = hda.route("gpu:0", "gpu:9")
    print(f"   {hda}")
    print(f"   gpu 0 → gpu 9: {route}, {format_time(route.latency_ps)}")
    print(f"   bisection {format_rate(hda.bisection('gpu'))}")
    print(f"   picture: {draw_machine(hda, folder / 'machine.png')}")


def show_program() -> None:
    print("\n2. A tile program over four GPUs, their blocks and tiles, with real data and all checks on")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype="f4"), rng.standard_normal((K, N), dtype="f4")
    c = np.zeros((M, N), "f4")
    mt.run(gemm, a, b, c, machine="dgx-h100")
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    print(f"   C = A @ B, {M}×{N}×{K}: data verified against NumPy")


def show_prediction(folder: Path) -> None:
    print("\n3. The same program on the machine: lowered to a Plan, executed, timed and explained")
    lowered = mt.lower(gemm, machine="dgx-h100")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype="f4"), rng.standard_normal((K, N), dtype="f4")
    r = mt.simulate(lowered, a, b, np.zeros((M, N), "f4"))
    np.testing.assert_allclose(r.outputs["C"], a @ b, rtol=1e-3, atol=1e-3)
    print(f"   {figures(lowered, r)}".replace("\n", "\n   "))
    print("   data of the executed Plan verified against NumPy")
    print(_indented(r.why_slow(5)))
    texts = (("Program", str(lowered)), ("Plan", str(lowered.plan)))
    print(f"   HTML report: {r.report(folder / 'gemm.html', texts=texts)}")


def show_ring(folder: Path) -> None:
    print("\n4. Ring attention as a tile program: keys and values go round four GPUs while blocks work")
    example = run_path(str(Path(__file__).with_name("34_ring_attention.py")))
    heads, tokens, dim = 2, 64, 32
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((heads, tokens, dim), dtype="f4") for _ in range(3))
    program = example["ring_attention"](heads, tokens, dim)
    r = mt.simulate(program, q, k, v, np.zeros_like(q), machine="dgx-h100")
    scores = q @ k.swapaxes(1, 2) / np.sqrt(dim)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(
        r.outputs["O"], weights / weights.sum(-1, keepdims=True) @ v, rtol=1e-3, atol=1e-3
    )
    print(f"   {format_time(r.time_ps)}, data verified; page: {r.report(folder / 'ring_attention.html')}")
    print(_indented(r.what_helps(limit=4)))


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())


def show_collective(folder: Path) -> None:
    print("\n5. The same all-reduce by the machine's library: planned, simulated with data, time predicted")
    for nbytes in (2**10, 2**16, 2**20):
        plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=nbytes, ranks=DEVICES)
        x = np.random.default_rng(0).integers(-8, 9, (DEVICES, nbytes // 4)).astype("f4")
        r = mt.simulate(plan, {"x": x}, machine="dgx-h100")
        assert (r.outputs["y"] == x.sum(axis=0)).all()
        print(f"   {format_bytes(nbytes):>6}: {format_time(r.time_ns * 1000):>9}, data verified, {r.model}")
    print(f"   trace for ui.perfetto.dev: {r.write_trace(folder / 'all_reduce.json.gz')}")
    print(f"   timeline: {draw_timeline(r.trace, folder / 'all_reduce.png')}")
    print()
    print(r.summary())


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    show_machine(folder)
    show_program()
    show_prediction(folder)
    show_ring(folder)
    show_collective(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
