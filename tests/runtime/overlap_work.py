"""What each process does in the test of overlap: kernels that end only when a later message has arrived."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from megatile.runtime import plan_work, torch_rules

EMPTY = 0xA5
buffers = []


def work(folder, unit, settings):
    """``plan_work.work`` with receives that are noted and a kernel ``exp`` that waits for what it hides."""
    original, kernels = dist.irecv, []

    def noted(flat, **options):
        flat.fill_(EMPTY)
        buffers.append(flat)
        return original(flat, **options)

    def waits(x):
        """Kernel number i ends when message i + 1 is here: its transfer ran beside the kernel."""
        kernels.append(0)
        end = time.monotonic() + settings["timeout"] / 2
        while len(buffers) < len(kernels) or bool((buffers[len(kernels) - 1] == EMPTY).any()):
            assert time.monotonic() < end, f"message {len(kernels)} did not come while a kernel worked"
            time.sleep(0.001)
        return torch.exp(x)

    dist.irecv, torch_rules.RULES = noted, {**torch_rules.RULES, "exp": waits}
    plan_work.work(folder, unit, settings)
    assert len(kernels) == len(buffers) > 0
