"""How long operations between devices take: collectives, all-reduce kernels of inference engines, DeepEP.

The rules are in ``collective_rule.py`` and ``engine_rules.py``; here they are asked as kernels of libraries.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.dtypes import itemsize
from megatile.core.errors import MissingDescriptionError
from megatile.hda import HDA
from megatile.hda.model import KernelFigures, Network
from megatile.plan.model import Transport
from megatile.timing.collective_choice import choose, library_of, reservation, rule_of, times_ps
from megatile.timing.collective_rule import Rule, Way, fabric
from megatile.timing.device import Device, Shape, every, some
from megatile.timing.engine_rules import ENGINE_SECTIONS, engine_way
from megatile.timing.library import networks_between
from megatile.timing.machine_timing import Origin, TimingError


def collective(kind: str, device: Device, shape: Shape, dtype: str) -> Any:
    """With the library's own choice of algorithm and protocol; bytes as nccl-tests counts them."""
    ranks, most = shape["ranks"], device.hda.count("device")
    if some(ranks > most):
        rule_of(device.hda)  # says if there is no network at all
        raise TimingError(
            f"{int(np.max(ranks))} ranks are more than the {most} devices of '{device.hda.name}'"
        )
    if kind == "all_reduce" and _has_engine(device):
        return engine_all_reduce(device, shape, dtype)
    return _library(device, kind, shape["ranks"], shape["bytes"], dtype)


@cached_in_owner
def _has_engine(device: Device) -> bool:
    """Return whether the framework reduces by kernels of its own."""
    known = device.hda.transports.get(device.hda.scale("device").name, {})
    return ENGINE_SECTIONS.get(device.library) in known


def _library(device: Device, kind: str, ranks: Any, nbytes: Any, dtype: str) -> Any:
    if isinstance(ranks, (int, float)) and isinstance(nbytes, (int, float)):
        return _library_us(device, kind, int(ranks), nbytes, itemsize(dtype))
    rule, size = rule_of(device.hda), itemsize(dtype)
    return np.maximum(times_ps(rule, kind, ranks, nbytes, graph=device.captured, itemsize=size), 1) / 1e6


@cached_in_owner
def _library_us(device: Device, kind: str, ranks: int, nbytes: float, size: int) -> float:
    time = times_ps(rule_of(device.hda), kind, ranks, nbytes, graph=device.captured, itemsize=size)
    return max(float(time), 1.0) / 1e6


def engine_all_reduce(device: Device, shape: Shape, dtype: str) -> Any:
    """Return the time of an engine's all-reduce: its own kernels for few bytes, NCCL's for many."""
    if isinstance(shape["ranks"], (int, float)) and isinstance(shape["bytes"], (int, float)):
        return _engine_us(device, int(shape["ranks"]), shape["bytes"], dtype)
    every = np.broadcast_arrays(shape["ranks"], shape["bytes"])
    each = [
        _engine_us(device, int(n), float(s), dtype) for n, s in zip(*(a.ravel() for a in every), strict=True)
    ]
    return np.array(each).reshape(every[0].shape)


def _engine_us(device: Device, ranks: int, nbytes: float, dtype: str) -> float:
    if ranks < 2:
        return 0.0
    rule, way = _engine_way(device, ranks, nbytes)
    issued = 0.0 if device.captured else rule.figures.launch_ps / 1e6
    if way is None:
        return max(_library(device, "all_reduce", ranks, nbytes, dtype), issued)
    return max(float(rule.time_ps(way, "all_reduce", ranks, nbytes)) / 1e6, issued)


@cached_in_owner
def _engine_way(device: Device, ranks: int, nbytes: float) -> tuple[Rule, Way | None]:
    """Return the rule of an engine's own all-reduce, and what it takes for a size (None: NCCL)."""
    section = ENGINE_SECTIONS[device.library]
    way = engine_way(device.hda, device.library, ranks, nbytes)
    return rule_of(device.hda, section, "device", device.captured), way


def collective_origin(device: Device, operation: str, dtype: str) -> tuple[Origin, float | None]:
    """Return where the time of a collective comes from."""
    if operation == "all_reduce" and _has_engine(device):
        return device.protocol_origin(ENGINE_SECTIONS[device.library], "one_shot")
    library = library_of(device.hda)
    if library is None:
        return Origin("assumed", f"{device.hda.name} has no transports: only link times count"), None
    doubt = reservation(rule_of(device.hda), operation, dtype)
    return Origin("rule", f"transports.device.{library}{f'; {doubt}' if doubt else ''}"), None


ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang", "torch": "PyTorch"}
"""How people write the names of frameworks."""


def model_name(device: Device, operation: str, shape: Shape, dtype: str) -> str:
    """Return the name of the timing model of a kernel of a library: ``NCCL ring, LL``, ``vLLM one-shot``."""
    engine = ENGINES.get(device.library or "", device.library or "library")
    if operation.startswith("moe_"):
        return f"DeepEP {'low-latency ' if shape['low_latency'] else ''}{operation.removeprefix('moe_')}"
    if operation not in COLLECTIVES:
        return f"{engine} {operation} kernel"
    ranks, nbytes = shape["ranks"], shape["bytes"]
    if operation == "all_reduce" and _has_engine(device):
        _, engine_kernel = _engine_way(device, ranks, nbytes)
        if engine_kernel is not None:
            return Transport("kernel", engine, engine_kernel.algorithm).model_name()
    if ranks < 2:
        return "no communication"
    rule = rule_of(device.hda)
    way = choose(rule, operation, ranks, nbytes, graph=device.captured, itemsize=itemsize(dtype))
    return Transport("kernel", rule.library, *way).model_name()


# --- experts


def experts(kind: str, device: Device, shape: Shape, dtype: str) -> Any:
    """DeepEP's exchange of tokens with their experts: by some compute units, or in low-latency mode."""
    low = shape["low_latency"]
    if not some(low):
        return between_experts(device, kind, shape, dtype)
    direct = low_latency(device, kind, shape)
    return (
        direct if every(low) else device.x.where(low > 0, direct, between_experts(device, kind, shape, dtype))
    )


def experts_kernels(kind: str, device: Device, shape: Shape, dtype: str) -> tuple[str, ...]:
    return (f"{kind}_low_latency" if some(shape["low_latency"]) else kind,)


def between_experts(device: Device, kind: str, shape: Shape, dtype: str) -> Any:
    """Return the microseconds in which some compute units send every token to the devices of its experts, or
    their results back: each unit a message (``wave``) and its bytes at a ``share`` of the link at a time."""
    figures, x, hda = device.kernel(kind), device.x, device.hda
    nodes, hidden, tokens, topk, sms = (
        shape[extent] * 1.0 for extent in ("nodes", "hidden", "tokens", "topk", "sms")
    )
    near, far = _networks(hda)
    devices = nodes * _devices(hda, near)
    reached = devices * (1 - (1 - 1 / devices) ** topk)
    messages, size = tokens * reached, hidden * itemsize(dtype)
    by_units = messages * (figures.wave_us + size / (near.bandwidth * figures.share) * 1e6) / sms
    links = _devices(hda, near) - 1 if near.topology.kind == "full_mesh" else 1
    by_link = messages * size / (near.bandwidth * near.efficiency * links) * 1e6
    if far is not None:
        crossing = tokens * (nodes - 1) * size / (far.bandwidth * far.efficiency) * 1e6
        by_link = x.maximum(by_link, crossing)
    return _start_us(device, figures, far is not None) + x.maximum(by_units, by_link)


def _start_us(device: Device, figures: KernelFigures, far: bool) -> float:
    """Return the start of a kernel on links that take more or less than when its figures were measured."""
    around = fabric(device.hda)
    return max(0.0, figures.start_us + (around.later_ps + around.far_later_ps * far) / 1e6)


def low_latency(device: Device, kind: str, shape: Shape) -> Any:
    """Return the microseconds of DeepEP's low-latency mode: every (token, expert) is a message of its own,
    8-bit out and 16-bit back; each expert's messages arrive one after the other (``wave``), and the kernel
    looks at every expert (``split``)."""
    figures, x, hda = device.kernel(f"{kind}_low_latency"), device.x, device.hda
    nodes, hidden, tokens, topk, experts = (
        shape[extent] * 1.0 for extent in ("nodes", "hidden", "tokens", "topk", "experts")
    )
    near, far = _networks(hda)
    ranks = nodes * _devices(hda, near)
    size = hidden * (1 + 4 / 128 if kind == "dispatch" else 2)
    away = 1 - 1 / ranks
    by_link = tokens * topk * size * away / (near.bandwidth * figures.share) * 1e6
    if far is not None:
        outside = tokens * topk * size * (1 - 1 / nodes) / (far.bandwidth * far.efficiency) * 1e6
        by_link = x.maximum(by_link, outside)
    by_expert = tokens * topk * ranks / experts * figures.wave_us
    looked = (figures.split_us or 0.0) * experts
    return _start_us(device, figures, far is not None) + looked + x.maximum(by_link, by_expert)


@cached_in_owner
def _networks(hda: HDA) -> tuple[Network, Network | None]:
    """Return the network between the devices of a node, and the one between nodes."""
    outside = networks_between(hda, "device")
    if not outside:
        raise MissingDescriptionError(
            f"machine '{hda.name}' describes no network between devices", advice="add one under 'networks'"
        )
    return outside[0], outside[1] if len(outside) > 1 else None


def _devices(hda: HDA, network: Network) -> int:
    return hda.level(hda.scale("device").level).total // hda.level(network.level).total


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
collective_rules = {kind: partial(collective, kind) for kind in COLLECTIVES}
