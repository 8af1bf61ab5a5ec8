"""The engine as plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatile.records.functions import Functions
from megatile.sim import instructions, state
from megatile.sim.arena import LAYOUT
from megatile.sim.serialise import translate_serialise

_HERE = Path(__file__).parent
FUNCTIONS = Functions(
    _HERE / "engine",
    {**vars(instructions), **vars(state)},
    LAYOUT,
    [_HERE / name for name in ("instructions.py", "state.py", "arena.py", "serialise.py")],
    {"serialise": translate_serialise},
)
"""The functions of the engine; ``answering``: by the number of a simulation that runs, what answers it."""


def engine() -> Any:
    """The functions of the engine; each takes the memory of an `Arena` first."""
    return FUNCTIONS.plain
