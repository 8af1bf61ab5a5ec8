"""Collective kernels: a plan with a path, on a machine with a protocol for it (``hda/protocol.py``)."""

from __future__ import annotations

from dataclasses import replace

from megatile.hda import HDA
from megatile.hda.protocol import costs, on_path, paths, protocol_of, total_ps
from megatile.plan.model import Kernels, Plan

_ANY = Kernels()


def ways(plan: Plan, hda: HDA, bare: bool = False) -> list[Plan]:
    """The plan on every path that it may take on a machine; ``bare``: without kernels."""
    if bare or plan.path is None:
        return [replace(plan, path=None)]
    name = (plan.kernels or _ANY).algorithm
    return [replace(plan, path=path) for path in paths(hda, plan.path, plan.scale, name)]


def seen_by(plan: Plan, hda: HDA) -> HDA:
    """The machine as the plan's kernels see it."""
    if plan.path is None:
        return hda
    kernels = plan.kernels or _ANY
    return on_path(hda, plan.path, plan.scale, kernels.algorithm, kernels.channels)


def whole_ps(plan: Plan, hda: HDA, messages_ps: int, launch: bool = True) -> int:
    """The time of a plan whose messages take so long: with what its kernels spend and save once."""
    if plan.path is None:
        return messages_ps
    kernels, protocol = plan.kernels or _ANY, protocol_of(hda, plan.scale)
    if protocol is not None and kernels.steps_saved:
        step_ps = costs(protocol, plan.path, kernels.algorithm).step_ps
        messages_ps -= round(kernels.steps_saved * step_ps)
    return total_ps(hda, plan.path, messages_ps, launch, plan.scale, kernels.algorithm)
