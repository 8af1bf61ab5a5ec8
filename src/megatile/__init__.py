"""megatile: describe a machine, write a program for it once, then check, run, predict and execute it.

    >>> import megatile as mt
    >>> mt.machine("dgx-h100").count("gpu")
    8

Names are loaded when first used, so that importing the package stays light.
"""

from typing import TYPE_CHECKING

from megatile.core.public import PublicNames, extend

if TYPE_CHECKING:
    from megatile.attention import (
        hamilton_attention as hamilton_attention,
        shard_sequence as shard_sequence,
        unshard_sequence as unshard_sequence,
    )
    from megatile.collectives.planner import collective as collective
    from megatile.core.errors import MegatileError as MegatileError
    from megatile.core.version import __version__ as __version__
    from megatile.hda import (
        HDA as HDA,
        ComputeUnit as ComputeUnit,
        HardwareAbstraction as HardwareAbstraction,
        HardwareSpecification as HardwareSpecification,
        Instance as Instance,
        ScaleView as ScaleView,
        Unit as Unit,
        machine as machine,
        machine_names as machine_names,
    )
    from megatile.language.kernel.mock import run_kernel_in_mock as run_kernel_in_mock
    from megatile.lower.calls import check as check, execute as execute, price as price, simulate as simulate
    from megatile.lower.lowered import lower as lower
    from megatile.parallel.comm_debug import comm_debug as comm_debug
    from megatile.plan.build import PlanBuilder as PlanBuilder
    from megatile.plan.model import Plan as Plan
    from megatile.runtime.host.context import host as host
    from megatile.runtime.host.replay import replay as replay
    from megatile.runtime.launch import launch as launch
    from megatile.runtime.measure import measure as measure
    from megatile.sim import Session as Session, faults as faults
    from megatile.targets.compile import compile as compile, export as export
    from megatile.targets.interpret.run import run as run
    from megatile.timing.database import Database as Database, predict_kernel as predict_kernel
    from megatile.tune.machines import sweep as sweep
    from megatile.tune.search import tune as tune

_WHERE = {
    "MegatileError": "megatile.core.errors",
    "__version__": "megatile.core.version",
    "HDA": "megatile.hda",
    "ComputeUnit": "megatile.hda",
    "HardwareAbstraction": "megatile.hda",
    "HardwareSpecification": "megatile.hda",
    "Instance": "megatile.hda",
    "ScaleView": "megatile.hda",
    "Unit": "megatile.hda",
    "collective": "megatile.collectives.planner",
    "lower": "megatile.lower.lowered",
    "machine": "megatile.hda",
    "machine_names": "megatile.hda",
    "Plan": "megatile.plan.model",
    "PlanBuilder": "megatile.plan.build",
    "check": "megatile.lower.calls",
    "execute": "megatile.lower.calls",
    "price": "megatile.lower.calls",
    "Database": "megatile.timing.database",
    "predict_kernel": "megatile.timing.database",
    "sweep": "megatile.tune.machines",
    "tune": "megatile.tune.search",
    "Session": "megatile.sim",
    "faults": "megatile.sim",
    "simulate": "megatile.lower.calls",
    "run_kernel_in_mock": "megatile.language.kernel.mock",
    "compile": "megatile.targets.compile",
    "export": "megatile.targets.compile",
    "run": "megatile.targets.interpret",
    "host": "megatile.runtime.host.context",
    "replay": "megatile.runtime.host.replay",
    "comm_debug": "megatile.parallel.comm_debug",
    "launch": "megatile.runtime.launch",
    "measure": "megatile.runtime.measure",
    "hamilton_attention": "megatile.attention",
    "shard_sequence": "megatile.attention",
    "unshard_sequence": "megatile.attention",
}

__all__ = list(_WHERE)
__getattr__ = PublicNames(__name__, _WHERE)
extend("megatile.attention", "megatile.compat.attention_names")
extend("megatile.collectives", "megatile.compat.ccl")
extend("megatile.collectives.sweeps", "megatile.compat.ccl.kernel_plans")
extend("megatile.hda.load", "megatile.compat.kernbench")
extend("megatile.language", "megatile.tune")
extend("megatile.runtime.host.context", "megatile.compat.ccl.host")


def __dir__() -> list[str]:
    return sorted(__all__)
