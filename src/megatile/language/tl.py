"""``tl``: kernels for processing elements, plain Python functions in the manner of Triton.

    from megatile.language import tl

    def hello(t_ptr, n_elem, tl):
        mine = t_ptr + tl.program_id(0) * n_elem * 2
        tl.send(dir="E", src=tl.load(mine, shape=(n_elem,), dtype="f16"))
        tl.store(mine, tl.recv(dir="W", shape=(n_elem,), dtype="f16"))

    plan = tl.read_kernel(hello, [tl.Tensor("t", (8,)), 8], world_size=4, topology="ring_1d")

``read_kernel`` reads the function once, with symbolic ids, into a Plan of one stream; where that is
impossible it reads unit by unit and merges what is equal. ``run_kernel_in_mock`` runs the same function with
no plan and no machine.
"""

from __future__ import annotations

from megatile.language.kernel.context import Tl
from megatile.language.kernel.directions import IpcqDeadlock, IpcqInvalidDirection
from megatile.language.kernel.mock import run_kernel_in_mock
from megatile.language.kernel.symbols import KernelError
from megatile.language.kernel.to_plan import read_kernel
from megatile.language.kernel.values import DataBranchError, Tensor, TensorHandle

__all__ = [
    "DataBranchError",
    "IpcqDeadlock",
    "IpcqInvalidDirection",
    "KernelError",
    "Tensor",
    "TensorHandle",
    "Tl",
    "read_kernel",
    "run_kernel_in_mock",
]
