"""``megatile check-kernel FILE.py``: run a file of TileLang kernels and say what became of each."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatile.compat.tilelang import kernel as kernels
from megatile.compat.tilelang import source, takeover
from megatile.compat.tilelang.bound import least_time
from megatile.compat.tilelang.time import predicted_ms
from megatile.core.errors import MegatileError
from megatile.hda import machine as find_machine


@dataclass
class Checked:
    """What became of a kernel: how often it ran, for how long on this computer, and what was found."""

    name: str
    programs: tuple[Any, ...]
    runs: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    least_us: float = 0.0
    predicted_us: float | None = None
    """On the machine, at the extents asked for; None where time depends on data."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "launches": [{"grid": list(p.launch.extents(p.launch.dispatch))} for p in self.programs],
            "runs": self.runs,
            "seconds_on_this_cpu": round(self.seconds, 4),
            "least_us_on_the_machine": round(self.least_us, 3),
            "predicted_us_on_the_machine": None if self.predicted_us is None else round(self.predicted_us, 3),
            "warnings": self.warnings,
        }


def check_file(
    path: Path, arguments: list[str], machine: str, at: Mapping[str, int] | None = None
) -> list[Checked]:
    """Run a file as a script: every kernel it calls is built for the machine, checked, run, and predicted
    there, ``at`` other extents by name than it ran with."""
    if not path.is_file():
        raise MegatileError(f"there is no file '{path}'", advice="give a Python file with TileLang kernels")
    hda = find_machine(machine)
    found: dict[Any, Checked] = {}
    before = sys.argv, os.environ.get("MEGATILE_MACHINE")
    sys.argv, os.environ["MEGATILE_MACHINE"] = [str(path), *arguments], machine
    takeover.install()
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        with _watched(found, hda, at or {}):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise MegatileError(f"'{path}' ends with {stop.code}", advice="see what it printed") from None
    except MegatileError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines()
        raise MegatileError(
            f"'{path}' fails: {type(error).__name__}: {said[0] if said else ''}",
            advice="run it with MEGATILE_AS_TILELANG=1 python FILE.py to see where",
        ) from None
    finally:
        sys.argv = before[0]
        sys.path.remove(str(path.parent.resolve()))
        if before[1] is None:
            del os.environ["MEGATILE_MACHINE"]
        else:
            os.environ["MEGATILE_MACHINE"] = before[1]
    if not found:
        raise MegatileError(
            f"'{path}' calls no kernel",
            advice="call one below if __name__ == '__main__': the file is run as a script",
        )
    return list(found.values())


def _predicted_us(programs: tuple[Any, ...], hda: Any) -> float | None:
    try:
        return predicted_ms(programs, hda) * 1e3
    except MegatileError:
        return None


@contextmanager
def _watched(found: dict[Any, Checked], hda: Any, at: Mapping[str, int]) -> Iterator[None]:
    """Note every kernel that is run."""
    execute: Callable[..., None] = kernels.execute

    def noted(built: source.Built, arrays: dict[str, Any]) -> None:
        start = time.perf_counter()
        execute(built, arrays)
        key = tuple(str(p) for p in built.programs)
        if key not in found:
            timed = built.again(at).programs if at and built.again is not None else built.programs
            least = sum(least_time(p, hda).seconds for p in timed) * 1e6
            texts = [w for p in built.programs for w in p.warnings]
            found[key] = Checked(
                built.programs[0].name, built.programs, 0, 0.0, texts, least, _predicted_us(timed, hda)
            )
        found[key].runs += 1
        found[key].seconds += time.perf_counter() - start

    kernels.execute = noted
    try:
        yield
    finally:
        kernels.execute = execute
