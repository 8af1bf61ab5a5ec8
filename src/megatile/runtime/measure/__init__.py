"""``mt.measure``: the machine file of this computer, with measured figures.

found = mt.measure("host.yaml")
mt.simulate(prog, machine="host.yaml")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatile.core.cached import write_cached
from megatile.core.errors import MegatileError
from megatile.core.files import is_folder, write_text
from megatile.core.progress import Listener, shown, tell
from megatile.core.tables import text_table
from megatile.hda import HDA
from megatile.hda.probe import measured_file
from megatile.runtime.measure.figures import Figure, described, machine_of
from megatile.runtime.measure.probes import PROBES, PRODUCT, Host
from megatile.timing.database import Database, Measurement

__all__ = ["Figure", "Measured", "measure"]


@dataclass(frozen=True)
class Measured:
    """What was measured, and the machine that follows from it."""

    name: str
    figures: tuple[Figure, ...]

    @property
    def yaml(self) -> str:
        """The machine file."""
        return described(self.name, self.figures)

    @property
    def machine(self) -> HDA:
        return machine_of(self.yaml)

    def rows(self) -> list[Measurement]:
        """Return the products measured, as the performance database keeps times."""
        m, n, k = PRODUCT
        found = [(f.name.rpartition("."), f) for f in self.figures]
        return [
            Measurement(
                self.name,
                "gemm",
                dtype,
                "megatile",
                {"m": m, "n": n, "k": k},
                2e6 * m * n * k / f.value,
                f.how,
            )
            for (part, _, dtype), f in found
            if part == "engines.fma.throughput" and dtype != "f8"
        ]

    def json(self) -> dict[str, Any]:
        return {"machine": self.name, "figures": [f.json() for f in self.figures]}

    def __str__(self) -> str:
        rows = [(f.name, f.shown, f"± {100 * f.error:.1f} %", f.how) for f in self.figures]
        return text_table(("figure", "value", "error", "measured with"), rows)


def measure(
    file: str | Path | None = None,
    *,
    quick: bool = False,
    progress: bool | Listener = True,
    database: Database | str | Path | None = None,
    keep: bool = False,
) -> Measured:
    """Measure this computer; about 10 seconds, half of that with ``quick``.

    ``file`` gets the machine file (``extends: cpu``), ``database`` the times of products. With ``keep`` (as
    ``megatile measure`` has it) ``k.compare`` takes it for ``machine="cpu"`` from now on. Work of one thread
    is measured in its own processor time, so that others who use the computer disturb little; the bandwidths
    of all cores, thread wake-ups and what concerns processes are true only on a quiet computer.
    """
    path = None if file is None else Path(file)
    if path is not None and path.suffix not in (".yaml", ".yml"):
        raise MegatileError(f"'{file}' is not a name of a machine file", advice="end it in .yaml")
    if path is not None and not is_folder(path.parent):  # said before the work, not after it
        raise MegatileError(f"there is no folder '{path.parent}' to write to", advice="make it first")
    host, found = Host(quick), list[Figure]()
    with shown("measuring", progress) as advance:
        for turn in range(host.rounds):  # others who use the computer come and go
            host.turn = turn
            found.clear()
            for number, (name, probe) in enumerate(PROBES):
                tell(name, turn * len(PROBES) + number, host.rounds * len(PROBES))
                found += probe(host)
                advance()
    result = Measured("cpu-measured" if path is None else path.stem, tuple(found))
    if path is not None:
        write_text(path, result.yaml)
    if keep:
        write_cached(measured_file(), result.yaml.encode())
    if database is not None:
        _keep(database, result.rows())
    return result


def _keep(database: Database | str | Path, rows: Sequence[Measurement]) -> None:
    if isinstance(database, Database):
        database.add(rows)
    else:
        with Database(database) as opened:
            opened.add(rows)
