"""torch's own tests of context parallelism, with our ``context_parallel`` in place of torch's.

    python tests/external/torch_context_parallel.py CHECKOUT [--ranks 2]

``RingAttentionTest`` of the checkout's test_attention.py, every case that uses ``context_parallel``; others
test torch's own dispatcher. How often torch's collectives are called is not compared: ours are others.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import types
import unittest
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FILE = "test/distributed/tensor/test_attention.py"


def install() -> None:
    """Let the file run on CPUs, and give it our functions under torch's names."""
    if find_spec("expecttest") is None:  # torch's test utilities import it; these cases do not use it
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    import torch.testing._internal.common_cuda as cuda
    import torch.testing._internal.common_distributed as distributed
    import torch.testing._internal.distributed._tensor.common_dtensor as dtensor
    from torch.distributed.tensor import debug
    from torch.distributed.tensor.experimental import _attention as theirs
    from torch.nn import attention

    from megatile.compat import torch_context_parallel as ours

    for name in ("FUSED", "MEM_EFF", "FLASH", "CUDNN"):
        setattr(cuda, f"PLATFORM_SUPPORTS_{name}_ATTENTION", name in ("FUSED", "MEM_EFF"))  # f32
    distributed.skip_if_lt_x_gpu = lambda *_: lambda test: test
    dtensor.with_comms = lambda test: test
    attention.sdpa_kernel = nullcontext  # CPUs have one kernel
    rotate = theirs.set_rotate_method

    def set_rotate_method(name: str) -> None:
        rotate(name)  # the test asks torch what was chosen
        ours.set_rotate_method(name)

    theirs.set_rotate_method = set_rotate_method
    theirs.context_parallel = ours.context_parallel
    theirs.context_parallel_unshard = ours.context_parallel_unshard
    debug.CommDebugMode = Uncounted


class Uncounted:
    """Stands for the counter of torch's collectives."""

    def __enter__(self) -> Uncounted:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is counted."""

    def get_comm_counts(self) -> dict[object, int]:
        return {}


def work(rank: int, given: argparse.Namespace, port: int) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(given.ranks)
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    install()
    base = runpy.run_path(str(given.checkout / FILE))["RingAttentionTest"]

    class Cases(base):
        world_size = given.ranks
        device_type = "cpu"

        def run_subtests(self, axes, test):
            count = 0
            for values in product(*axes.values()):
                case = dict(zip(axes, values, strict=True))
                if not case["use_context"] or (case["load_balance"] and not case["is_causal"]):
                    continue
                torch._dynamo.reset()
                test(**case)
                count += 1
                if rank == 0:
                    print("right:", {k: str(v) for k, v in case.items()}, flush=True)
            if rank == 0:
                print(f"all {count} cases right", flush=True)

        def assertDictEqual(self, *_):
            """Of torch's collectives; see ``Uncounted``."""

    Cases.test_ring_attention_sdpa(Cases("test_ring_attention_sdpa"))  # not the one that starts processes
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    mp.spawn(work, (given, 29000 + os.getpid() % 900), nprocs=given.ranks)


if __name__ == "__main__":
    main()
