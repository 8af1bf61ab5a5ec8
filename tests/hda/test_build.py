"""Contradictions between the parts of a description: each is refused with its place."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.hda.small import SMALL, refused, small

from megatile.core.errors import MachineError
from megatile.hda import HDA

NET = {"name": "n", "level": "chip", "bandwidth": "1 GB/s", "latency": "1 ns"}
RAM = SMALL["memory"][0]


def net(topology: str, **keys: Any) -> dict[str, Any]:
    return small(networks=[{**NET, "topology": topology, **keys}])


def memory(**keys: Any) -> dict[str, Any]:
    return small(memory=[{**RAM, **keys}])


def engine(**keys: Any) -> dict[str, Any]:
    return small(engines=[{**SMALL["engines"][0], **keys}])


def scales(*views: dict[str, Any]) -> dict[str, Any]:
    return small(hw_abstr=list(views))


REFUSED = [
    (small(hw_spec={"pe": []}), "hw_spec.pe: a machine needs at least one level"),
    (small(hw_spec__pe__1__name="lane"), "hw_spec.pe.lane.name: level 'lane' appears twice"),
    (small(hw_spec__pe_groups__0__name="lane"), "level 'lane' appears twice"),
    (
        small(hw_spec__pe_groups__0__num_units=10**9, hw_spec__pe_groups__1__num_units=10**9),
        "hw_spec: 4000000000000000000 of the smallest units are too many",
    ),
    (small(clocks={"cor": "1 GHz"}), "clocks.cor: there is no level 'cor' .*did you mean 'core'"),
    (small(clocks={"board": "0 GHz"}), "a clock must be above 0"),
    (small(clocks={}), "memory.ram.latency: '100 cycles' needs a clock .*add clocks: {chip: 1.8 GHz}"),
    (
        small(clocks={"board": "1e-300 Hz"}),
        "clocks.board: '1e-300 Hz' is less than 1 Hz, the least for a frequency",
    ),
    # scales
    (scales(), "hw_abstr: hw_abstr needs at least one scale"),
    (scales({"name": "block"}), "hw_abstr.block: scale 'block' needs a target level .*add target"),
    (scales({"name": "block", "target": "cor"}), "hw_abstr.block.target: there is no level 'cor'"),
    (
        scales({"name": "block", "target": "core"}, {"name": "thread", "target": "lane"}),
        "hw_abstr.thread: scale 'thread' is smaller than 'block' but is listed after it",
    ),
    (scales({"name": "b", "target": "core"}, {"name": "b", "target": "chip"}), "scale 'b' appears twice"),
    (
        scales({"name": "b", "target": "core"}, {"name": "c", "target": "chip", "aliases": ["b"]}),
        "hw_abstr.c.aliases: 'b' means both 'b' and 'c'",
    ),
    (
        scales({"name": "block", "target": "core", "limits": {"nod": 3}}),
        "hw_abstr.block.limits.nod: there is no scale 'nod' .*did you mean 'node'",
    ),
    # memories
    (small(memory=[RAM, RAM]), "memory.ram.name: memory 'ram' appears twice"),
    (memory(level="chp"), "memory.ram.level: there is no level 'chp' .*did you mean 'chip'"),
    (memory(size="1 b"), "memory.ram.size: '1 b' is less than a byte"),
    (memory(bandwidth="0 GB/s"), "memory.ram.bandwidth: '0 GB/s' must be more than zero"),
    (
        memory(efficiency="120 %"),
        "memory.ram.efficiency: an efficiency must be above 0 and at most 1, got 120 %",
    ),
    (memory(efficiency=0), "an efficiency must be above 0"),
    (memory(reserved="1 GiB"), "memory.ram.reserved: '1 GiB' reserved leaves nothing of 1 GiB"),
    (memory(unit_size="2 GiB"), "memory.ram.unit_size: one unit cannot have 2 GiB of 1 GiB"),
    (memory(cache=True, aliases=["l2"]), "'l2' names memory to allocate in, but 'ram' is a cache .*l2_cache"),
    (
        small(memory=[RAM, {**RAM, "name": "b", "aliases": ["ram"]}]),
        "memory.b.aliases: 'ram' means both 'ram' and 'b'",
    ),
    # networks
    (small(networks=[{**NET, "topology": "ring"}] * 2), "network 'n' appears twice"),
    (net("ring", level="lane"), "networks.n.level: 'lane' is the smallest level"),
    (net("ring", connects="board"), "networks.n.connects: 'board' does not lie inside 'chip'"),
    (net("ring", connects="chip"), "'chip' does not lie inside 'chip' .*like 'core'"),
    (net("ring", gateway=6), "networks.n.gateway: gateway 6 is not among the 6 units of 'n'"),
    (net("switch", dims=[6]), "networks.n.dims: a switch has no dims .*line, mesh, ring, torus"),
    (net("tree", wrap=True), "a tree has no wrap"),
    (net("ring", arity=[2]), "a ring has no arity .*fat_tree, rails, tree"),
    (net("ring", oversubscription=[2]), "a ring has no oversubscription"),
    (net("fat_tree", rails=2), "a fat_tree has no rails"),
    (net("mesh", edges=[[0, 1]]), "a mesh has no edges"),
    (net("ring", dims=[2, 3]), "networks.n.dims: a ring has one dimension, not 2 .*use mesh or torus"),
    (net("mesh", dims=[2, 2]), "networks.n.dims: dims 2×2 make 4 units, but there are 6"),
    (net("mesh", dims=[2, 3], wrap=[True] * 3), "networks.n.wrap: wrap has 3 entries for 2 dimensions"),
    (net("fat_tree", oversubscription=[2]), "networks.n.oversubscription: oversubscription has more tiers"),
    (net("fat_tree", arity=[2], oversubscription=[0.5]), "oversubscription.0: must be at least 1, got 0.5"),
    (net("rails"), "networks.n: rails needs the number of rails .*add rails: 8"),
    (net("rails", rails=4), "networks.n.rails: 6 units do not divide into 4 rails"),
    (net("tree", arity=[2, 2]), "networks.n.arity: a tree has one arity .*fat_tree"),
    (net("edges"), "networks.n: topology edges needs a list of edges"),
    (net("edges", edges=[[0, 1]]), "networks.n.edges: 1 edges cannot join 6 units"),
    (net("edges", edges=[[0, 1]] * 5), r"networks.n.edges.1: edge \[0, 1\] appears twice .*two cables"),
    (net("edges", edges=[[0, 0]] * 5), r"networks.n.edges.0: edge \[0, 0\] joins a unit to itself"),
    (net("edges", edges=[[0, 9]] * 5), r"edge \[0, 9\] leaves the range 0…5"),
    (
        net("edges", edges=[[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]]),
        "networks.n.edges: no edge reaches unit 5 from unit 0",
    ),
    (net("edges", edges=[[0]]), r"an edge is \[a, b\] or \[a, b, cables\], not \[0\]"),
    (net("ring", duplex="quarter"), "'quarter' is not known here"),
    (net("ring", in_network_reduction=["summ"]), "did you mean 'sum'"),
    (net("ring", granule="0 B"), "networks.n.granule: '0 B' is less than a byte"),
    # engines, control, channels
    (small(engines=SMALL["engines"] * 2), "engine 'alu' appears twice"),
    (engine(level="x"), "engines.alu.level: there is no level 'x'"),
    (
        small(engines=[{"name": "e", "kind": "tensor", "level": "core"}]),
        "a tensor engine needs its throughput",
    ),
    (engine(throughput={"f17": "1 TFLOP/s"}), "engines.alu.throughput.f17: 'f17' is not known here"),
    (engine(throughput="0 TFLOP/s"), "must be more than zero"),
    (engine(throughput="5 GB/s"), "a throughput is needed"),
    (
        small(
            control={"launch": [{"level": "core", "overhead": "1 ns"}, {"level": "chip", "overhead": "1 ns"}]}
        ),
        "control.launch.1: 'chip' is larger than the station before it .*from the host inwards",
    ),
    (
        small(control={"launch": [{"level": "x", "overhead": "1 ns"}]}),
        "control.launch.0.level: there is no level",
    ),
    (small(control={"host_link": {"latency": "1 ns"}}), "control.host_link: key 'bandwidth' is missing"),
    (small(channels=[{"name": "q", "level": "x"}]), "channels.q.level: there is no level 'x'"),
    (small(channels=[{"name": "q", "level": "core"}] * 2), "channel 'q' appears twice"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[m[:50] for _, m in REFUSED])
def test_contradictions_are_refused_in_data_and_in_files(
    data: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(MachineError) as caught:
        HDA.from_dict(data)
    assert re.search(message, str(caught.value))
    in_file = refused(yaml.safe_dump(data, sort_keys=False), tmp_path)
    assert in_file.message == caught.value.message
    assert in_file.place is not None
    assert in_file.place.line is not None, "the error of a file has a line"


def test_the_line_is_that_of_the_key(tmp_path: Path) -> None:
    text = yaml.safe_dump(memory(level="chp"), sort_keys=False)
    line = next(i for i, row in enumerate(text.split("\n"), 1) if "level: chp" in row)
    assert refused(text, tmp_path).place.line == line  # type: ignore[union-attr]


def test_clocks_reach_down_to_the_next_clock() -> None:
    hda = HDA.from_dict(small(clocks={"board": "1 GHz", "core": "2 GHz"}))
    assert [level.clock_hz for level in hda.levels] == [2e9, 2e9, 1e9, 1e9]
    assert HDA.from_dict(small()).memory("ram").latency_ps == 100_000
    assert HDA.from_dict(small()).network("mesh").bandwidth == 16e9


def test_a_link_takes_at_least_a_picosecond() -> None:
    assert HDA.from_dict(net("ring", latency=0)).network("n").latency_ps == 1


def test_defaults_of_a_network() -> None:
    n = HDA.from_dict(net("mesh")).network("n")
    assert (n.connects, n.topology.dims, n.duplex, n.virtual_channels) == ("core", (3, 2), True, 1)
    assert (n.granule, n.gateway, n.in_network_reduction, n.efficiency) == (None, None, (), 1.0)


def test_wrap_per_dimension() -> None:
    n = HDA.from_dict(net("mesh", dims=[6, 1], wrap=[True, False])).network("n")
    assert n.topology.wrap == (True, False)  # type: ignore[attr-defined]


def test_a_scale_may_not_take_the_name_of_another_level():
    description = {
        "hw_spec": {
            "pe": [{"name": "core", "num_units": 1}],
            "pe_groups": [{"name": "chip", "num_units": 4}],
        },
        "hw_abstr": [{"name": "chip", "target": "core"}],
    }
    with pytest.raises(MachineError, match="scale 'chip' has the name of a level but belongs to 'core'"):
        HDA.from_dict(description)


def test_the_smallest_level_holds_nothing_smaller():
    description = {"hw_spec": {"pe": [{"name": "core", "num_units": 4}]}, "hw_abstr": []}
    with pytest.raises(MachineError, match="'core' is the smallest level: num_units must be 1, not 4"):
        HDA.from_dict(description)


def test_10_to_the_15_units_are_as_many_as_there_may_be() -> None:
    def counts(chips: int) -> Any:
        return small(hw_spec__pe_groups__0__num_units=250_000, hw_spec__pe_groups__1__num_units=chips)

    assert HDA.from_dict(counts(10**9)).levels[0].total == 10**15
    with pytest.raises(MachineError, match="1000000001000000 of the smallest units are too many"):
        HDA.from_dict(counts(10**9 + 1))
