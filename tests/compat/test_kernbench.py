"""The KernBench form loads as the same machine as the shipped `ahbm`; its mistakes have a line."""

from pathlib import Path

import pytest
import yaml

from megatile.core.errors import MachineError
from megatile.hda import HDA, machine

FILE = Path(__file__).parents[1] / "data" / "topology.yaml"
TEXT = FILE.read_text(encoding="utf-8")


def test_the_file_is_the_shipped_machine() -> None:
    loaded, shipped = HDA.from_yaml(FILE), machine("ahbm")
    for part in ("levels", "scales", "memories", "networks", "engines", "control", "channels"):
        assert getattr(loaded, part) == getattr(shipped, part), part


def test_what_the_file_says() -> None:
    hda = HDA.from_yaml(FILE)
    assert [hda.count(s) for s in ("sip", "cube", "pe")] == [2, 32, 256]
    assert hda.count("pe", within="cube") == 8
    assert hda.network("cubes").topology.dims == (4, 4)
    assert hda.network("noc").topology.dims == (4, 2)
    assert hda.network("sips").hop_overhead_ps == 5000
    assert hda.memory("tcm").available == 12 * 2**20
    assert (hda.memory("hbm").slices, hda.memory("hbm").page) == (8, 4096)
    assert [(s.name, s.overhead_ps) for s in hda.control.launch] == [
        ("pcie_ep", 100_000),
        ("io_cpu", 50_000),
        ("m_cpu", 20_000),
        ("pe_cpu", 10_000),
        ("pe_scheduler", 2000),
    ]
    assert hda.throughput("pe", "f16") == pytest.approx(2 * 4096 * 1.2e9)
    assert hda.throughput("pe", "f8e4m3") == pytest.approx(2 * 8192 * 1.2e9)
    assert hda.engines_of("pe", "dma")[0].channels == 2
    assert (hda.channels[0].directions, hda.channels[0].credit) == (8, 16)


@pytest.mark.parametrize(
    ("shape", "wrap"),
    [("torus_2d", (True, True)), ("mesh_2d", (True, True)), ("mesh_2d_no_wrap", (False, False))],
)
def test_grids_of_sips(shape: str, wrap: tuple[bool, bool]) -> None:
    topology = machine("ahbm", sips=9, sip_topology=shape).network("sips").topology
    assert (topology.dims, topology.wrap) == ((3, 3), wrap)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("right", "wrong", "line", "message"),
    [
        ("count: 2", "count: 0", 5, "system.sips.count: a count must be at least 1, got 0"),
        ("count: 2", "cuont: 2", 5, "unknown key 'cuont' .*did you mean 'count'"),
        (
            "topology: ring_1d  ",
            "topology: ring_2d  ",
            6,
            "'ring_2d' is not known here .*did you mean 'ring_1d'",
        ),
        ("128 GB/s", "128 GBs", 7, "system.sips.link.bandwidth: unit 'GBs'.*did you mean 'GB/s'"),
        ("w: 4, h: 4", "w: 4", 11, "sip.cube_mesh: key 'h' is missing"),
        ("cube_mesh:", "cube_mes:", None, "cube_mes"),
        ("[NW, NE, SW, SE]", "[]", 16, "cube.pe_layout.corners"),
        ("48 GiB", "48 ns", 18, "cube.hbm.size: '48 ns' is a time, but a size is needed"),
        ("1.2 GHz", "fast", 23, "pe.clock: 'fast' is not a number with a unit"),
        ("kind: pe_cpu", "knd: pe_cpu", 26, "knd|'kind' is missing"),
        ("kind: pe_gemm", "kind: pe_gem", 29, "kind 'pe_gem' is unknown.*did you mean 'pe_gemm'"),
        ("overhead_ns: 50.0", "overhead_ns: soon", 14, "must be a number of nanoseconds, got 'soon'"),
        ("channels: 2", "channels: many", 28, "must be a whole number, got 'many'"),
        ("f16: 4096", "f17: 4096", 29, "'f17' is not known here"),
        ("macs_per_cycle", "macs", 29, "a pe_gemm has no attribute 'macs'"),
        ("reserved: 4 MiB", "reserved: 16 MiB", 24, "leaves nothing"),
    ],
)
def test_mistakes_have_a_line(tmp_path: Path, right: str, wrong: str, line: int | None, message: str) -> None:
    assert right in TEXT
    file = tmp_path / "topology.yaml"
    file.write_text(TEXT.replace(right, wrong, 1), encoding="utf-8")
    with pytest.raises(MachineError, match=message) as caught:
        HDA.from_yaml(file)
    place = caught.value.place
    assert place is not None
    assert place.file == str(file)
    if line is not None:
        assert place.line == line


def test_a_component_key_is_put_right(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TEXT.replace("kind: pe_cpu, attrs", "kind: pe_cpu, atrs"), encoding="utf-8")
    with pytest.raises(MachineError, match=r"unknown key 'atrs' \(try: did you mean 'attrs'"):
        HDA.from_yaml(file)


def test_sections_are_all_needed() -> None:
    with pytest.raises(MachineError, match="key 'system' is missing"):
        HDA.from_dict({"pe": {"clock": "1 GHz"}})


def test_components_go_by_their_kind_not_their_name() -> None:
    text = TEXT.replace("    switch: {", "    crossbar: {").replace("pe_mmu: {", "tables: {")
    text = text.replace("pe_dma: {", "mover: {")
    assert text.count("crossbar") == text.count("tables") == text.count("mover") == 1
    hda, same = HDA.from_dict(yaml.safe_load(text)), HDA.from_dict(yaml.safe_load(TEXT))
    assert hda.networks == same.networks
    assert hda.memories == same.memories


def test_directions_limit_what_can_be_installed(tmp_path: Path) -> None:
    """A PE of the file has 8 directions; with 3 the mesh of cubes has too many neighbours."""
    from megatile.collectives import (
        CollectiveError,
        build_install_plans,
        load_ccl_config,
        resolve_algorithm_config,
    )
    from megatile.language import tl
    from megatile.sim import InstallError, Session

    file = tmp_path / "topology.yaml"
    file.write_text(TEXT.replace("directions: 8", "directions: 3", 1), encoding="utf-8")
    few, config = HDA.from_yaml(file), resolve_algorithm_config(load_ccl_config(), "intercube_allreduce")
    assert build_install_plans(1, "mesh", config, HDA.from_yaml(FILE))
    with pytest.raises(CollectiveError, match=r"needs 4 directions \(.*\), 'ipcq' of machine .* has 3"):
        build_install_plans(1, "mesh", config, few)

    def pass_on(t_ptr, n, tl):  # type: ignore[no-untyped-def]
        tl.send(dir="E", src=tl.load(t_ptr, (n,)))
        tl.store(t_ptr, tl.recv(dir="W", shape=(n,)))

    for topology, fits in (("ring_1d", True), ("mesh_2d_no_wrap", False)):
        plan = tl.read_kernel(pass_on, [tl.Tensor("t", (8,)), 8], world_size=9, topology=topology)
        for begin in (Session.install, Session.submit):
            if fits:
                begin(Session(few), plan)
                continue
            with pytest.raises(InstallError, match=r"pe4 needs 4 queues for plan 'pass_on', 'ipcq' .* has 3"):
                begin(Session(few), plan)


def message_ps(hda: HDA, start: int, end: int) -> int:
    """Simulate a message of 8 bytes from one PE to another."""
    from megatile.core.expr import eq, table, unit
    from megatile.plan.build import PlanBuilder
    from megatile.sim import simulate

    b = PlanBuilder("message", scale="pe", units=2, placement=table([start, end], unit))
    x = b.tile("x", (8,), "u8", memory="tcm", role="inout")
    wire = b.channel("wire", source=unit * 0, slot_bytes=8, memory="tcm")
    with b.when(eq(unit, 0)):
        b.send(wire, x, to=unit * 0 + 1)
    with b.when(eq(unit, 1)):
        b.receive(wire, (8,), "u8", into=x)
    return simulate(b.finish(), machine=hda).time_ps


def test_messages_between_sips_pass_the_noc_and_the_cubes() -> None:
    """Latency of 12 ns a cube and 2 ns a PE, on both sides of the link between SIPs (300 ns)."""
    hda = machine("ahbm")
    assert hda.route(("pe", 0), ("pe", 128)).latency_ps == 300_000
    assert (
        hda.route(("pe", 8 * 5 + 6), ("pe", 128 + 8 * 15)).latency_ps
        == (3 * 2 + 2 * 12 + 300 + 6 * 12) * 1000
    )
    assert hda.route(("pe", 1), ("pe", 8)).networks == ("noc", "cubes")
    near = message_ps(hda, 0, 128)
    assert message_ps(hda, 8 * 5 + 6, 128 + 8 * 15) - near == (3 * 2 + 2 * 12 + 6 * 12) * 1000


def test_gateways_are_keys_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(
        TEXT.replace("h: 4,", "h: 4, gateway: 5,").replace("no_wrap, link", "no_wrap, gateway: 6, link")
    )
    hda = HDA.from_yaml(file)
    assert (hda.network("cubes").gateway, hda.network("noc").gateway) == (5, 6)
    assert hda.route(("pe", 8 * 5 + 6), ("pe", 128 + 8 * 5 + 6)).networks == ("sips",)
    assert message_ps(hda, 8 * 5 + 6, 128 + 8 * 5 + 6) == message_ps(machine("ahbm"), 0, 128)
    file.write_text(TEXT.replace("h: 4,", "h: 4, gateway: 16,"))
    with pytest.raises(MachineError, match="gateway 16 is not among the 16 units of 'cubes'") as caught:
        HDA.from_yaml(file)
    assert caught.value.place is not None
    assert caught.value.place.line == 11


def test_the_machine_tells_where_outer_links_end() -> None:
    from megatile.compat.ccl.spec import spec_of
    from megatile.report.machine_text import describe_network

    hda = machine("ahbm")
    assert "gateway cube 0" in describe_network(hda.network("cubes"))
    assert spec_of(hda)["sip"]["cube_mesh"]["gateway"] == spec_of(hda)["cube"]["noc"]["gateway"] == 0
