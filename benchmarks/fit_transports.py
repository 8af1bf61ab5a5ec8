"""Fit ``transports`` of the machine files: ``python benchmarks/fit_transports.py [MACHINE…] [--write]``.

Constants are fitted to open rows only: ``data/kernels/nccl_*.csv.gz`` (NCCL on one node) and the tables of
``data/collectives.csv`` that `SETS` names. Each constant has a prior, mostly the figure by which its library
models itself; one that no row depends on keeps it. Prints the number of constants, the errors in the sample,
by operation and ranks, by band of sizes and, with ``--leave-one-out`` (minutes), of rows left out in turn.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.frozen import Frozen
from megatile.hda import HDA, machine
from megatile.hda.model import ProtocolFigures
from megatile.timing.collective_choice import rule_of
from megatile.timing.collective_rule import Rule
from megatile.timing.fit import Score
from megatile.timing.fit_transports import (
    Constant,
    Row,
    TransportFit,
    errors,
    fit_rows,
    predicted_us,
    protocol_text,
)

DATA = Path(__file__).parent / "data"
MACHINES = Path(__file__).parent.parent / "src" / "megatile" / "hda" / "machines"
MIB = 1 << 20
SMALLEST = 512
"""Rows of fewer bytes have warm-up spikes, and rings leave blocks empty."""
BANDS = (("small", 0, 64 << 10), ("middle", 64 << 10, 8 * MIB), ("large", 8 * MIB, 1 << 60))
NAMES = {"alltoall": "all_to_all"}


def us(value: float) -> int:
    return round(value * 1e6)


@dataclass(frozen=True)
class Table:
    """Rows that are predicted alike: the machine with ``parameters``, captured or not, NCCL's variables."""

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()
    graph: bool = False
    env: tuple[tuple[str, str], ...] = ()
    smallest: int = SMALLEST


@dataclass(frozen=True)
class Set:
    """What a machine file's constants are fitted to, and their priors."""

    library: str
    tables: tuple[Table, ...]
    priors: dict[str, ProtocolFigures]
    constants: tuple[Constant, ...]
    source: str
    estimates: dict[str, str]
    """Why the figures of protocols without rows are what they are."""


def _nvlink(copy_gbps: float, share: float) -> dict[str, ProtocolFigures]:
    """NCCL's own latencies as priors; ``copy_gbps``: its channels times what it counts for one of them."""
    copy = copy_gbps * 1e9
    return {
        "LL": ProtocolFigures(us(6.6), us(0.6), first_ps=us(0.3), next_ps=us(0.6), pass_bytes=4096),
        "LL128": ProtocolFigures(us(14), us(1.9), share=share, copy_rate=copy),
        "Simple": ProtocolFigures(
            us(8.4), us(3.4), share=share, copy_rate=copy, fill=0.35, fill_bytes=48 * MIB
        ),
        "peer_LL": ProtocolFigures(us(6.6), us(0.6), first_ps=us(0.3), pass_bytes=4096),
        "peer_Simple": ProtocolFigures(us(8.4), share=share, copy_rate=copy, fill=0.35, fill_bytes=8 * MIB),
    }


_RINGS = (
    *(Constant(field, ("LL",)) for field in ("start_ps", "step_ps", "first_ps", "next_ps")),
    Constant("start_ps", ("LL128",)),
    Constant("step_ps", ("LL128",)),
    Constant("start_ps", ("Simple",)),
    Constant("step_ps", ("Simple",)),
    Constant("share", ("Simple", "LL128"), 0.1),
    Constant("copy_rate", ("Simple", "LL128", "peer_Simple")),
    Constant("fill", ("Simple",)),
)
_PEERS = (
    Constant("start_ps", ("peer_LL",)),
    Constant("step_ps", ("peer_LL",)),
    Constant("first_ps", ("peer_LL",)),
    Constant("start_ps", ("peer_Simple",)),
    Constant("share", ("peer_Simple",), 0.15),
    Constant("fill", ("peer_Simple",)),
)
_SWITCH = (
    Constant("start_ps", ("NVLS",)),
    Constant("share", ("NVLS",), 0.2),
    Constant("fill", ("NVLS",)),
)
_FORCED = (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple"))
SETS = {
    "dgx-h100": Set(
        "nccl",
        (Table("nccl_h100"), Table("H100x8_dgxc")),
        {
            **_nvlink(24 * 36.7, 0.943),
            "NVLS": ProtocolFigures(us(25), share=0.7, fill=0.35, fill_bytes=64 * MIB),
        },
        (*_RINGS, *_PEERS, *_SWITCH),
        "nccl_h100 and H100x8_dgxc",
        {},
    ),
    "hgx-a100": Set(
        "nccl",
        (Table("nccl_a100"), Table("A100x8_thanos_mpi")),
        _nvlink(24 * 20.0, 0.858),
        (*_RINGS, *_PEERS),
        "nccl_a100 and A100x8_thanos_mpi",
        {},
    ),
    "h100-cluster": Set(
        "nccl",
        (
            Table("H100x16_309a", (("nodes", 2),)),
            Table("H100x32_309b", (("nodes", 4),)),
            Table("H100x16_309g", (("nodes", 2),), env=_FORCED),
        ),
        {
            "LL": ProtocolFigures(far_step_ps=us(2.7)),
            "LL128": ProtocolFigures(far_step_ps=us(4.0)),
            "Simple": ProtocolFigures(far_step_ps=us(14.0), far_share=0.985),
            "peer_LL": ProtocolFigures(far_step_ps=us(5.0)),
            "peer_Simple": ProtocolFigures(far_step_ps=us(14.0), far_share=0.985),
            "tree_LL": ProtocolFigures(
                us(6.8), us(0.6), us(5.0), first_ps=us(0.3), next_ps=us(0.6), pass_bytes=4096
            ),
            "tree_LL128": ProtocolFigures(us(14), us(1.25), us(8.5), share=0.5, far_share=0.985),
            "tree_Simple": ProtocolFigures(us(8.4), us(4.0), us(14.0), share=0.88, far_share=0.985),
            "NVLSTree": ProtocolFigures(
                us(25), 0, us(20.9), share=0.64, far_share=0.985, far_fill=0.7, far_fill_bytes=128 * MIB
            ),
        },
        (
            Constant("far_step_ps", ("Simple",)),
            Constant("far_share", ("Simple", "peer_Simple", "tree_LL128", "tree_Simple", "NVLSTree"), 0.01),
            *(Constant(field, ("tree_LL",)) for field in ("start_ps", "far_step_ps", "first_ps")),
            *(Constant(field, ("tree_LL128",)) for field in ("start_ps", "far_step_ps", "share")),
            Constant("start_ps", ("NVLSTree",)),
            Constant("far_step_ps", ("NVLSTree",)),
            Constant("share", ("NVLSTree",), 0.1),
            Constant("far_fill", ("NVLSTree",)),
        ),
        "H100x16_309a, H100x32_309b and H100x16_309g",
        dict.fromkeys(("LL", "LL128", "peer_LL", "tree_Simple"), "estimate: NCCL tuning.cc, between nodes"),
    ),
    "mi300x-8": Set(
        "rccl",
        (
            Table("MI300Xx8_rocmblog", smallest=8),
            Table("MI300Xx8_rocmblog_graph", graph=True, smallest=8),
        ),
        {
            "LL": ProtocolFigures(us(12), us(0.8)),
            "Simple": ProtocolFigures(us(17), us(2.1), us(25), share=0.98, fill=1.0, fill_bytes=2 * MIB),
            "pairs_LL": ProtocolFigures(us(12), us(0.8), share=0.7),
            "pairs_Simple": ProtocolFigures(us(17), us(2.1), share=0.7),
            "pairs_MSCCL++": ProtocolFigures(us(5), us(0.8), share=0.98),
            "tree_LL": ProtocolFigures(us(12), us(0.9), us(10.5), share=0.14),
            "peer_LL": ProtocolFigures(us(12), us(0.8)),
            "peer_Simple": ProtocolFigures(us(17), 0, us(25), share=0.98),
        },
        (
            Constant("start_ps", ("LL",)),
            Constant("step_ps", ("LL",)),
            Constant("start_ps", ("Simple",)),
            Constant("share", ("Simple",), 0.05),
            Constant("fill", ("Simple",)),
            Constant("start_ps", ("pairs_LL",)),
            Constant("start_ps", ("pairs_Simple",)),
            Constant("share", ("pairs_Simple",), 0.2),
            Constant("start_ps", ("pairs_MSCCL++",)),
        ),
        "MI300Xx8_rocmblog and MI300Xx8_rocmblog_graph",
        dict.fromkeys(
            ("tree_LL", "peer_LL", "peer_Simple"),
            "estimate: RCCL tuning.cc, base latencies, and the rate of the links",
        ),
    ),
}


@cache
def rows_of(table: Table) -> tuple[Row, ...]:
    """The rows of a table; of in-place and out-of-place times the smaller."""
    bulk = DATA / "kernels" / f"{table.name}.csv.gz"
    if bulk.exists():
        with gzip.open(bulk, "rt", encoding="utf-8") as file:
            return tuple(
                Row(
                    NAMES.get(r["op_name"], r["op_name"]), int(r["num_gpus"]), int(r["bytes"]), float(r["us"])
                )
                for r in csv.DictReader(file)
            )
    with (DATA / "collectives.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            Row(r["op"], int(r["n_gpus"]), int(r["size_bytes"]), min(_times(r)), table.graph)
            for r in csv.DictReader(file)
            if r["table_id"] == table.name and int(r["size_bytes"]) >= table.smallest
        )


def _times(row: dict[str, str]) -> Iterator[float]:
    return (float(row[k]) for k in ("time_us_out_of_place", "time_us_in_place") if row[k])


@cache
def hda_of(name: str, parameters: tuple[tuple[str, Any], ...] = ()) -> HDA:
    return machine(name, **dict(parameters))


def predicted(name: str, table: Table, rule: Rule) -> Any:
    """Microseconds of a table's rows by a rule, with the library's own choice."""
    own = rule_of(hda_of(name, table.parameters), SETS[name].library)
    rule = replace(rule, fabric=own.fabric)
    return predicted_us(rule, rows_of(table), dict(table.env))


def all_rows(name: str) -> list[Row]:
    return [row for table in SETS[name].tables for row in rows_of(table)]


def predictor(name: str, kept: Any = slice(None)) -> Callable[[Rule, Sequence[Row]], Any]:
    def predict(rule: Rule, rows: Sequence[Row]) -> Any:
        return np.concatenate([predicted(name, table, rule) for table in SETS[name].tables])[kept]

    return predict


def prior_rule(name: str) -> Rule:
    """The rule with priors in place of what is fitted; a cluster keeps the fitted figures of its nodes."""
    chosen, rule = SETS[name], rule_of(hda_of(name), SETS[name].library)
    inherited = dict(rule.figures.protocols) if name == "h100-cluster" else {}
    protocols = dict(inherited)
    for key, prior in chosen.priors.items():
        protocols[key] = prior
        if key in inherited and not prior.start_ps:  # only what it adds between nodes
            added = {"far_step_ps": prior.far_step_ps, "far_share": prior.far_share}
            protocols[key] = replace(inherited[key], **added)  # type: ignore[arg-type]
    return replace(rule, figures=replace(rule.figures, protocols=Frozen(protocols)))


def fit(name: str, without: int | None = None) -> TransportFit:
    """Fit a machine's constants, to all rows or to all but one."""
    rows, kept = all_rows(name), np.arange(len(all_rows(name)))
    if without is not None:
        kept = np.delete(kept, without)
    return fit_rows(prior_rule(name), [rows[i] for i in kept], SETS[name].constants, predictor(name, kept))


def largest_change(name: str) -> float:
    """Return how far, relatively, a constant of the machine file is from what the fit finds."""
    found, shipped = fit(name), rule_of(hda_of(name), SETS[name].library).figures
    return max(abs(c.of(shipped) / c.of(found.figures) - 1) for c in found.constants)


def leave_one_out(name: str) -> Score:
    """Errors of the rows of a machine's first table, each predicted by a fit without it."""
    found = []
    for i in range(len(rows_of(SETS[name].tables[0]))):
        rule = replace(prior_rule(name), figures=fit(name, i).figures)
        found.append(float(errors(rule, all_rows(name), predictor(name))[i]))
    return Score.of(np.array(found))


def shipped_errors(name: str) -> dict[str, Any]:
    """Errors by table with the constants of the machine file."""
    rule = rule_of(hda_of(name), SETS[name].library)
    return {
        table.name: predicted(name, table, rule) / np.array([r.us for r in rows_of(table)]) - 1
        for table in SETS[name].tables
    }


def report(name: str, found: dict[str, Any], constants: int) -> Iterator[str]:
    """Lines with the errors of a machine: by table, and of the first by operation and ranks and by band."""
    for table in SETS[name].tables:
        score = Score.of(found[table.name])
        yield (
            f"{name}, {table.name}: {score.rows} rows, {constants} constants; median {score.median:.1%}, "
            f"p90 {score.p90:.1%}, signed {score.bias:+.1%}"
        )
    first, rows = found[SETS[name].tables[0].name], rows_of(SETS[name].tables[0])
    for kind in sorted({(row.operation, row.ranks) for row in rows}):
        apart = np.abs([e for e, row in zip(first, rows, strict=True) if (row.operation, row.ranks) == kind])
        yield f"  {kind[0]}, {kind[1]} ranks: {len(apart)} rows, median {np.median(apart):.1%}"
    for band, low, high in BANDS:
        apart = np.array([e for e, row in zip(first, rows, strict=True) if low < row.nbytes <= high])
        yield f"  {band}: {len(apart)} rows, signed median {np.median(apart):+.1%}"


def line(name: str, figures: ProtocolFigures, source: str) -> str:
    """One protocol as a line of a machine file."""
    name = f"'{name}'" if "+" in name else name
    return f"        {name}: {{{', '.join(protocol_text(figures))},\n          source: '{source}'}}"


def section(name: str, figures: dict[str, ProtocolFigures]) -> str:
    """The ``protocols`` of a machine file."""
    chosen, lines = SETS[name], []
    fitted = {protocol for constant in chosen.constants for protocol in constant.protocols[:1]}
    for key in chosen.priors:
        figure = figures[key]
        if name == "h100-cluster" and not chosen.priors[key].start_ps:
            figure = ProtocolFigures(far_step_ps=figure.far_step_ps, far_share=figure.far_share)
        note = (
            f"fitted to {chosen.source} (benchmarks/fit_transports.py)" if key in fitted else "as those above"
        )
        lines.append(line(key, figure, chosen.estimates.get(key, note)))
    return "\n".join(lines)


def write(name: str, text: str) -> None:
    """Put fitted protocols into the machine file."""
    path = MACHINES / f"{name}.yaml"
    old = path.read_text(encoding="utf-8")
    new, count = re.subn(
        r"(?m)^      protocols:(?: {})?\n(?:        .*\n)*", lambda _: f"      protocols:\n{text}\n", old
    )
    assert count == 1, f"{path} has no protocols"
    path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fit the constants of transports in the machine files.")
    parser.add_argument("machines", nargs="*", default=[*SETS], help="names; all unless given")
    parser.add_argument("--write", action="store_true", help="put them into the machine files")
    parser.add_argument("--leave-one-out", action="store_true", help="refit without each row in turn")
    asked = parser.parse_args()
    for each in asked.machines:
        result = fit(each)
        fitted = replace(prior_rule(each), figures=result.figures)
        apart = {
            table.name: predicted(each, table, fitted) / np.array([r.us for r in rows_of(table)]) - 1
            for table in SETS[each].tables
        }
        print("\n".join(report(each, apart, len(result.constants))))
        for constant, deviation in zip(result.constants, result.deviations, strict=True):
            print(f"  {constant.name}: {constant.of(result.figures):.4g}, ± {deviation:.0%}")
        print(section(each, dict(result.figures.protocols)))
        if asked.write:
            write(each, section(each, dict(result.figures.protocols)))
        if asked.leave_one_out:
            score = leave_one_out(each)
            print(f"{each}: left out in turn: median {score.median:.1%}, p90 {score.p90:.1%}")
