"""``hda/values.py``: values of a machine description."""

from typing import Any

import pytest
from tests.hda.small import small

from megatile.core.errors import MachineError
from megatile.hda import HDA


def test_several_findings_are_counted() -> None:
    with pytest.raises(MachineError, match="1 more, shown by 'megatile machine check'"):
        HDA.from_dict(small(memory__0__size="x", engines__0__kind="y"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"hw_abstr__0__instance_num": "x"},
            "hw_abstr.thread.instance_num: must be a whole number, got 'x'",
        ),
        ({"hw_abstr__0__instance_num": [1, "x"]}, "hw_abstr.thread.instance_num: must be a whole number"),
        ({"source": 5}, "source: must be a string, or a string for each key, got 5"),
        ({"memory__0__source": {"size": 5}}, "memory.ram.source: must be a string, or a string for each key"),
        ({"networks__0__gateway": -1}, "networks.mesh.gateway: must be at least 0, got -1"),
        ({"networks__0__dims": []}, "networks.mesh.dims: a mesh needs at least one dimension"),
    ],
)
def test_one_mistake_is_one_finding_at_its_path(change: dict[str, Any], words: str) -> None:
    with pytest.raises(MachineError) as caught:
        HDA.from_dict(small(**change))
    assert words in str(caught.value)
    assert "more, shown by" not in str(caught.value)
