"""What this computer is: the values of the ``cpu`` machine, read from the operating system.

Nothing is measured here, so the same computer always gives the same machine. What cannot be read keeps the
default of ``machines/cpu.yaml``.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from megatile.core.cached import cache_directory, cache_key, cached
from megatile.core.version import __version__

CPU_FOLDER = Path("/sys/devices/system/cpu")
VECTOR_BITS = {"avx512f": 512, "avx2": 256, "avx": 256, "sve": 256, "asimd": 128, "neon": 128, "sse2": 128}


def probed(name: str) -> dict[str, int | str]:
    """Return overrides for a shipped machine: those of this computer for ``cpu``, none for others."""
    return dict(_host()) if name == "cpu" else {}


def measured_file() -> Path:
    """Return where ``megatile measure`` keeps what it has found, for ``k.compare``: a file for every
    computer."""
    parts = [f"{key}={value}" for key, value in _host() if key not in ("clock", "memory")]
    return cache_directory() / f"measured-{cache_key(__version__, platform.node(), *parts)}"


@cached()
def _host() -> tuple[tuple[str, int | str], ...]:
    found: dict[str, int | str] = {"cores": _cores()}
    found.update(_linux() if CPU_FOLDER.exists() else _mac() if platform.system() == "Darwin" else {})
    return tuple(found.items())


def _cores() -> int:
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:
        return os.cpu_count() or 1


@cached()
def host_flags() -> frozenset[str]:
    """Return what the processor can do, as the operating system names it."""
    if platform.system() == "Darwin":
        return frozenset({"asimd"} if platform.machine() == "arm64" else {"avx2"})
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", _read("/proc/cpuinfo"), re.M)
    return frozenset(flags.group(1).split() if flags else ())


def vector_bits() -> int:
    """Return bits of the widest vectors; 128 where nothing is known."""
    return max((bits for flag, bits in VECTOR_BITS.items() if flag in host_flags()), default=128)


def _linux() -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    info = _read("/proc/cpuinfo")
    found.update(_vector(host_flags()))
    megahertz = re.search(r"^cpu MHz\s*:\s*(\d+\.?\d*)", info, re.M)
    fastest = _read(CPU_FOLDER / "cpu0/cpufreq/cpuinfo_max_freq").strip()
    if fastest.isdecimal() and int(fastest):
        found["clock"] = f"{int(fastest) / 1e6:.4g} GHz"
    elif megahertz and float(megahertz.group(1)):
        found["clock"] = f"{float(megahertz.group(1)) / 1000:.4g} GHz"
    for index in sorted((CPU_FOLDER / "cpu0/cache").glob("index*")):
        level, kind = _read(index / "level").strip(), _read(index / "type").strip()
        size = re.fullmatch(r"([1-9]\d*)K", _read(index / "size").strip())
        if size and kind in ("Data", "Unified") and level in ("1", "2", "3"):
            found[f"l{level}"] = f"{size.group(1)} KiB"
    memory = re.search(r"MemTotal:\s*(\d+) kB", _read("/proc/meminfo"))
    if memory:
        found["memory"] = f"{memory.group(1)} KiB"
    return found


def _mac() -> dict[str, int | str]:
    names = {"l1": "hw.l1dcachesize", "l2": "hw.l2cachesize", "memory": "hw.memsize"}
    found: dict[str, int | str] = {}
    for key, name in names.items():
        value = _sysctl(name)
        if value:
            found[key] = f"{value} B"
    hertz = _sysctl("hw.cpufrequency_max")
    if hertz:
        found["clock"] = f"{int(hertz) / 1e9:.4g} GHz"
    found.update(_vector(host_flags()))
    return found


def _vector(flags: frozenset[str]) -> dict[str, int | str]:
    widest = max((bits for flag, bits in VECTOR_BITS.items() if flag in flags), default=0)
    return {"vector_bits": widest} if widest else {}


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    value = done.stdout.strip()
    return value if value.isdigit() and int(value) > 0 else ""
