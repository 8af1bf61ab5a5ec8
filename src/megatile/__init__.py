"""megatile: describe a machine, write a program for it once, then check, run, predict and execute it.

    >>> import megatile as mt
    >>> mt.machine("dgx-h100").count("gpu")
    8

Names are loaded when first used, so that importing the package stays light.
"""

from typing import TYPE_CHECKING

from megatile.core.public import PublicNames, extend

if TYPE_CHECKING:
    from megatile.attention.functional import hamilton_attention as hamilton_attention
    from megatile.attention.sharding import (
        shard_sequence as shard_sequence,
        unshard_sequence as unshard_sequence,
    )
    from megatile.collectives.candidates import Explanation as Explanation
    from megatile.collectives.planner import Prediction as Prediction, collective as collective
    from megatile.core.errors import MegatileError as MegatileError, Place as Place
    from megatile.core.version import __version__ as __version__
    from megatile.cost.price import Price as Price
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
    from megatile.ir.passes.driver import Pass as Pass
    from megatile.ir.program import Program as Program
    from megatile.language.kernel.mock import run_kernel_in_mock as run_kernel_in_mock
    from megatile.language.tile.program import ProgramFunction as ProgramFunction
    from megatile.lowering.calls import (
        check as check,
        execute as execute,
        price as price,
        simulate as simulate,
    )
    from megatile.lowering.lowered import Lowered as Lowered, lower as lower
    from megatile.models.model import Model as Model, model as model
    from megatile.models.search import ModelSearch as ModelSearch
    from megatile.models.serving import Serving as Serving
    from megatile.models.step import StepTime as StepTime
    from megatile.models.training import TrainStep as TrainStep
    from megatile.parallel.comm_debug import CommDebug as CommDebug, comm_debug as comm_debug
    from megatile.plan.build import PlanBuilder as PlanBuilder
    from megatile.plan.check import Checked as Checked
    from megatile.plan.execute import Results as Results
    from megatile.plan.model import Plan as Plan
    from megatile.runtime.host.context import RuntimeContext as RuntimeContext, host as host
    from megatile.runtime.host.oplog import OpLog as OpLog
    from megatile.runtime.host.replay import replay as replay
    from megatile.runtime.launch import LaunchResults as LaunchResults, launch as launch
    from megatile.runtime.measure import Measured as Measured, measure as measure
    from megatile.runtime.torch_estimate import (
        TorchEstimate as TorchEstimate,
        torch_estimate as torch_estimate,
    )
    from megatile.sim import Result as Result, Session as Session
    from megatile.targets.common.kernel import CompiledKernel as CompiledKernel
    from megatile.targets.compile import compile as compile, export as export
    from megatile.targets.interpret.run import RunResult as RunResult, run as run
    from megatile.timing.database import Database as Database, predict_kernel as predict_kernel
    from megatile.timing.faults import Faults as Faults, faults as faults
    from megatile.timing.formulas import KernelTime as KernelTime
    from megatile.trace.events import Trace as Trace
    from megatile.tuning.best_on_machines import TunedSweep as TunedSweep
    from megatile.tuning.machines import Sweep as Sweep, sweep as sweep
    from megatile.tuning.search import Tuned as Tuned, tune as tune
    from megatile.verdict.model import Finding as Finding, Verdict as Verdict

_NAMES = {
    "megatile.attention": "hamilton_attention shard_sequence unshard_sequence",
    "megatile.collectives.candidates": "Explanation",
    "megatile.collectives.planner": "Prediction collective",
    "megatile.core.errors": "MegatileError Place",
    "megatile.core.version": "__version__",
    "megatile.cost.price": "Price",
    "megatile.hda": "HDA ComputeUnit HardwareAbstraction HardwareSpecification Instance ScaleView Unit "
    "machine machine_names",
    "megatile.ir.passes.driver": "Pass",
    "megatile.ir.program": "Program",
    "megatile.language.kernel.mock": "run_kernel_in_mock",
    "megatile.language.tile.program": "ProgramFunction",
    "megatile.lowering.calls": "check execute price simulate",
    "megatile.lowering.lowered": "Lowered lower",
    "megatile.models.model": "Model model",
    "megatile.models.search": "ModelSearch",
    "megatile.models.serving": "Serving",
    "megatile.models.step": "StepTime",
    "megatile.models.training": "TrainStep",
    "megatile.parallel.comm_debug": "CommDebug comm_debug",
    "megatile.plan.build": "PlanBuilder",
    "megatile.plan.check": "Checked",
    "megatile.plan.execute": "Results",
    "megatile.plan.model": "Plan",
    "megatile.runtime.host.context": "RuntimeContext host",
    "megatile.runtime.host.oplog": "OpLog",
    "megatile.runtime.host.replay": "replay",
    "megatile.runtime.launch": "LaunchResults launch",
    "megatile.runtime.measure": "Measured measure",
    "megatile.runtime.torch_estimate": "TorchEstimate torch_estimate",
    "megatile.sim": "Result Session",
    "megatile.targets.common.kernel": "CompiledKernel",
    "megatile.targets.compile": "compile export",
    "megatile.targets.interpret.run": "RunResult run",
    "megatile.timing.database": "Database predict_kernel",
    "megatile.timing.faults": "Faults faults",
    "megatile.timing.formulas": "KernelTime",
    "megatile.trace.events": "Trace",
    "megatile.tuning.best_on_machines": "TunedSweep",
    "megatile.tuning.machines": "Sweep sweep",
    "megatile.tuning.search": "Tuned tune",
    "megatile.verdict.model": "Finding Verdict",
}
"""Every public name by its module; for type checkers the same stands above."""
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_WHERE)
__getattr__ = PublicNames(__name__, _WHERE)
_EXTENSIONS = {
    "megatile.attention": "megatile.compat.attention_names",
    "megatile.collectives": "megatile.compat.ccl",
    "megatile.collectives.sweeps": "megatile.compat.ccl.kernel_plans",
    "megatile.hda.load": "megatile.compat.kernbench",
    "megatile.language": "megatile.tuning",
    "megatile.runtime.host.context": "megatile.compat.ccl.host",
    "megatile.sim.result": "megatile.verdict",
}
"""Modules, and those above them that add names to them or forms that they read."""
for _module, _above in _EXTENSIONS.items():
    extend(_module, _above)


def __dir__() -> list[str]:
    return sorted(__all__)
