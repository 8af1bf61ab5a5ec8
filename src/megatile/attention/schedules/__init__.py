"""Schedules of divided attention as data: layouts, routes of KV, kernels per step. No torch."""

from __future__ import annotations

from megatile.attention.schedules.bands import Band, Mask, MaskTile
from megatile.attention.schedules.division import Division, KernelCall, division_for
from megatile.attention.schedules.pieces import Layout, LayoutError
from megatile.attention.schedules.routes import (
    CycleRoutes,
    DirectRoutes,
    GatherRoutes,
    Held,
    Routes,
    Transfer,
)
from megatile.attention.schedules.schedule import (
    Schedule,
    ScheduleError,
    cycle_schedule,
    make_schedule,
    schedule_names,
)
from megatile.attention.schedules.summary import schedule_summary
from megatile.core.placement import Piece, positions

__all__ = [
    "Band",
    "CycleRoutes",
    "DirectRoutes",
    "Division",
    "GatherRoutes",
    "Held",
    "KernelCall",
    "Layout",
    "LayoutError",
    "Mask",
    "MaskTile",
    "Piece",
    "Routes",
    "Schedule",
    "ScheduleError",
    "Transfer",
    "cycle_schedule",
    "division_for",
    "make_schedule",
    "positions",
    "schedule_names",
    "schedule_summary",
]
