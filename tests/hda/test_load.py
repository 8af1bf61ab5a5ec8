"""extends, parameters, overrides, and the words for what the schema finds."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.hda.shared import write
from tests.hda.small import SMALL, refused, small

from megatile.core.errors import MachineError
from megatile.hda import HDA, machine, problems
from megatile.hda.document import parse_document

# extends


def test_extends_a_shipped_machine_by_name(tmp_path: Path) -> None:
    hda = HDA.from_yaml(write(tmp_path, "a.yaml", "extends: dgx-h100\nname: mine\nparameters: {gpus: 2}\n"))
    assert (hda.name, hda.count("gpu")) == ("mine", 2)
    assert hda.memories == machine("dgx-h100").memories


def test_extends_a_file_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", SMALL)
    over = {"extends": "base.yaml", "networks": [{"name": "mesh", "bandwidth": "1 GB/s"}]}
    hda = HDA.from_yaml(write(tmp_path, "variant.yaml", over))
    mesh = hda.network("mesh")
    assert (mesh.bandwidth, mesh.latency_ps, mesh.topology.kind) == (1e9, 2000, "mesh")


def test_named_lists_merge_add_and_remove(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", SMALL)
    over = {
        "extends": "base.yaml",
        "memory": [
            {"name": "ram", "remove": True},
            {"name": "sram", "level": "core", "size": "1 KiB", "bandwidth": "1 GB/s", "latency": "1 ns"},
        ],
        "clocks": {"lane": "2 GHz"},
    }
    hda = HDA.from_yaml(write(tmp_path, "variant.yaml", over))
    assert [m.name for m in hda.memories] == ["sram"]
    assert (hda.level("lane").clock_hz, hda.level("core").clock_hz) == (2e9, 1e9)


def test_extends_in_a_chain(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", SMALL)
    write(tmp_path, "b.yaml", {"extends": "a.yaml", "name": "b", "description": "kept"})
    hda = HDA.from_yaml(write(tmp_path, "c.yaml", {"extends": "b.yaml", "name": "c"}))
    assert (hda.name, hda.spec.description) == ("c", "kept")


def test_circular_extends_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", "extends: m.yaml\n")
    with pytest.raises(MachineError, match="is circular or nested more than 8 deep"):
        HDA.from_yaml(write(tmp_path, "m.yaml", "name: m\nextends: b.yaml\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nextends: gone\n", "m.yaml:2: extends: there is no machine 'gone' to extend"),
        ("name: x\nextends: gone.yaml\n", "there is no machine 'gone.yaml' to extend"),
        ("name: x\nextends: [a]\n", r"m.yaml:2: extends: extends needs the name or path"),
        ("name: x\nextends: ../../etc\n", "there is no machine"),
        (
            "extends: dgx-h100\nmemory:\n  - {name: a, level: gpu}\n  - {name: a, level: sm}\n",
            "m.yaml:4: memory.a: 'a' appears twice",
        ),
        (
            "extends: dgx-h100\nmemory:\n  - {name: hbn, remove: true}\n",
            "m.yaml:3: memory.hbn: there is no 'hbn' to remove .*did you mean 'hbm'",
        ),
    ],
)
def test_extends_refusals(tmp_path: Path, text: str, message: str) -> None:
    import re

    assert re.search(message, str(refused(text, tmp_path)))


def test_extends_stays_in_the_folder_unless_trusted(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", SMALL)
    folder = tmp_path / "mine"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.yaml").symlink_to(tmp_path / "a.yaml")
    (folder / "sub" / "base.yaml").write_text((tmp_path / "a.yaml").read_text())
    for name in ("../a.yaml", str(tmp_path / "a.yaml"), "link.yaml", str(folder / "sub" / "base.yaml")):
        file = write(folder, "m.yaml", {"extends": name, "name": "m"})
        with pytest.raises(
            MachineError, match=r"m.yaml:1: extends: cannot extend .* not in the folder.*--trust"
        ):
            HDA.from_yaml(file)
        assert len(problems(file)) == 1
        assert machine(file, trust=True).name == HDA.from_yaml(file, trust=True).name == "m"
        assert problems(file, trust=True) == []
    assert HDA.from_yaml(write(folder, "m.yaml", {"extends": "sub/base.yaml", "name": "m"})).name == "m"
    write(folder / "sub", "base.yaml", {"extends": "../m2.yaml", "name": "b"})
    with pytest.raises(MachineError, match=r"base.yaml:1: extends: cannot extend '../m2.yaml'"):
        machine(folder / "m.yaml")


def test_an_error_in_the_base_names_the_base(tmp_path: Path) -> None:
    base = write(tmp_path, "base.yaml", small(memory__0__size="1 parsec"))
    with pytest.raises(MachineError, match="unit 'parsec'") as caught:
        HDA.from_yaml(write(tmp_path, "v.yaml", "extends: base.yaml\n"))
    assert caught.value.place.file == str(base)  # type: ignore[union-attr]


# parameters and overrides


def test_parameters_are_computed(tmp_path: Path) -> None:
    data = small(hw_spec__pe_groups__0__num_units="${2 * n}", memory__0__size="${n + 1} MiB")
    data["parameters"] = {"n": 3, "rate": "5 GB/s"}
    data["networks"][0]["bandwidth"] = "${rate}"
    file = write(tmp_path, "a.yaml", data)
    hda = HDA.from_yaml(file)
    assert (hda.count("block", within="device"), hda.memory("ram").size) == (6, 4 * 2**20)
    assert hda.network("mesh").bandwidth == 5e9
    assert hda.parameters == {"n": 3, "rate": "5 GB/s"}
    changed = HDA.from_yaml(file, n=4, rate="1 GB/s")
    assert changed.count("block", within="device") == 8
    assert changed.network("mesh").bandwidth == 1e9


def test_a_dotted_path_sets_one_value() -> None:
    hda = machine("dgx-h100", **{"networks.nvlink.bandwidth": "900 GB/s", "clocks.gpu": "1 GHz"})
    assert hda.network("nvlink").bandwidth == 900e9
    assert hda.level("gpu").clock_hz == 1e9
    assert HDA.from_dict(SMALL, **{"memory.ram.efficiency": "50 %"}).memory("ram").efficiency == 0.5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"node": 4}, r"machine 'h100-cluster' has no parameter 'node' \(try: did you mean 'nodes'"),
        ({"networks.nvlnk.bandwidth": "1 GB/s"}, r"there is no 'nvlnk' in .*did you mean 'nvlink'"),
        ({"networks.nvlink.bandwith": "1 GB/s"}, r"unknown key 'bandwith' \(try: did you mean 'bandwidth'"),
        ({"networks.nvlink.bandwidth": "1 ns"}, "a rate is needed"),
        ({"hbm.bandwidth": "1 GB/s"}, r"did you mean 'memory.hbm.bandwidth'"),
        ({"nvlink.bandwidth": "1 GB/s"}, r"did you mean 'networks.nvlink.bandwidth'"),
        ({"networks.nvlink.bandwidth.x": 1}, "there is no 'networks.nvlink.bandwidth.x' to set"),
        ({"networks.nvlink.topology": "2x"}, "'networks.nvlink.topology' has no figure to multiply by 2"),
        ({"networks.nvlink.hop_overhead": "2x"}, "has no figure to multiply"),
        ({"networks.nvlink.bandwidth": "0x"}, "has no figure to multiply by 0"),
        ({"nodes": [1]}, "parameter 'nodes' must be a number or a text"),
        ({"nodes": "many"}, "must be a whole number, got 'many'"),
        ({"nodes": 0}, "a count must be at least 1"),
    ],
)
def test_overrides_that_do_not_fit(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        machine("h100-cluster", **overrides)


def test_a_factor_multiplies_the_given_value() -> None:
    base, twice = machine("dgx-h100"), machine("dgx-h100", **{"networks.nvlink.bandwidth": "2x"})
    assert twice.network("nvlink").bandwidth == 2 * base.network("nvlink").bandwidth
    half = machine("dgx-h100", **{"engines.tensor_core.throughput": "0.5x"})
    rates = [next(e for e in m.engines if e.name == "tensor_core").throughput for m in (base, half)]
    assert rates[1] == {kind: rate / 2 for kind, rate in rates[0].items()}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${nn}", "hw_spec.pe_groups.chip.num_units: 'nn' in 'nn' is unknown .*did you mean 'n'"),
        ("${n // 0}", "cannot be computed"),
        ("a ${${n}} b", "computes what is computed again"),
        ("${n / 2}", "must be a whole number, got 1.5"),
        ("${open(1)}", "is refused"),
        ("${9 ** 9 ** 9}", "too large"),
    ],
)
def test_bad_expressions(value: str, message: str) -> None:
    data = {**small(hw_spec__pe_groups__0__num_units=value), "parameters": {"n": 3}}
    with pytest.raises(MachineError, match=message):
        HDA.from_dict(data)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [([1], "names with values"), ({"a": [1]}, "parameter 'a' must be"), ({"a": "${b}"}, "'a' is computed")],
)
def test_bad_parameters(parameters: Any, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        HDA.from_dict({**SMALL, "parameters": parameters})


# the words of the schema

YAML = yaml.safe_dump(SMALL, sort_keys=False)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("hw_abstr:", "hw_abstrr:", "(try: did you mean 'hw_abstr'?)"),
        ("num_units: 6", "num_unit: 6", "did you mean 'num_units'?"),
        ("num_units: 6", "num_units: six", "hw_spec.pe_groups.chip.num_units: must be a whole number"),
        ("num_units: 6", "num_units: -1", "a count must be at least 1, got -1"),
        ("num_units: 6", "num_units: 1.5", "must be a whole number, got 1.5"),
        ("num_units: 6", "num_units: true", "must be a whole number, got True"),
        ("num_units: 6", f"num_units: {10**16}", "is too large"),
        ("size: 1 GiB", "sise: 1 GiB", "did you mean 'size'?"),
        (
            "size: 1 GiB",
            "size: 1 GIB",
            "memory.ram.size: unit 'GIB' in '1 GIB' is unknown (try: did you mean 'GiB'",
        ),
        ("size: 1 GiB", "size: [1]", "[1] is not a quantity"),
        ("topology: mesh", "topology: mseh", "'mseh' is not known here (try: did you mean 'mesh'?)"),
        ("topology: mesh", "bandwith: 3 GB/s", "'bandwith'"),
        ("kind: vector", "kind: vektor", "did you mean 'vector'?"),
        ("level: core\n  throughput", "level: core\n  thruput", "did you mean 'throughput'?"),
        ("name: small", "name: 3", "name: must be a name, got 3"),
        ("name: small", "name: ' '", "name: must be a name"),
        (
            "name: ram",
            "name: ram\n  shared: maybe",
            "memory.ram.shared: must be true or false, got 'maybe'",
        ),
        ("target: core", "target: core\n  infer_lambda: 'lambda: 1'", "takes 0 parameters, not 2"),
        ("target: core", "target: core\n  infer_lambda: 'lambda a, b: a.x'", "is refused"),
        ("  launch:", "  lunch:", "control.lunch: unknown key 'lunch' (try: did you mean 'launch'?)"),
        ("overhead: 1 us", "overhead: 1", "'1' has no unit"),
    ],
)
def test_schema_findings_have_place_and_advice(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    assert right in YAML
    text = YAML.replace(right, wrong, 1)
    error = refused(text, tmp_path)
    assert message in str(error)
    line = next(
        i for i, (a, b) in enumerate(zip(YAML.split("\n"), text.split("\n"), strict=False), 1) if a != b
    )
    assert error.place is not None
    assert error.place.line is not None
    assert abs(error.place.line - line) <= 3


@pytest.mark.parametrize("data", [None, 3, "text", [1]])
def test_other_things_are_not_descriptions(data: Any) -> None:
    with pytest.raises(MachineError, match="keys and values"):
        HDA.from_dict(data)


def test_machine_names_are_put_right() -> None:
    with pytest.raises(MachineError, match=r"no machine 'dgx-h10' \(try: did you mean 'dgx-h100'"):
        machine("dgx-h10")


def test_machine_takes_paths_and_machines(tmp_path: Path) -> None:
    hda = machine(write(tmp_path, "a.yaml", SMALL))
    assert machine(hda) is hda
    assert machine(hda, **{"memory.ram.size": "2 GiB"}).memory("ram").size == 2**31
    assert machine(str(tmp_path / "a.yaml")) == hda


def test_an_empty_list_in_a_variant_takes_everything_away(tmp_path):
    file = tmp_path / "alone.yaml"
    file.write_text("extends: dgx-h100\nnetworks: []\n")
    assert HDA.from_yaml(file).networks == ()


def test_a_missing_file_suggests_names() -> None:
    with pytest.raises(MachineError, match="megatile machines"):
        machine("dgx-h100.yaml")


def test_a_variant_of_the_cpu_is_a_variant_of_this_computer(tmp_path: Path) -> None:
    variant = HDA.from_yaml(
        write(tmp_path, "mine.yaml", "extends: cpu\nname: mine\nparameters: {l1: 1 KiB}\n")
    )
    probed = machine("cpu")
    assert variant.parameters == {**probed.parameters, "l1": "1 KiB"}
    assert variant.levels == probed.levels


def test_a_misspelt_required_key_is_one_problem(tmp_path: Path) -> None:
    data = small(memory__0__bandwith="1 GB/s", memory__0__bandwidth=None)
    file = write(tmp_path, "m.yaml", data)
    (problem,) = problems(file)
    assert "unknown key 'bandwith' (try: did you mean 'bandwidth'?)" in str(problem)
    assert "more" not in refused(file.read_text(), tmp_path).message
    both = small(memory__0__bandwith="1 GB/s", memory__0__bandwidth=None, memory__0__latency=None)
    messages = [p.message for p in problems(write(tmp_path, "both.yaml", both))]
    assert sorted(messages) == ["key 'latency' is missing", "unknown key 'bandwith'"]


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"networks__0__dims": [4, 2]}, "write dims: [3, 2], or others whose product is 6"),
        ({"networks__0__gateway": 99}, "write the number of a core, from 0 to 5"),
        ({"memory__0__size": "-1 MiB"}, "write 1 MiB"),
        ({"hw_abstr__0__aliases": ["block"]}, "remove 'block' from the names of one of them"),
    ],
)
def test_advice_says_what_to_write(changes: dict[str, Any], advice: str, tmp_path: Path) -> None:
    assert refused(yaml.safe_dump(small(**changes)), tmp_path).advice == advice


def test_a_refused_description_does_not_stay_in_memory() -> None:
    text = yaml.safe_dump({**SMALL, "networks": [{**SMALL["networks"][0], "latency": "soon"}]})
    document = parse_document(text, "m.yaml")
    there = weakref.ref(document)
    with pytest.raises(MachineError, match="'soon' is not a number"):
        HDA.from_document(document, {})
    del document
    gc.collect()
    assert there() is None
