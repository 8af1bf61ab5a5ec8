"""The host: what a launch and a collective cost on the wall, without data."""

import gc
from time import perf_counter

import numpy.random  # noqa: F401  (NumPy loads it when it is first used, in the middle of a row)

import megatile as mt
from harness import Row, at_most, bench, sized


def double(x, count, tl):
    tl.store(x, tl.load(x, shape=(count,), dtype="f16") * 2.0)


def worker(rank, torch, count):
    torch.accelerator.set_device_index(rank)
    torch.distributed.init_process_group()
    x = torch.zeros(256)
    for _ in range(count):
        torch.distributed.all_reduce(x)


@bench("host")
def host():
    with mt.host("ahbm", data=False) as torch:
        x = torch.zeros(64)
        torch.launch("double", double, x, 64)
        begin, count = perf_counter(), sized(2000, 2)
        for _ in range(count):
            torch.launch("double", double, x, 64)
        yield Row("a launch", (perf_counter() - begin) / count, "s", bar=at_most(50e-6))
    with mt.host("dgx-h100", algorithm="ring", data=False) as torch:
        begin, count = perf_counter(), sized(1000, 2)
        torch.multiprocessing.spawn(worker, args=(torch, count), nprocs=8)
        yield Row(f"{count} collectives on 8 ranks", perf_counter() - begin, "s", bar=at_most(2.0))
    from megatile.runtime.benches import ccl_allreduce, qkv_gpt3

    gc.collect()  # what earlier rows left is none of this one's time
    begin, sips = perf_counter(), sized(64, 2)
    with mt.host("ahbm", algorithm="hierarchical_allreduce", sips=sips) as torch:
        assert ccl_allreduce.run(torch) == 0
    yield Row(f"all-reduce over {128 * sips} PEs with data", perf_counter() - begin, "s", bar=at_most(30.0))
    gc.collect()
    begin = perf_counter()
    with mt.host("ahbm", data=False) as torch:
        qkv_gpt3.run(torch)
    yield Row("the QKV projection of GPT-3", perf_counter() - begin, "s", bar=at_most(5.0))
