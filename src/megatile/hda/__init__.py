"""YAML → HDA: the one description of a machine that everything else reads."""

from megatile.hda.catalog import divided, machine, machine_names, problems
from megatile.hda.hda import HDA
from megatile.hda.instance import Instance, Seat
from megatile.hda.model import (
    Control,
    Engine,
    Level,
    MemoryLayer,
    Network,
    Scale,
    Unit,
    UnitRange,
)
from megatile.hda.routing import Link, Route
from megatile.hda.schema import ComputeUnit, HardwareAbstraction, HardwareSpecification, ScaleView

__all__ = [
    "HDA",
    "ComputeUnit",
    "Control",
    "Engine",
    "HardwareAbstraction",
    "HardwareSpecification",
    "Instance",
    "Level",
    "Link",
    "MemoryLayer",
    "Network",
    "Route",
    "Scale",
    "ScaleView",
    "Seat",
    "Unit",
    "UnitRange",
    "divided",
    "machine",
    "machine_names",
    "problems",
]
