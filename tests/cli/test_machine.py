"""megatile machines; megatile machine show, check, diff."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatile.hda import HDA, machine, machine_names
from toy_machines import chips

BAD = """\
name: bad
hw_spec:
  pe:
    - {name: core, num_units: 1}
  pe_groups:
    - {name: chip, num_unit: 4}
hw_abstr:
  - {name: core, target: core}
networks:
  - {name: n, level: chip, topology: tors, bandwidth: 1 GBs, latency: 1 ns}
"""


def test_machines_lists_every_shipped_machine(megatile):
    done = megatile("machines")
    assert done.code == 0
    assert [name for name in machine_names() if name not in done.out] == []
    assert "989.4 TFLOP/s f16" in done.out


def test_machines_stand_under_their_kind(megatile):
    lines = [line.split("  ")[0] or line.split()[0] for line in megatile("machines").out.splitlines() if line]
    kinds = [
        lines.index(kind) for kind in ("GPU node", "GPU rack", "GPU cluster", "TPU", "wafer", "near-memory")
    ]
    assert kinds == sorted(kinds)
    assert kinds[0] < lines.index("b200-8") < kinds[1] < lines.index("gb200-nvl72") < kinds[2]


def test_compare_is_one_table(megatile):
    out = megatile("machine", "compare", "dgx-h100", "v100-8", "cerebras-wse2").out
    rows = {line[:26].strip(): line[26:].split() for line in out.splitlines()}
    assert rows["GEMM f16"] == ["989.4", "TFLOP/s", "125.3", "TFLOP/s", "7.48", "PFLOP/s"]
    assert rows["GEMM bf16"][2] == "–"
    assert rows["FLOP/B of device memory"] == ["295", "139", "0.367"]
    assert rows["between nodes"] == [] if "between nodes" in rows else True


def test_compare_as_json_has_plain_numbers(megatile):
    found = json.loads(megatile("machine", "compare", "dgx-h100", "h100-cluster", "--json").out)
    figures = {(f["section"], f["name"]): f for f in found["figures"]}
    assert found["machines"] == ["dgx-h100", "h100-cluster"]
    link = figures["networks", "between nodes, link"]
    assert (link["unit"], link["values"]) == ("B/s", {"dgx-h100": None, "h100-cluster": 50e9})
    assert figures["scales", "devices"]["values"] == {"dgx-h100": 8, "h100-cluster": 32}


def test_compare_takes_files_and_names_what_is_missing(megatile, tmp_path: Path):
    file = tmp_path / "copy.yaml"
    file.write_text("extends: hgx-a100\nname: mine\nclocks: {gpu: 2 GHz}\n")
    assert "442.4 TFLOP/s" in megatile("machine", "compare", "hgx-a100", file).out
    done = megatile("machine", "compare", "hgx-a100", "hgx-a10")
    assert done.code == 1
    assert "did you mean" in done.err


def test_machines_as_json(megatile):
    rows = {row["name"]: row for row in json.loads(megatile("machines", "--json").out)["rows"]}
    assert rows["dgx-h100"]["devices"] == 8
    assert rows["dgx-h100"]["blocks_per_device"] == 132
    assert rows["h100-cluster"]["parameters"]["nodes"] == 4


def test_show_prints_levels_memories_networks_and_peaks(megatile):
    out = megatile("machine", "show", "h100-cluster", "--set", "nodes=3").out
    for text in (
        "3 × node",
        "8 × gpu  (24 in all)",
        "hbm = l2, global: 80 GB",
        "8 rails of 3",
        "23.75 PFLOP/s f16",
    ):
        assert text in out


def test_show_json_has_resolved_numbers(megatile):
    found = json.loads(megatile("machine", "show", "dgx-h100", "--json").out)
    nvlink = next(n for n in found["networks"] if n["name"] == "nvlink")
    assert nvlink["bandwidth"] == 450e9
    assert nvlink["latency_ps"] == 468_000
    assert {level["name"]: level["total"] for level in found["levels"]}["sm"] == 1056


def test_show_yaml_loads_again(megatile, tmp_path: Path):
    file = tmp_path / "copy.yaml"
    file.write_text(megatile("machine", "show", "h100-cluster", "--set", "nodes=2", "--yaml").out)
    assert HDA.from_yaml(file) == machine("h100-cluster", nodes=2)


def test_set_reaches_single_values(megatile):
    out = megatile("machine", "show", "dgx-h100", "--set", "networks.nvlink.bandwidth=900 GB/s").out
    assert "switch of 8 gpus, 900 GB/s" in out


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_pictures(megatile, tmp_path: Path, suffix: str):
    file = tmp_path / f"machine.{suffix}"
    done = megatile("machine", "show", "ahbm", f"--{suffix}", file)
    assert done.code == 0
    assert f"picture written to {file}" in done.out.replace("\n", "")
    assert file.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dgx-h10"], "there is no machine 'dgx-h10' (try: did you mean 'dgx-h100'?)"),
        (["dgx-h100", "--set", "gpu=4"], "no parameter 'gpu' (try: did you mean 'gpus'?)"),
        (["dgx-h100", "--set", "gpus"], "'gpus' is not NAME=VALUE (try: write"),
        (["dgx-h100", "--set", "gpus=0"], "a count must be at least 1, got 0"),
        (["dgx-h100", "--set", "gpus=many"], "must be a whole number, got 'many'"),
        (["dgx-h100", "--set", "networks.nvlnk.bandwidth=1 GB/s"], "did you mean 'nvlink'?"),
        (["dgx-h100", "--set", "networks.nvlink.bandwith=1 GB/s"], "did you mean 'bandwidth'?"),
        (["missing.yaml"], "missing.yaml: cannot be read: No such file or directory"),
        (["dgx-h100", "--svg", "a.png"], "'a.png' does not end in .svg (try: write --svg NAME.svg)"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(megatile, arguments: list[str], message: str):
    done = megatile("machine", "show", *arguments)
    assert done.code == 1
    assert done.out == ""
    assert message in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


def test_check_names_every_problem_with_its_line(megatile, tmp_path: Path):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    done = megatile("machine", "check", file)
    assert done.code == 1
    assert done.out.splitlines() == [
        f"{file}:6: hw_spec.pe_groups.chip.num_unit: unknown key 'num_unit' (try: did you mean 'num_units'?)",
        f"{file}:10: networks.n.topology: 'tors' is not known here (try: did you mean 'torus'?)",
        f"{file}:10: networks.n.bandwidth: unit 'GBs' in '1 GBs' is unknown (try: did you mean 'GB/s'?)",
    ]
    (row,) = json.loads(megatile("machine", "check", file, "--json").out)["rows"]
    problems = row["problems"]
    assert [p["line"] for p in problems] == [6, 10, 10]


def test_check_of_a_good_file(megatile, tmp_path: Path):
    file = tmp_path / "good.yaml"
    machine("dgx-h100").to_yaml(file)
    done = megatile("machine", "check", file)
    assert (done.code, done.out) == (
        0,
        f"{file}: valid, HDA(dgx-h100: 8 gpu × 6 gpc × 11 tpc × 2 sm × 4 subcore × 32 lane)\n",
    )


def test_diff_shows_values_and_not_sources(megatile):
    out = megatile("machine", "diff", "dgx-h100", "hgx-a100").out
    assert "networks.nvlink.bandwidth" in out
    assert "450 GB/s" in out
    assert "300 GB/s" in out
    assert "source" not in out
    assert "source" in megatile("machine", "diff", "dgx-h100", "hgx-a100", "--sources").out


def test_diff_of_equal_machines(megatile):
    assert megatile("machine", "diff", "ahbm", "ahbm").out == "ahbm and ahbm are the same machine\n"
    assert json.loads(megatile("machine", "diff", "ahbm", "ahbm", "--json").out)["rows"] == []


def test_completion_offers_machines(megatile):
    from megatile.cli.machine import complete_machine

    assert complete_machine("dg") == ["dgx-h100"]


def test_check_notes_what_is_left_out(megatile, tmp_path):
    data = chips("full_mesh", 8).to_dict()
    data["engines"][-1]["channels"] = 4
    file = tmp_path / "mine.yaml"
    HDA.from_dict(data).to_yaml(file)
    done = megatile("machine", "check", file)
    assert done.code == 0
    assert "note: engines.ports: 4 channels serve 7 links" in done.err


def test_trust_lets_a_file_extend_files_elsewhere(megatile, tmp_path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "base.yaml").write_text("extends: cpu\nname: base\n")
    file = tmp_path / "a" / "m.yaml"
    file.write_text("extends: ../base.yaml\nname: m\n")
    plan = tmp_path / "p.txt"
    assert megatile("plan", "save", "all_reduce", plan, "-b", 64, "-m", "dgx-h100", "-a", "ring").code == 0
    for line in (
        ("machine", "show", file),
        ("machine", "check", file),
        ("machine", "diff", file, "cpu"),
        (
            "plan",
            "save",
            "broadcast",
            tmp_path / "q.txt",
            "-b",
            64,
            "-m",
            file,
            "--scale",
            "core",
            "-a",
            "direct",
        ),
    ):
        done = megatile(*line)
        assert (done.code, "--trust" in done.err + done.out) == (1, True)
        assert megatile(*line, "--trust").code == 0
    done = megatile("sweep", plan, "-o", "cores=2,4", "-m", file)
    assert (done.code, "--trust" in done.err) == (1, True)
    assert "../base.yaml" not in megatile("sweep", plan, "-o", "cores=2,4", "-m", file, "--trust").err
