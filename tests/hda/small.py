"""A small machine to vary in tests, and how a test asks for an error."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from megatile.core.errors import MachineError
from megatile.hda import HDA

SMALL: dict[str, Any] = {
    "name": "small",
    "hw_spec": {
        "pe": [{"name": "lane", "num_units": 1}, {"name": "core", "num_units": 4}],
        "pe_groups": [{"name": "chip", "num_units": 6}, {"name": "board", "num_units": 2}],
    },
    "hw_abstr": [
        {"name": "thread", "target": "lane"},
        {"name": "block", "target": "core"},
        {"name": "device", "target": "chip"},
        {"name": "node", "target": "board"},
    ],
    "clocks": {"board": "1 GHz"},
    "memory": [
        {"name": "ram", "level": "chip", "size": "1 GiB", "bandwidth": "100 GB/s", "latency": "100 cycles"}
    ],
    "networks": [
        {"name": "mesh", "level": "chip", "topology": "mesh", "bandwidth": "16 B/cycle", "latency": "2 ns"}
    ],
    "engines": [{"name": "alu", "kind": "vector", "level": "core", "throughput": "8 FLOP/cycle"}],
    "control": {"launch": [{"level": "chip", "overhead": "1 us"}]},
    "channels": [{"name": "queue", "level": "core"}],
}


def small(**changes: Any) -> dict[str, Any]:
    """The small machine with values set: ``memory_0_size="1 B"`` sets ``memory[0]["size"]``; None deletes."""
    data = copy.deepcopy(SMALL)
    for path, value in changes.items():
        here: Any = data
        *steps, last = [int(step) if step.isdecimal() else step for step in path.split("__")]
        for step in steps:
            here = here[step]
        if value is None:
            del here[last]
        else:
            here[last] = value
    return data


def refused(text: str, folder: Path, **overrides: Any) -> MachineError:
    """The error that loading this YAML text gives."""
    file = folder / "m.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(MachineError) as caught:
        HDA.from_yaml(file, **overrides)
    assert caught.value.place is None or caught.value.place.file == str(file)
    return caught.value
