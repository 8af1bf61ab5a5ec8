"""Products and attention of host tensors: tiled, as fast as kernels of libraries, and right at odd sizes."""

import numpy as np
import pytest

import megatile as mt
import megatile.parallel as tp
from megatile.runtime.host import products
from megatile.sim import Result


@pytest.mark.parametrize("shape", [(64, 96, 80), (100, 70, 33), (1, 5, 7), (300, 257, 512), (130, 1, 66)])
@pytest.mark.parametrize("machine", ["dgx-h100", "ahbm"])
def test_products_are_right(machine: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, size).astype("f4") for size in ((m, k), (k, n)))
    with mt.host(machine) as torch:
        x_here, w_here = (torch.from_numpy(a).cuda() for a in (x, w))
        np.testing.assert_array_equal((x_here @ w_here).numpy(), x @ w)
        halves = x_here.to(dtype=torch.float16) @ w_here.to(dtype=torch.float16)
        np.testing.assert_array_equal(halves.numpy(), (x @ w).astype("f2"))


@pytest.mark.parametrize("size", [1024, 2048, 4096])
def test_a_product_takes_about_as_long_as_that_of_a_library(size: int) -> None:
    with mt.host("dgx-h100", data=False) as torch:
        x, w = (torch.zeros((size, size), dtype=torch.float16) for _ in range(2))
        before = torch.clock_ps
        _ = x @ w
        took = (torch.clock_ps - before) / 1e6
    library = mt.predict_kernel("gemm", m=size, n=size, k=size, dtype="f16", machine="dgx-h100").time_us
    assert 0.6 * library < took < 1.8 * library


@pytest.mark.parametrize(
    ("tokens", "heads", "shared", "dim"), [(96, 4, 4, 64), (97, 4, 2, 64), (96, 8, 8, 128), (5, 2, 1, 16)]
)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_fits_the_near_memory(tokens: int, heads: int, shared: int, dim: int, causal: bool) -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((tokens, heads * dim)).astype("f4")
    k, v = (rng.standard_normal((tokens + 3, shared * dim)).astype("f4") for _ in range(2))
    with mt.host("dgx-h100") as torch:
        tensors = [torch.from_numpy(x).cuda() for x in (q, k, v)]
        found = tp.attention(*tensors, heads=heads, kv_heads=shared, causal=causal).numpy()
    for head in range(heads):
        own = slice(head * dim, head * dim + dim)
        theirs = slice(head * shared // heads * dim, head * shared // heads * dim + dim)
        scores = q[:, own] @ k[:, theirs].T / np.sqrt(dim)
        if causal:
            scores = np.where(np.tril(np.ones_like(scores), 3) > 0, scores, -np.inf)
        weight = np.exp(scores - scores.max(1, keepdims=True))
        expected = weight / weight.sum(1, keepdims=True) @ v[:, theirs]
        np.testing.assert_allclose(found[:, own], expected, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_long_attention_fits_too(dtype: str) -> None:
    with mt.host("dgx-h100", data=False) as torch:
        tensors = [torch.zeros((512, 2 * 128), dtype=getattr(torch, dtype)) for _ in range(3)]
        assert tp.attention(*tensors, heads=2).shape == (512, 256)


def test_a_second_product_of_the_same_tensors_finds_them_in_the_cache() -> None:
    """Tensors are known by their addresses: another one of the same shape has to be read first."""
    with mt.host("dgx-h100", data=False) as torch:
        a, b, other = (torch.zeros(512, 512) for _ in range(3))
        took, missed = [], []
        for right in (b, b, other, other, b):
            began = torch.time_ns
            _ = a @ right
            took.append(torch.time_ns - began)
            missed.append(Result(torch.engine.launches[-1]).traffic["l2_cache"].misses)
        ends = [e.end_ps for e in torch.engine.trace]
    assert missed == [256, 0, 128, 0, 0]
    assert took[1] < 0.9 * took[0]
    assert took[3:] == pytest.approx([took[1]] * 2)
    assert max(ends) == round(torch.time_ns * 1000)


def overlapped_us(reduce: bool) -> float:
    """How long rank 0 waits for a product, beside an all-reduce of other data or alone."""
    took: list[int] = []

    def worker(rank: int) -> None:
        torch.distributed.init_process_group(backend="nccl")
        torch.cuda.set_device(rank)
        gradients = torch.zeros((32 << 20,), dtype=torch.float16)
        x, w = (torch.zeros((2048, 2048), dtype=torch.float16) for _ in range(2))
        torch.distributed.barrier()
        began = torch.clock_ps
        handle = torch.distributed.all_reduce(gradients, async_op=True) if reduce else None
        _ = x @ w
        took.append(torch.clock_ps - began)
        if handle is not None:
            handle.wait()

    with mt.host("dgx-h100", data=False) as torch:
        torch.multiprocessing.spawn(worker, nprocs=8)
    return took[0] / 1e6


def test_a_product_beside_a_collective_has_fewer_compute_units() -> None:
    """The 128 tiles of the result fit the 132 SMs at once, and not the 108 that 24 channels leave."""
    alone, beside = overlapped_us(False), overlapped_us(True)
    assert 1.7 * alone < beside < 2.2 * alone


@pytest.mark.parametrize("kilobytes", [48, 96, 200])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_tiles_of_all_stages_fit_into_the_near_memory(kilobytes: int, dtype: str) -> None:
    near = mt.machine("dgx-h100").memory("l1").name
    hda = mt.machine("dgx-h100", **{f"memory.{near}.size": f"{kilobytes} KiB"})
    with mt.host("dgx-h100") as torch:
        tiles = products.choose_tiles(4096, 4096, 1024, 4, dtype, hda, torch.shape)
    size = {"f16": 2, "f32": 4}[dtype]
    operands = products.STAGES * (tiles.rows + tiles.columns) * tiles.depth * size
    assert tiles.rows > 1
    assert operands <= hda.memory("l1").available
    assert 4 * tiles.rows * tiles.columns <= hda.memory("l0").available // 2
