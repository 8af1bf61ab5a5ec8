"""Pictures of machines: complete, legible, repeatable, written whole or not at all."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.shared import MACHINES, grid_machine, texts

from megatile.core.errors import MegatileError
from megatile.core.quantities import format_bytes
from megatile.hda import machine
from megatile.report.machine_picture import draw_machine

# What a reader must find in the picture, word for word.
EXPECTED = {
    "dgx-h100": [
        "nvlink",
        "450 GB/s · 468 ns",
        "6 gpcs (cluster), 22 sms each",
        "80 GB · 3.35 TB/s",
        "989.4 TFLOP/s f16",
        "tensor_core",
    ],
    "hgx-a100": ["54 tpcs, 2 sms each", "164 KiB", "peak 2.495 PFLOP/s f16"],
    "mi300x-8": ["xgmi", "full mesh", "38 cus", "infinity_cache", "192 GB · 5.3 TB/s · 390 ns"],
    "h100-cluster": [
        "8 rails",
        "50 GB/s · 500 ns",
        "4 nodes, 8 gpus each",
        "tier 2: 1 switch",
        "bisection 776 GB/s",
    ],
    "h100-cluster nodes=12500": [
        "12 500 nodes, 8 gpus each",
        "one of 100 000",
        "tier 2: 98 switches",
        "8 rails of 391 switches",
    ],
    "cerebras-wse2": ["850 000 cores = 850 × 1000", "849,999", "48 KiB", "host link 150 GB/s"],
    "ahbm": ["16 cubes = 4 × 4", "48 GiB in 8 slices · 1.2 TB/s · 110 ns", "pe_gemm"],
    "ahbm torus": ["torus 2 × 2", "4 sips = 2 × 2"],
    "cpu": ["l3_cache", "this computer"],
    "seed": ["8 × arch_level_2 (gpu), 8 × arch_level_1 each", "arch_level_2:7", "scale tbc", "one of 1152"],
    "zoo": ["zoo $x^2$ & <b>", "tree of arity 2", "fat tree", "torus 5 × 4 × 3", "edges", "also", "leaf 9"],
    "least": ["the whole machine"],
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_drawn_with_its_names_and_counts(name: str, tmp_path: Path) -> None:
    hda = MACHINES[name]()
    svg = draw_machine(hda, tmp_path / "machine.svg")
    found = texts(svg)
    assert found[0] == hda.name
    written = "\n".join(found)
    missing = [text for text in EXPECTED.get(name, ()) if text not in written]
    assert not missing, written
    assert [p.name for p in tmp_path.iterdir()] == ["machine.svg"]


@pytest.mark.parametrize("name", MACHINES)
def test_png_has_the_size_of_a_page(name: str, tmp_path: Path) -> None:
    data = draw_machine(MACHINES[name](), tmp_path / "machine.PNG").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert data.rstrip().endswith(b"IEND\xaeB`\x82")
    assert 900 < int.from_bytes(data[16:20], "big") <= 2400


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_machine_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    import matplotlib

    hda = machine("h100-cluster")
    first = draw_machine(hda, tmp_path / f"a{suffix}").read_bytes()
    with matplotlib.rc_context(
        {"font.size": 30, "svg.fonttype": "path", "savefig.dpi": 20, "lines.linewidth": 9}
    ):
        assert draw_machine(hda, tmp_path / f"b{suffix}").read_bytes() == first
        assert matplotlib.rcParams["font.size"] == 30
    assert not re.search(rb"20\d\d-\d\d-\d\d", first)


def test_switches_reach_into_units(tmp_path: Path) -> None:
    hda = grid_machine(topology="fat_tree", connects="core", arity=[12, 3])
    found = texts(draw_machine(hda, tmp_path / "a.svg"))
    assert "tier 1: 3 switches" in found
    assert "4 dies, 9 cores each" in found


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (80 * 10**9, "80 GB"),
        (640 * 10**9, "640 GB"),
        (228 * 1024, "228 KiB"),
        (50 * 2**20, "50 MiB"),
        (512, "512 B"),
    ],
)
def test_sizes_keep_the_prefix_they_are_round_in(count: int, expected: str) -> None:
    assert format_bytes(count) == expected


@pytest.mark.parametrize("name", ["machine.gif", "machine", "machine.svg.txt"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(MegatileError, match=r"end the name with \.png or \.svg or \.pdf"):
        draw_machine(machine("cpu"), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MegatileError, match="there is no folder"):
        draw_machine(machine("cpu"), tmp_path / "nowhere" / "a.svg")
    (tmp_path / "file").write_text("")
    with pytest.raises(MegatileError, match="there is no folder"):
        draw_machine(machine("cpu"), tmp_path / "file" / "a.svg")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(MegatileError, match="it is a folder"):
        draw_machine(machine("cpu"), tmp_path / "folder.svg")


def test_a_failure_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.svg"
    target.write_text("old")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(MegatileError, match=r"Permission denied.*choose a writable folder"):
        draw_machine(machine("cpu"), target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_importing_report_does_not_load_matplotlib() -> None:
    code = "import sys, megatile.report.machine_picture; sys.exit('matplotlib' in sys.modules)"
    source = Path(__file__).parents[2] / "src"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(source)})
