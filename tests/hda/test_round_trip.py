"""Random valid machines survive writing and reading; broken files give one error and never a traceback."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st

from megatile.core.errors import MegatileError
from megatile.hda import HDA, ScaleView, machine_names
from megatile.hda.document import parse_document
from megatile.hda.load import find

counts = st.integers(1, 6)
SIZES = st.builds(
    "{} {}".format, st.integers(1, 999), st.sampled_from(["B", "kB", "KiB", "MiB", "GB", "GiB"])
)
TIMES = st.builds("{} {}".format, st.integers(0, 999), st.sampled_from(["ps", "ns", "us", "cycles"]))
RATES = st.builds("{} {}".format, st.integers(1, 999), st.sampled_from(["GB/s", "Gb/s", "B/cycle", "TB/s"]))
WORK = st.builds("{} {}".format, st.integers(1, 999), st.sampled_from(["TFLOP/s", "MAC/cycle", "OP/cycle"]))
SHARES = st.one_of(st.builds("{} %".format, st.integers(1, 100)), st.sampled_from([0.5, 1]))
DTYPES = st.sampled_from(["any", "f32", "f16", "bf16", "f8", "i8"])
KINDS = ["ring", "line", "mesh", "torus", "switch", "full_mesh", "tree", "fat_tree", "rails", "edges"]


def some(draw: Any, **keys: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Each of these keys, or not."""
    return {key: draw(strategy) for key, strategy in keys.items() if draw(st.booleans())}


@st.composite
def wirings(draw: Any, size: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(KINDS))
    keys: dict[str, Any] = {"topology": kind}
    if kind in ("mesh", "torus") and draw(st.booleans()):
        low = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        keys |= {"dims": [low, size // low], "wrap": draw(st.lists(st.booleans(), min_size=2, max_size=2))}
    if kind in ("fat_tree", "rails"):
        keys |= {"arity": draw(st.lists(counts, min_size=1, max_size=3))}
        keys |= some(draw, oversubscription=st.lists(st.sampled_from([1, 1.5, 2.0]), min_size=1, max_size=1))
    if kind == "tree":
        keys |= some(draw, arity=st.lists(counts, min_size=1, max_size=1))
    if kind == "rails":
        keys["rails"] = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    if kind == "edges":
        keys["edges"] = [[draw(st.integers(0, i - 1)), i, draw(counts)] for i in range(1, size)] or None
        if size < 2:
            keys = {"topology": "switch"}
    return keys


@st.composite
def machines(draw: Any) -> dict[str, Any]:
    """A valid description."""
    units = [1, *draw(st.lists(counts, min_size=1, max_size=4))]
    levels = [{"name": f"level{i}", "num_units": n} for i, n in enumerate(units)]
    cut = draw(st.integers(1, len(levels)))
    any_level = st.sampled_from([level["name"] for level in levels])
    names = ["thread", "block", "device", "lump", "node"]
    targets = sorted(draw(st.lists(st.integers(0, len(units) - 1), min_size=1, max_size=5)))
    data: dict[str, Any] = {
        "name": draw(st.sampled_from(["m", "größer", "a: b", "'q'", "yes"])),
        "hw_spec": {"pe": levels[:cut], "pe_groups": levels[cut:]},
        "hw_abstr": [
            {"name": name, "target": f"level{t}"}
            | some(draw, max_resident=counts, infer_lambda=st.just("lambda _t, _b: max(1, _b // 4)"))
            for name, t in zip(names, targets, strict=False)
        ],
        "clocks": {levels[-1]["name"]: "1.5 GHz"} | {draw(any_level): "800 MHz"},
    }
    data["memory"] = [
        {"name": f"m{i}", "level": draw(any_level), "size": draw(SIZES), "bandwidth": draw(RATES)}
        | {"latency": draw(TIMES)}
        | some(draw, shared=st.booleans(), cache=st.booleans(), slices=counts, page=SIZES, efficiency=SHARES)
        for i in range(draw(st.integers(0, 3)))
    ]
    data["networks"] = []
    for i in range(draw(st.integers(0, 3))):
        owner = draw(st.integers(1, len(units) - 1))
        inner = draw(st.integers(0, owner - 1))
        size = math.prod(units[inner + 1 : owner + 1])
        data["networks"].append(
            {"name": f"n{i}", "level": f"level{owner}", "connects": f"level{inner}", "bandwidth": draw(RATES)}
            | {"latency": draw(TIMES)}
            | draw(wirings(size))
            | some(draw, duplex=st.sampled_from(["full", "half"]), virtual_channels=counts, granule=SIZES)
            | some(draw, hop_overhead=TIMES, efficiency=SHARES, gateway=st.integers(0, size - 1))
            | some(draw, in_network_reduction=st.just(["sum", "max"]), note=st.just("why"))
        )
    data["engines"] = [
        {"name": f"e{i}", "kind": draw(st.sampled_from(["tensor", "vector", "scalar", "dma"]))}
        | {
            "level": draw(any_level),
            "throughput": draw(st.one_of(WORK, st.dictionaries(DTYPES, WORK, min_size=1))),
        }
        | some(draw, count=counts, bandwidth=RATES, startup=TIMES, channels=counts, chunk=SIZES)
        | some(draw, tile=st.lists(counts, min_size=1, max_size=3), source=st.just({"count": "paper"}))
        for i in range(draw(st.integers(0, 3)))
    ]
    top = levels[-1]["name"]
    control = some(draw, launch=st.just([{"level": top, "overhead": "1 us"}]))
    control |= some(draw, host_link=st.just({"bandwidth": "1 GB/s", "latency": "1 us", "kind": "wire"}))
    data |= {"control": control} if control else {}
    data |= some(draw, channels=st.just([{"name": "q", "level": top, "credit": "16 B"}]))
    if draw(st.booleans()):
        data["parameters"] = {"many": units[-1], "fast": "2 GHz"}
        data["hw_spec"][("pe_groups" if cut < len(levels) else "pe")][-1]["num_units"] = "${many}"
        data["clocks"][top] = "${fast}"
    return data


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(machines())
def test_random_machines_round_trip(data: dict[str, Any]) -> None:
    hda = HDA.from_dict(data)
    from_dict = HDA.from_dict(hda.to_dict())
    assert from_dict == hda
    assert from_dict.to_dict() == hda.to_dict()
    assert hash(from_dict) == hash(hda)
    assert from_dict.fingerprint() == hda.fingerprint()
    read = HDA.from_document(parse_document(hda.to_yaml()))
    assert read == hda
    for part in ("levels", "scales", "memories", "networks", "engines", "control", "channels"):
        assert getattr(read, part) == getattr(hda, part), part


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(machines(), st.data())
def test_random_machines_answer(data: dict[str, Any], draw: st.DataObject) -> None:
    hda = HDA.from_dict(data)
    for network in hda.networks:
        size = network.topology.size
        a, b = draw.draw(st.integers(0, size - 1)), draw.draw(st.integers(0, size - 1))
        assert len(network.topology.hops(a, b)) == network.topology.hop_count(a, b)
        assert network.bisection() >= 0
        assert list(hda.neighbors((network.connects, a))) is not None
    one = hda.instantiate([ScaleView(hda.scales[-1].name, instance_num=1, is_flatten=True)])
    assert one.seat(one.names[0], 0).wave == 0


@pytest.mark.parametrize("name", machine_names())
def test_machines_can_be_sent_to_another_process(name: str) -> None:
    hda = HDA.from_yaml(find(name))  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(hda)) == hda  # noqa: S301  (our own)


@pytest.mark.parametrize("name", machine_names())
def test_written_files_read_the_same(name: str, tmp_path: Path) -> None:
    hda = HDA.from_yaml(find(name))  # type: ignore[arg-type]
    file = tmp_path / "written.yaml"
    assert hda.to_yaml(file) == file.read_text(encoding="utf-8")
    assert HDA.from_yaml(file) == hda


# mutations

TEXTS = {name: find(name).read_text(encoding="utf-8") for name in machine_names()}  # type: ignore[union-attr]
STRANGE = [
    "",
    "[]",
    "{}",
    "null",
    "true",
    "-1",
    "1e999",
    ".nan",
    "2024-01-01",
    "'x'",
    "[[[]]]",
    "{a: {b: c}}",
]
STRANGE += [
    "'${1 // 0}'",
    "'${gpus'",
    "99999999999999999999",
    "!!binary aGk=",
    "&a [*a]",
    "1:30",
    "0x10",
    "~",
]
lines_at = st.integers(0, 10**6)
MUTATIONS = {
    "delete": lambda draw, rows: rows.pop(draw(lines_at) % len(rows)),
    "duplicate": lambda draw, rows: rows.insert(draw(lines_at) % len(rows), rows[draw(lines_at) % len(rows)]),
    "swap": lambda draw, rows: swap(rows, draw(lines_at) % len(rows), draw(lines_at) % len(rows)),
    "scalar": lambda draw, rows: replace_scalar(draw, rows),
    "noise": lambda draw, rows: insert_noise(draw, rows),
    "truncate": lambda draw, rows: truncate(draw, rows),
}


def swap(rows: list[str], i: int, j: int) -> None:
    rows[i], rows[j] = rows[j], rows[i]


def replace_scalar(draw: Any, rows: list[str]) -> None:
    """Another value after one of the colons of a line."""
    i = draw(lines_at) % len(rows)
    parts = rows[i].split(": ")
    if len(parts) > 1:
        k = 1 + draw(lines_at) % (len(parts) - 1)
        ends = [p for p in (parts[k].find(c) for c in ",}]") if p >= 0]
        parts[k] = draw(st.sampled_from(STRANGE)) + (parts[k][min(ends) :] if ends else "")
        rows[i] = ": ".join(parts)


def insert_noise(draw: Any, rows: list[str]) -> None:
    i = draw(lines_at) % len(rows)
    at = draw(lines_at) % (len(rows[i]) + 1)
    rows[i] = rows[i][:at] + draw(st.text(max_size=4)) + rows[i][at:]


def truncate(draw: Any, rows: list[str]) -> None:
    del rows[1 + draw(lines_at) % len(rows) :]
    rows[-1] = rows[-1][: draw(lines_at) % (len(rows[-1]) + 1)]


@pytest.mark.parametrize("name", sorted(TEXTS))
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_broken_files_give_an_error_or_a_machine(name: str, data: st.DataObject) -> None:
    rows = TEXTS[name].split("\n")
    for kind in data.draw(st.lists(st.sampled_from(sorted(MUTATIONS)), min_size=1, max_size=3)):
        MUTATIONS[kind](data.draw, rows)
        rows = rows or [""]
    try:
        hda = HDA.from_document(parse_document("\n".join(rows), "broken.yaml"))
    except MegatileError:
        return
    assert HDA.from_dict(hda.to_dict()) == hda


@settings(max_examples=60)
@given(st.binary(max_size=200), st.integers(0, 10**6))
def test_random_bytes_in_a_file(noise: bytes, at: int) -> None:
    raw = TEXTS["dgx-h100"].encode()
    at %= len(raw)
    text = (raw[:at] + noise + raw[at:]).decode("utf-8", errors="replace")
    try:
        HDA.from_document(parse_document(text, "broken.yaml"))
    except MegatileError:
        return


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["hw_spec", "pe", "name", "networks", "x"]), inner)
        ),
        max_leaves=12,
    )
)
def test_any_value_anywhere(value: Any) -> None:
    base = yaml.safe_load(TEXTS["dgx-h100"])
    for key in ("hw_spec", "hw_abstr", "memory", "networks", "engines", "control", "parameters", "clocks"):
        try:
            HDA.from_dict({**base, key: value})
        except MegatileError:
            continue
