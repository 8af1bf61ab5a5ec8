"""Tensors of a host, line by line (`tests.expected`): where each result lies, its time and its elements."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.expected import digest, line, tried

import megatile as mt
from megatile.runtime.host.placement import (
    DPPolicy,
    column_wise,
    replicate,
    resolve_dp_policy,
    row_wise,
    tiled_column_major,
    tiled_row_major,
)
from megatile.runtime.host.tensor import Tensor

Check = Callable[[str, dict[str, Any]], None]
TENSORS = ("x", "r", "c", "p", "q", "w", "v", "s", "e", "n", "h", "m")


def _calls(text: str) -> list[str]:
    return re.split(r" ; |\n", text.strip())


ALL = _calls("""
{} + {} ; {} * 3 ; 2 - {} ; 1 / ({} + 9) ; -{} ; {}.clone() ; {}.t() ; {}.flatten() ; {}.sum() ; {}.amax(0)
{}.unsqueeze(0) ; {}.unsqueeze(-1) ; {}.squeeze() ; {}.mean(-1) ; {}.abs() ; {}.softmax(-1) ; {}.cpu()
{}.to(torch.float32) ; {}.reshape(-1) ; {}.narrow(0, 1, 2) ; {}.chunk(2) ; {}.split(3, -1) ; {}.unbind()
torch.cat([{}, {}]) ; torch.stack([{}, {}], 1) ; torch.zeros_like({}) ; torch.full_like({}, 2) ; repr({})
len({}) ; {}.size() ; {}.size(-1) ; {}.numel() ; {}.nbytes ; {}[0] ; {}[1:3] ; {}[-1, 2] ; {}.max()
{}.min() ; {} @ {}.t() ; {}.exp() ; torch.nn.functional.gelu({}) ; torch.maximum({}, {} * 2)
{}.sum(0, keepdim=True) ; {}.item()
""")
SOME = _calls("""
x @ w ; r @ w ; c @ w ; p @ w ; q @ w ; x @ v ; v @ w ; x + v ; r + v ; c + v ; p * v ; q - v ; x / w
x + s ; x - r ; r - c ; c - p ; x.permute(1, 0) ; x.transpose(0, -1) ; x.reshape(2, 3, 4)
x.reshape(2, 3, 4).permute(2, 0, 1) ; x.reshape(2, 3, 4).sum(1) ; x.reshape(2, 3, 4).transpose(0, 2)
x.reshape(5, 5) ; x.reshape(-1, -1) ; x.reshape(4, -1, 2) ; r.reshape(24) ; c.reshape(3, 8)
torch.cat([x, r], 1) ; torch.cat([x, w]) ; torch.cat([], 0) ; torch.nn.functional.embedding(n, x)
torch.nn.functional.embedding([[0, 3], [1, 1]], r) ; torch.nn.functional.embedding([4], x)
torch.nn.functional.linear(x, w.t()) ; torch.nn.functional.linear(x, x, torch.ones(4)) ; x.split([1, 3])
x.split([1, 1]) ; x.split(4, 1) ; x.chunk(3, 1) ; x.chunk(9) ; x.narrow(1, 4, 2) ; x.narrow(1, 5, 2)
x.narrow(0, -1, 1) ; x.sum(2) ; x.max() + 1 ; torch.arange(5) ; torch.arange(1, 7, 2)
torch.arange(0, 1, 0.25) ; torch.eye(3) ; torch.randn(3, 2) ; torch.rand(4) ; torch.randint(0, 9, (5,))
torch.full((2, 2), 7) ; torch.tensor([[1, 2], [3, 4]]) ; torch.tensor(3.5) ; torch.zeros(2, 0)
torch.ones((3,), dtype=torch.int32) ; torch.empty(-1) ; torch.zeros(3, dp=DPPolicy('row_wise'))
torch.zeros((), dp=DPPolicy('row_wise')) ; torch.zeros(4, dp=3) ; DPPolicy('rowwise')
torch.zeros(4, device='cuda:1') ; torch.zeros(4, device='cuda:99') ; torch.zeros(4, device='tpu')
torch.device('cuda', 2) ; x.to('cuda:1') ; x.to('cpu') ; x.cuda(1) ; x.to(3.5) ; x.to(torch.int32)
h.to('cuda') ; h + x ; h + h ; h.numpy() ; m[0, 0] ; x.copy_(r) ; r.copy_(c) ; x.copy_(h)
x.copy_(np.ones((4, 6))) ; x.copy_(np.ones((2, 6))) ; x.fill_(4) ; x.zero_() ; x.mul_(2) ; x.add_(r)
x.sub_(1) ; x.div_(2) ; x.relu_() ; float(s) ; int(s) ; float(x) ; bool(s) ; x[5] ; x['a'] ; x.foo
torch.foo ; torch.equal(x, x) ; torch.equal(x, r) ; torch.allclose(x, x + 1) ; torch.allclose(x, x)
list(v) ; torch.accelerator.device_count() ; torch.accelerator.set_device_index(1)
torch.accelerator.set_device_index(99) ; torch.accelerator.current_device_index()
torch.get_default_dtype() ; torch.memory_store.read('hbm', x.shards[0].pa, shape=(2, 3), dtype='f16')
torch.memory_store.read('hbm', r.va_base + 2, shape=(1,)) ; torch.memory_store.read('hbm', 12, shape=(1,))
torch.memory_store.read('tcm', x.va_base, shape=(1,))
torch.memory_store.read('hbm', x.va_base, shape=(99,)) ; torch.memory_store.read('hbm', 1.5, shape=(1,))
torch.memory_store.write('hbm', r.va_base, np.full(5, 9, 'f2')) or r
torch.memory_store.write('hbm', p.shards[1].pa, np.full(5, 9, 'f2')) or p ; x.free() or x
x.free() or x.free() ; torch.report() ; torch.rms_norm(x, v) ; mtp.attention(x, x, x, heads=2)
mtp.attention(x, x, x, heads=4) ; mtp.attention(x, r, c, heads=1, causal=False)
torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event()) ; torch.cuda.Stream().query()
torch.cuda.synchronize()
""")


CHANGES = re.compile(r"_\(|free|write|set_device|synchronize|rand")
"""What leaves a host otherwise than it was."""


def made(torch: Any) -> dict[str, Any]:
    """Tensors by name: one matrix in several layouts, a factor, a row, a scalar, numbers, one of the host."""
    data = (np.arange(24).reshape(4, 6) % 7 - 3).astype(np.float16)
    half = {"num_cubes": 1, "num_pes": min(2, torch.shape.pes)}
    policies = {
        "r": ("row_wise", "row_wise"),
        "c": ("row_wise", "column_wise"),
        "p": ("replicate", "replicate"),
    }
    names = {
        n: torch.empty(4, 6, dp=DPPolicy(*p, **half)).copy_(data + i)
        for i, (n, p) in enumerate(policies.items(), 1)
    }
    names["x"] = torch.tensor(data, dtype="f16")
    names["q"] = torch.empty(4, 6, dp=DPPolicy("row_wise", "row_wise")).copy_(data - 1)
    names["w"] = torch.tensor(np.arange(48).reshape(6, 8) % 5 - 2, dtype="f16")
    names["v"], names["s"] = torch.tensor(np.arange(6), dtype="f16"), torch.tensor(2.5, dtype="f16")
    names["e"], names["n"] = torch.zeros(0, 6), torch.tensor([2, 0, 3], dtype="i64")
    names["h"], names["m"] = torch.from_numpy(data), torch.zeros(4, 6, dtype="f32").fill_(1.5)
    return {
        **names,
        "torch": torch,
        "np": np,
        "DPPolicy": DPPolicy,
        "mtp": __import__("megatile.parallel").parallel,
    }


def shown(value: Any) -> str:
    """A tensor with its layout and elements; others than integers to three digits."""
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], Tensor):
        return " & ".join(map(shown, value))
    if isinstance(value, Tensor):
        where = (
            "host"
            if value.handle is None
            else digest([(s.cube, s.pe, s.offset_bytes, s.slices) for s in value.shards])
        )
        return f"{value.dtype}{list(value.shape)} {value.device} {where} {shown(value.numpy())}"
    if isinstance(value, np.ndarray):
        flat = value.astype(np.float64).ravel().tolist()
        text = " ".join(f"{number:.3g}" for number in flat)
        return text if len(flat) <= 6 else digest(text)
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if isinstance(value, (int, str, bool)) else f"{type(value).__name__} {str(value)[:150]}"


def answer(torch: Any, names: dict[str, Any], text: str) -> str:
    before = torch.time_ns
    try:
        found = tried(lambda: shown(eval(text, dict(names))))  # noqa: S307
    except (AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
        found = type(error).__name__
    return line(gives=found, ns=torch.time_ns - before)


@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100"])
def test_tensors_of_every_layout(machine: str, expected: Check) -> None:
    found = {}
    with mt.host(machine) as torch:
        names = made(torch)
        for name in TENSORS:
            for text in ALL if machine == "ahbm" or name in "xrq" else ():
                call = text.replace("{}", name)
                found[f"{machine}, {call}"] = answer(torch, names, call)
    expected("tensors", found)


@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100"])
def test_what_a_host_says(machine: str, expected: Check) -> None:
    found, names = {}, None
    for text in SOME:
        if names is None:
            host = mt.host(machine, sips=2) if machine == "ahbm" else mt.host(machine)
            names = made(host)
        found[f"{machine}, {text}"] = answer(host, names, text)
        if CHANGES.search(text):
            names = None
    expected("host", found)


def test_placements(expected: Check) -> None:
    found: dict[str, Any] = {}
    kinds = ("replicate", "row_wise", "column_wise")
    for shape in ((5,), (4, 6), (7, 5), (3, 4, 5), (), (0, 3), (-1,), "a"):
        for cube in kinds:
            for pe in kinds:
                for limit in ({}, {"num_cubes": 2, "num_pes": 3}, {"num_pes": 9}):
                    policy = DPPolicy(cube, pe, **limit)
                    found[f"{shape} {cube} {pe} {list(limit.items())}"] = tried(
                        lambda p=policy, s=shape: line(
                            shards=resolve_dp_policy(
                                p, shape=s, itemsize=2, num_pe=4, num_cubes=3, target_sip=1
                            )
                        )
                    )
    for function in (column_wise, row_wise, replicate):
        found[function.__name__] = line(
            shards=function(shape=(4, 9), itemsize=4, num_pe=4), doc=function.__doc__
        )
    for function in (tiled_column_major, tiled_row_major):
        for numbers in ((3, 2, 4), (1, 8, 8), (0, 1, 1), (2, 0, 1), (5, 3, 3)):
            for shape in ((5, 7), (6,)):
                found[f"{function.__name__} {shape} {numbers}"] = tried(
                    lambda f=function, s=shape, n=numbers: line(shards=f(s, 2, *n, target_sip=1))
                )
    for given in ({"cube": "x"}, {"num_pes": 0}, {"num_cubes": 1.5}, {"num_pes": True}):
        found[f"{list(given.items())}"] = tried(lambda g=given: str(DPPolicy(**g)))
    expected("placements", found)
