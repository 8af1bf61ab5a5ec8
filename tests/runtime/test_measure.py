"""The machine file of this computer: measured once, quickly, and looked at from all sides."""

import json

import pytest
import yaml

import megatile as mt
from megatile.core.cached import read_cached
from megatile.core.errors import MegatileError
from megatile.hda.probe import probed
from megatile.runtime.measure.figures import Figure, Sample, described, machine_of, sampled

pytestmark = pytest.mark.xdist_group("measure")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measure")
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("megatile.runtime.measure.measured_file", lambda: folder / "kept")
        result = mt.measure(
            folder / "host.yaml",
            quick=True,
            database=folder / "perf.sqlite",
            progress=lambda what, done, of: told.append((what, done, of)),
            keep=True,
        )
    return result, folder, told


def test_the_machine_file_is_read_and_has_the_measured_figures(found):
    result, folder, _ = found
    hda = mt.machine(folder / "host.yaml")
    assert hda.name == "host"
    values = {f.name: f.value for f in result.figures}
    assert hda.memory("ram").bandwidth == pytest.approx(values["memory.ram.bandwidth"], rel=1e-3)
    engines = {e.name: e for e in hda.engines}
    assert engines["fma"].rate("f32") == pytest.approx(values["engines.fma.throughput.f32"], rel=1e-3)
    stations = {s.name: s.overhead_ps for s in hda.control.launch}
    assert stations["call"] == pytest.approx(values["control.launch.call.overhead"] * 1e12, rel=1e-3)
    assert result.machine.memory("ram").bandwidth == hda.memory("ram").bandwidth
    assert mt.machine(folder / "host.yaml", cores=1).count("block") == 1
    assert (read_cached(folder / "kept") or b"").decode() == (folder / "host.yaml").read_text()


def test_figures_are_those_of_a_computer(found):
    """Bounds that any processor of the last fifteen years keeps, on a computer that others use too."""
    values = {f.name: f.value for f in found[0].figures}
    layers = ("l1_cache", "scratch", "l3_cache", "ram")
    latencies = [values[f"memory.{layer}.latency"] for layer in layers]
    assert 2e-10 < latencies[0] < latencies[1] < latencies[3] < 1e-5
    assert 1e8 < values["memory.ram.unit_bandwidth"] <= values["memory.ram.bandwidth"] < 1e13
    assert 1e8 < values["engines.special_functions.throughput.any"] < values["engines.simd.throughput.any"]
    assert values["engines.fma.throughput.f32"] < 1.5 * values["peak f32"]
    assert 1e-7 < values["control.launch.call.overhead"] < 1e-3
    assert all(0 <= f.error < float("inf") and f.runs > 0 for f in found[0].figures)


def test_what_is_written_says_where_it_comes_from(found):
    result, folder, told = found
    text = (folder / "host.yaml").read_text()
    described_parts = yaml.safe_load(text)
    assert described_parts["extends"] == "cpu"
    for part in ("memory", "engines"):
        for member in described_parts[part]:
            assert all(text.startswith("measured") for text in member["source"].values())
    assert [f["origin"] for f in json.loads(json.dumps(result.json()))["figures"]] == ["measured"] * len(
        result.figures
    )
    assert "barrier" in str(result)
    assert told[0] == ("calls", 0, len(told))
    rows = list(mt.Database(folder / "perf.sqlite").rows(machine="host", operation="gemm"))
    assert {row.dtype for row in rows} >= {"f32", "bf16"}
    assert all(row.implementation == "megatile" and row.time_us > 0 for row in rows)


def test_predictions_on_it_are_from_measurements(found):
    import megatile.language as T

    @T.program
    def double(X: T.Tensor((4096,), "f32")):
        with T.Kernel(block=4, threads=128) as bx:
            x = T.alloc((1024,), "f32")
            T.copy(x, X[bx * 1024])
            for i in T.Parallel(1024):
                x[i] = x[i] * 2.0
            T.copy(X[bx * 1024], x)

    origins = mt.simulate(double, machine=found[1] / "host.yaml").origins
    assert {origin.kind for origin in origins.values()} == {"measured"}


def test_samples():
    sample = sampled([3.0, 1.0, 2.0])
    assert sample == Sample(1.0, 1.0, 3)
    half = Sample(4.0, 0.25, 5).less(2.0, 2)
    assert (half.seconds, half.error) == (1.0, 0.5)
    assert Sample(1.0, 0.0, 1).less(2.0).seconds > 0


def test_figures_become_parts_of_the_machine():
    figures = [
        Figure("memory.ram.bandwidth", 12.5e9, "B/s", 0.01, 3, "by hand"),
        Figure("engines.fma.throughput.f32", 2e11, "FLOP/s", 0.0, 3, "by hand"),
        Figure("engines.fma.throughput.f64", 1e11, "FLOP/s", 0.0, 3, "by hand"),
        Figure("control.launch.call.overhead", 2e-6, "s", 0.0, 3, "by hand"),
        Figure("memory.l3_cache.size", 1 << 24, "B", 0.0, 3, "by hand"),
        Figure("barrier", 1e-6, "s", 0.0, 3, "by hand"),
    ]
    text = described("mine", figures)
    assert "# barrier: 1 µs, measured: by hand" in text
    given = text[text.index("parameters:") :]
    assert sorted(probed("cpu"), key=lambda name: given.index(f"{name}:")) == list(probed("cpu"))
    hda = machine_of(text)
    assert hda.memory("ram").bandwidth == 12.5e9
    assert hda.memory("l3_cache").size == 1 << 24
    fma = next(e for e in hda.engines if e.name == "fma")
    assert (fma.rate("f32"), fma.rate("f64")) == (2e11, 1e11)
    assert {s.name: s.overhead_ps for s in hda.control.launch}["call"] == 2_000_000


def test_figures_are_shown_in_their_unit():
    shown = [
        Figure("x", value, unit, 0.0, 1, "").shown
        for value, unit in [(1 << 20, "B"), (2e9, "B/s"), (1e-6, "s")]
    ]
    assert shown == ["1 MiB", "2 GB/s", "1 µs"]


def test_a_file_that_is_not_a_machine_file_is_refused(tmp_path):
    with pytest.raises(MegatileError, match=r"end it in \.yaml"):
        mt.measure(tmp_path / "host.json")
    with pytest.raises(MegatileError, match="no folder"):
        mt.measure(tmp_path / "nowhere" / "host.yaml")
    assert not list(tmp_path.iterdir())
