"""Collectives: topologies, decompositions into rings, algorithms, planner. Names load when first used."""

from importlib import import_module
from typing import Any

_WHERE = {
    "ALGORITHMS": "registry",
    "CollectiveError": "job",
    "Explanation": "candidates",
    "Job": "job",
    "NeighborTableEntry": "install",
    "PeInstallSpec": "install",
    "Prediction": "planner",
    "SipInstallPlan": "install",
    "algorithm": "registry",
    "algorithms": "registry",
    "build_install_plans": "install",
    "collective": "planner",
    "configure_sfr_intercube_multisip": "install",
    "find_algorithm": "registry",
    "kernel_plan": "kernel_plans",
    "load_ccl_config": "config",
    "plan_of_module": "kernel_plans",
    "predict": "planner",
    "prove": "provenance",
    "resolve_algorithm_config": "config",
    "resolve_mapper": "mappers",
    "resolve_topology": "topologies",
    "resolve_validator": "mappers",
    "sweep": "sweeps",
}

__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'megatile.collectives' has no attribute '{name}'")
    return getattr(import_module(f"megatile.collectives.{_WHERE[name]}"), name)
