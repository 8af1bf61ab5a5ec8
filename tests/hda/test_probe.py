"""The `cpu` machine reads this computer: here a made-up one."""

from pathlib import Path

import pytest

from megatile.hda import machine, probe

INTEL = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f\ncpu MHz\t\t: 2100.000\n"


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /: write cpuinfo, meminfo and caches into it."""
    real = probe._read
    sys_cpu = tmp_path / "cpu"
    sys_cpu.mkdir()

    def read(path: str | Path) -> str:
        name = str(path)
        return real(tmp_path / Path(name).name if name.startswith("/proc/") else path)

    monkeypatch.setattr(probe, "_read", read)
    monkeypatch.setattr(probe, "CPU_FOLDER", sys_cpu)
    monkeypatch.setattr(probe, "_cores", lambda: 6)
    for known in (probe._host, probe.host_flags):
        known.cache_clear()
    yield tmp_path
    for known in (probe._host, probe.host_flags):
        known.cache_clear()


def cache(root: Path, number: int, level: str, kind: str, size: str) -> None:
    folder = root / "cpu/cpu0/cache" / f"index{number}"
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("type", kind), ("size", size)):
        (folder / name).write_text(f"{text}\n")


def test_everything_is_read(computer: Path) -> None:
    (computer / "cpuinfo").write_text(INTEL)
    (computer / "meminfo").write_text("MemTotal:       65536 kB\nMemFree: 1 kB\n")
    cache(computer, 0, "1", "Data", "48K")
    cache(computer, 1, "1", "Instruction", "64K")
    cache(computer, 2, "2", "Unified", "2048K")
    cache(computer, 3, "3", "Unified", "36864K")
    hda = machine("cpu")
    assert (hda.count("block"), hda.count("thread", within="block")) == (6, 16)
    assert hda.level("block").clock_hz == pytest.approx(2.1e9)
    sizes = {m.name: m.size for m in hda.memories}
    assert sizes["l1_cache"] == 48 * 1024
    assert sizes["scratch"] == 2 * 2**20
    assert sizes["l3_cache"] == 36 * 2**20
    assert sizes["ram"] == 64 * 2**20


def test_the_highest_clock_is_preferred(computer: Path) -> None:
    (computer / "cpuinfo").write_text(INTEL)
    folder = computer / "cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "cpuinfo_max_freq").write_text("3500000\n")
    assert machine("cpu").level("block").clock_hz == pytest.approx(3.5e9)


@pytest.mark.parametrize(
    "info",
    [
        "",
        "no colon at all",
        "processor\t: 0\nisa\t\t: rv64imafdc\n",
        "flags\t:\ncpu MHz\t: 0.000\n",
        "Features\t: asimd\ncpu MHz\t: ...\n",
    ],
)
def test_unset_values_keep_their_default(computer: Path, info: str) -> None:
    (computer / "cpuinfo").write_text(info)
    cache(computer, 0, "", "Data", "32K")
    cache(computer, 1, "12", "Data", "32K")
    cache(computer, 2, "2", "Data", "0K")
    hda = machine("cpu")
    assert hda.count("block") == 6
    assert hda.level("block").clock_hz == 3e9
    assert hda.memory("scratch").size == 2**20


@pytest.mark.parametrize(("flags", "lanes"), [("avx2 sse2", 8), ("sse2", 4), ("asimd", 4), ("avx512f", 16)])
def test_vector_width(computer: Path, flags: str, lanes: int) -> None:
    (computer / "cpuinfo").write_text(f"flags : {flags}\n")
    assert machine("cpu").count("thread", within="block") == lanes


def test_given_values_win(computer: Path) -> None:
    (computer / "cpuinfo").write_text(INTEL)
    assert machine("cpu", cores=3, clock="1 GHz").level("block").clock_hz == 1e9


def test_this_computer_loads() -> None:
    probe._host.cache_clear()
    assert machine("cpu").count("block") == probe._cores()


def test_other_machines_are_not_probed() -> None:
    assert probe.probed("dgx-h100") == {}
