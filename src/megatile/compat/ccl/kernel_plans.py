"""From an install plan to a Plan: a collective kernel on the PEs it was installed on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from megatile.collectives.candidates import Candidate
from megatile.collectives.job import CollectiveError, Job, operation_name
from megatile.collectives.planner import Prediction
from megatile.compat.ccl.config import SHAPE, check_values, given, kernel_module, resolve_algorithm_config
from megatile.compat.ccl.install import SIP_KINDS, SipInstallPlan, build_install_plans, topology_of
from megatile.compat.ccl.topologies import direction_names, floor_of
from megatile.core.arguments import no_none
from megatile.core.dtypes import dtype as dtype_name, itemsize
from megatile.core.expr import table, unit
from megatile.hda import HDA
from megatile.language.kernel.directions import from_neighbors
from megatile.language.kernel.to_plan import read_kernel
from megatile.language.kernel.values import Computed, Tensor
from megatile.plan.model import Plan
from megatile.sim import simulate


@no_none
def kernel_plan(
    config: Mapping[str, Any],
    machine: HDA,
    *,
    world_size: int | None = None,
    n_elem: int | None = None,
    trust: bool = False,
) -> Plan:
    """The Plan of a configured kernel (``resolve_algorithm_config``) on all participating PEs.

    Tensor ``t`` holds ``n_elem`` elements per participant. Ranks are SIPs; their number is ``world_size``, or
    that of the configuration, or all there are. Import paths in the
    configuration are code: they need ``trust``.
    """
    floor = floor_of(machine)
    size = world_size if world_size is not None else config.get("world_size") or floor.sip_count
    settings = given(config)
    settings["n_elem"] = settings.get("n_elem", 8) if n_elem is None else n_elem
    installs = build_install_plans(
        size, str(config.get("algorithm", "kernel")), settings, machine, trust=trust
    )
    places = [
        (plan.sip * floor.cubes + cube) * floor.pes + pe
        for plan in installs
        for cube, pe in plan.participating_pes
    ]
    return read_installed(installs, places, settings, trust)


def plan_of_module(
    module: Any,
    world_size: int,
    *,
    topology: str = "ring_1d",
    machine: HDA | str | None = None,
    scale: str | None = None,
    places: Sequence[int] | None = None,
    **config: Any,
) -> Plan:
    """The Plan of a user's module: ``kernel``, ``kernel_args``, perhaps ``neighbors``.

    ``machine`` gives the scale and the memories that are not named, as for ``tl`` kernels.
    """
    settings = {"n_elem": 8, "world_size": world_size, **config}
    check_values(settings)
    options = {
        k: settings[k] for k in ("buffer_kind", "n_slots", "slot_size", "memory", "scratch") if k in settings
    }
    found = kernel_module(module, trust=True)  # the caller names it
    plan = read_kernel(
        found.kernel,
        [_tensor(settings), *found.kernel_args(**settings)],
        world_size=world_size,
        topology=topology,
        neighbors=getattr(found, "neighbors", None),
        machine=machine,
        scale=scale,
        name=getattr(found, "__name__", "kernel").rpartition(".")[2],
        **options,
    )
    plan = _with_queue_settings(plan, settings)
    return plan if places is None else replace(plan, place=table(list(places), unit))


def _with_queue_settings(plan: Plan, settings: Mapping[str, Any]) -> Plan:
    """The plan with the credits and chunks of ``ipcq_credit_size_bytes`` and ``vc_chunk_size``."""
    credit, chunk = settings.get("ipcq_credit_size_bytes"), settings.get("vc_chunk_size")
    queues = (replace(c, credit_bytes=credit, chunk_bytes=chunk) for c in plan.channels)
    return replace(plan, channels=tuple(queues))


def _tensor(settings: Mapping[str, Any]) -> Tensor:
    return Tensor("t", (int(settings["n_elem"]),), settings.get("dtype", "f16"), role="inout")


def read_installed(
    installs: list[SipInstallPlan], places: list[int], config: Mapping[str, Any], trust: bool = False
) -> Plan:
    """Read the kernel for the participants; PEs of one SIP and the SIPs themselves are the axes."""
    first = installs[0]
    module = kernel_module(first.kernel_module, trust=trust)
    each = len(first.participating_pes)
    cubes = {cube for cube, _ in first.participating_pes}
    per_cube = each // len(cubes)
    count = len(places)
    full = [(cube, pe) for cube in sorted(cubes) for pe in range(per_cube)]
    rectangle = all(list(one.participating_pes) == full for one in installs)
    maps = neighbor_maps(installs)
    names = () if hasattr(module, "neighbors") else direction_names(topology_of(config, module), count)
    plan = read_kernel(
        module.kernel,
        _arguments(module, first, config, each),
        grid=(per_cube, len(cubes), len(installs)) if rectangle else (count,),
        topology=from_neighbors(lambda rank, world: maps[rank], count, names),
        scale="pe",
        name=first.algorithm_name,
        buffer_kind=first.buffer_kind,
        n_slots=first.n_slots,
        slot_size=first.slot_size,
        split=True,
    )
    plan = _with_queue_settings(plan, config)
    return plan if places == list(range(count)) else replace(plan, place=table(places, unit))


def _arguments(module: Any, install: SipInstallPlan, config: Mapping[str, Any], each: int) -> list[Any]:
    """Return the arguments of a kernel before ``tl``.

    A ``kernel_args`` without ``**config`` has KernBench's convention: ``world_size`` counts ranks, ``t_ptr``
    is the tensor of the kernel's own SIP, and after a table ``TOPO_NAME_TO_KIND`` follow the SIP's rank and
    the kind, width and height of the grid of SIPs.
    """
    given = install.kernel_config
    parameters = inspect.signature(module.kernel_args).parameters
    ours = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not ours:
        given = {k: v for k, v in {**given, "world_size": given["ranks"]}.items() if k in parameters}
    try:
        own = list(module.kernel_args(**given))
    except TypeError as problem:
        raise CollectiveError(f"{problem} in module '{install.kernel_module}'", advice=SHAPE) from None
    if ours:
        return [_tensor(config), *own]
    tensor = replace(_tensor(config), period=each)
    kinds = getattr(module, SIP_KINDS, None)
    if kinds is None:
        return [tensor, *own]
    name = install.kernel_config["sip_topology"]
    grid = ("sip_w", "sip_h") if name != "ring_1d" else ()
    width, height = [install.kernel_config[key] for key in grid] or (0, 0)
    return [tensor, *own, Computed(lambda tl: tl.program_id(2)), kinds.get(name, 0), width, height]


def neighbor_maps(installs: list[SipInstallPlan]) -> list[dict[str, int]]:
    """Return for every participant of all SIPs the number of its neighbour in each direction."""
    seats = [(p.sip, cube, pe) for p in installs for cube, pe in p.participating_pes]
    number = {seat: i for i, seat in enumerate(seats)}
    return [
        {n.direction: number[n.peer_sip, n.peer_cube, n.peer_pe] for n in pe.neighbors}
        for plan in installs
        for pe in plan.pe_installs
    ]


def predict_kernel(
    operation: str,
    kernels: Mapping[str, Any],
    name: str,
    machine: HDA,
    nbytes: int,
    *,
    dtype: str = "f16",
    reduction: str = "sum",
    launch: bool = True,
    trust: bool = False,
    **_: Any,
) -> Prediction:
    """The time of a kernel of ``kernels`` (``load_ccl_config``) whose participants hold ``nbytes`` each."""
    if operation_name(operation) != "all_reduce":
        raise CollectiveError(f"{name} is a kernel of ccl.yaml, which does all_reduce only")
    element = dtype_name(dtype)
    settings = {**resolve_algorithm_config(kernels, name), "dtype": element, "reduce_op": reduction}
    plan = kernel_plan(settings, machine, n_elem=max(1, nbytes // itemsize(element)), trust=trust)
    job = Job(
        "all_reduce", plan.units, plan.tile("t").elements, element, reduction, in_place=True, scale="pe"
    )
    timed = simulate(plan, machine=machine, launch=launch)
    candidate = Candidate(name, protocol="kernel", time_ps=timed.time_ps)
    return Prediction(plan, job, timed.time_ps, candidate, timed.model)


__all__ = ["kernel_plan", "neighbor_maps", "plan_of_module", "predict_kernel", "read_installed"]
