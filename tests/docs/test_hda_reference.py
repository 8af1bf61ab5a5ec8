"""The reference page of machine descriptions names every key, topology, scale and unit that there is."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from megatile.core.quantities import UNITS
from megatile.hda import schema
from megatile.hda.model import SAME_SCALE

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "hda.md").read_text(encoding="utf-8")
SECTIONS = {
    "The file": schema.MachineSpec,
    "`hw_spec`: levels": schema.ComputeUnit,
    "`hw_abstr`: scales": schema.ScaleView,
    "`memory`": schema.MemorySpec,
    "`networks`": schema.NetworkSpec,
    "`engines`": schema.EngineSpec,
    "Transports": schema.TransportSpec,
    "Protocols of a transport": schema.ProtocolFiguresSpec,
}
EVERYWHERE = {"source", "note"}


def keys(model: type) -> set[str]:
    if dataclasses.is_dataclass(model):
        return {field.name for field in dataclasses.fields(model)}
    return set(model.model_fields)  # type: ignore[attr-defined]


def section(title: str) -> str:
    return re.split(r"^##+ ", PAGE.split(f" {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


@pytest.mark.parametrize("title", SECTIONS)
def test_the_table_has_exactly_the_keys(title: str) -> None:
    rows = [
        row.split("|")[1]
        for row in section(title).splitlines()
        if row.startswith("| `") or "| **`" in row[:6]
    ]
    shown = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    given = {"extends", "parameters"} if title == "The file" else set()
    assert shown - EVERYWHERE == (keys(SECTIONS[title]) | given) - EVERYWHERE


@pytest.mark.parametrize(
    "model", [schema.ControlSpec, schema.HostLinkSpec, schema.LaunchSpec, schema.ChannelSpec]
)
def test_control_and_channels(model: type) -> None:
    text = section("`control` and `channels`")
    assert all(name in text for name in keys(model) - EVERYWHERE)


def test_topologies_scales_and_units() -> None:
    assert all(f"`{name}`" in section("Topologies") for name in get_args(schema.TopologyName))
    assert all(f"`{name}`" in section("Scales and aliases") for group in SAME_SCALE for name in group)
    shown = set(re.findall(r"[\wµ%/]+", section("Quantities")))
    assert {"kB", "KiB", "b", "ps", "cycles", "GHz", "MAC/s", "B/cycle", "%"} <= shown & {*UNITS, "%"}
