"""``hda/parameters.py``: the figures of a machine by name, and the machine with some of them multiplied."""

from pathlib import Path

import pytest
from tests.hda.shared import write
from tests.hda.small import SMALL

from megatile.core.errors import MachineError
from megatile.hda import machine
from megatile.hda.parameters import figures


def test_unknown_names_suggest_paths_and_levels(tmp_path: Path) -> None:
    file = write(tmp_path, "m.yaml", SMALL)
    with pytest.raises(MachineError, match=r"no parameter 'ram' \(try: did you mean 'memory.ram.size'"):
        machine(file, ram="2 GiB")
    with pytest.raises(MachineError, match=r"no scale 'cor' \(try: did you mean 'core'"):
        machine(file).scale("cor")
    assert figures(file)["memory.ram.size"] == figures(str(file))["memory.ram.size"] == "1 GiB"
