"""Plans as JSON and as a hash.

Every dataclass becomes an object with its class in ``"is"`` and its fields that differ from the default;
expressions are their text. The hash covers everything but source places, and is the same in every process.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from megatile.core.errors import Place
from megatile.core.expr import Const, Expr, expression
from megatile.core.files import parse_json
from megatile.plan import model, parse
from megatile.plan.fields import check_fields
from megatile.plan.model import FORMS, Plan, PlanError
from megatile.plan.statements import Compute

_CLASSES: dict[str, type] = {
    name: getattr(model, name) for name in model.__all__ if is_dataclass(getattr(model, name))
} | {"Place": Place}
MAX_OBJECTS = 5_000_000
"""Statements, regions and expressions of a document."""
FORMAT = 2
"""Version of the JSON format."""
READ = (1, FORMAT)  # format 1 knows no levels


def to_json(plan: Plan) -> str:
    return json.dumps({"format": FORMAT} | encode(plan), indent=1)


def from_json(text: str) -> Plan:
    try:
        document = parse_json(text, MAX_OBJECTS)
    except (ValueError, TypeError) as error:
        raise PlanError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.pop("format", None) not in READ:
        raise PlanError(f"not a plan in format {' or '.join(map(str, READ))}")
    path, kernels = document.pop("path", None), document.pop("kernels", None)
    try:
        plan = decode(document)
    except RecursionError:
        raise PlanError("the plan is nested too deeply") from None
    if not isinstance(plan, Plan):
        raise PlanError("the document is not a plan")
    check_fields(plan)
    if path is None:
        return plan
    return parse.with_library(plan, path, kernels.get("algorithm", "") if isinstance(kernels, dict) else "")


def digest(plan: Plan) -> str:
    """Return the SHA-256 of the canonical JSON without source places."""
    text = json.dumps(encode(plan, places=False), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def encode(value: Any, places: bool = True) -> Any:
    if isinstance(value, Expr):
        return {"expr": value.text()}
    if is_dataclass(value) and not isinstance(value, type):
        result: dict[str, Any] = {"is": type(value).__name__}
        for entry in fields(value):
            item = getattr(value, entry.name)
            skip = item is None and entry.default is None
            if skip or (
                entry.default is not MISSING and not isinstance(item, Place) and item == entry.default
            ):
                continue
            if isinstance(item, Place) and not places:
                continue
            result[entry.name] = encode(item, places)
        return result
    if isinstance(value, (tuple, list)):
        return [encode(item, places) for item in value]
    if isinstance(value, float):
        return {"float": value.hex()}
    return value


def _plain(pair: Any) -> Any:
    """Return an attribute as text is read: an expression that is a number is that number."""
    if isinstance(pair, tuple) and pair and isinstance(pair[-1], Const):
        return (*pair[:-1], pair[-1].value)
    return pair


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "expr" in value:
        return expression(value["expr"])
    if "float" in value:
        try:
            return float.fromhex(value["float"])
        except (ValueError, TypeError, OverflowError):
            raise PlanError(f"{value['float']!r} is not a hexadecimal number") from None
    title = value.get("is")
    kind = _CLASSES.get(title) if isinstance(title, str) else None
    if kind is None:
        raise PlanError(f"'{title}' is not part of a Plan")
    known = {entry.name for entry in fields(kind)}
    if "place" in value and "place" not in known:  # what format 1 calls the source of a statement
        value = {"source" if name == "place" else name: item for name, item in value.items()}
    unknown = set(value) - known - {"is"}
    if unknown:
        raise PlanError(f"{value['is']} has no field '{min(unknown)}'")
    try:
        made = {name: decode(item) for name, item in value.items() if name != "is"}
        if kind is Compute and isinstance(made.get("attributes"), tuple):
            made["attributes"] = tuple(map(_plain, made["attributes"]))
        return kind(**made)
    except TypeError as error:
        raise PlanError(f"{value['is']}: {error}") from error


FORMS.update(to_json=to_json, from_json=from_json, digest=digest)
