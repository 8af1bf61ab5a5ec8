"""``plan/serial.py``: plans as JSON and as a hash."""

from __future__ import annotations

import json

import pytest
from tests.plan.text_cases import WHOLE, ring

from megatile.core.errors import MegatileError
from megatile.plan.check import check
from megatile.plan.model import Level, Plan, PlanError


def test_the_format_of_before_is_read():
    text = '{"format": 1, "is": "Plan", "name": "old", "scale": "pe", "grid": [1]}'
    assert Plan.from_json(text) == Plan("old", "pe", (1,))
    assert Level("a", "pe", (2, 3)).count == 6


def test_bad_json():
    document = json.loads(ring().to_json())
    for change, message in (
        ({"format": 9}, "not a plan in format 1 or 2"),
        ({"is": "Plam"}, "'Plam' is not part of a Plan"),
        ({"colour": 1}, "Plan has no field 'colour'"),
    ):
        with pytest.raises(PlanError, match=message):
            Plan.from_json(json.dumps(document | change))
    with pytest.raises(PlanError, match="not JSON"):
        Plan.from_json("{")
    del document["grid"]
    with pytest.raises(PlanError, match="grid"):
        Plan.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "value", [None, -1, "a b", [], [1, "a"], {"is": "Work"}, {"is": []}, {"float": "z"}, 1e300]
)
def test_hostile_json_is_one_clear_error(value):
    """Every place of a document is replaced in turn."""
    document = json.loads(Plan.from_text(WHOLE).to_json())

    def replaced(node):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            kept = node[key]
            node[key] = value
            yield json.dumps(document)
            node[key] = kept
            if isinstance(inner, (dict, list)):
                yield from replaced(inner)

    refused = 0
    for text in replaced(document):
        try:
            check(Plan.from_json(text))
        except MegatileError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format": 1, "is": "Plan", "name": ' + "[" * 900 + "]" * 900 + "}",
        None,
        b"\xff",
        "9" * 5000,
    ],
)
def test_foreign_json(text):
    with pytest.raises(PlanError):
        Plan.from_json(text)
