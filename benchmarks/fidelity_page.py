"""The summary and the collectives' section of the accuracy page: ``python fidelity_page.py``."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import numpy as np

from fidelity_collectives import MACHINE_OF, OTHERS, Compared, compare, one_node, score
from fidelity_kernels import ELSEWHERE, KERNELS
from fit_transports import BANDS, DATA, SETS, hda_of, leave_one_out, line, rows_of
from harness import DOCS, publish, publish_section, smoke, table_behind
from megatile.timing.collective_choice import MEASURED, MEASURED_TYPES, rule_of
from megatile.timing.fit import Score

CONSTANTS = DOCS / "tables" / "collective_constants.yaml"
PICTURE = DOCS / "pictures" / "fidelity_collectives.png"

LEAD = """# Accuracy

This page compares predictions with times that other people measured. Trust the first table most: its rows
were not used to fit a constant or to find a rule. There are few of them (the H200 rows are four runs of
16 GiB). To judge your own machine, measure it: `megatile machine fit`.

| Unseen rows | rows | median error | 90 % within |
|---|---:|---:|---:|
{blind}

Each of the next rows is predicted by a fit without that row. The form of the rule was chosen after looking
at rows of the same chips.

| Rows left out of the fit | rows | median error | 90 % within |
|---|---:|---:|---:|
{left_out}

For comparison, rows that constants were fitted to:

{fitted}

## What cannot be predicted

* **Frameworks.** Two frameworks that time the same GEMM differ by -10 % to +7 % (5th to 95th percentile).
  No prediction can be closer than that.
* **Operations without measurements.** NCCL was measured for {nccl}; RCCL for {rccl}. `broadcast`, `reduce`,
  `gather`, `scatter` and `send_recv` use the same rule, and the result's `origin` says so.
* **Element types.** Collectives were measured in {types}. Other types are timed by their bytes.
* **Machines without measurements**: H200, H800, B200, GB200, V100, L20, MI325X, TPU v5p; clusters of A100 and
  MI300X; clusters over EFA, RoCE and TCPXO. Their machine files are marked `estimate`.
* **Attention in `T` with fewer blocks than SMs.** FlashAttention 3 splits the keys over several blocks; the
  program does not, and is predicted 20 to 80 % too slow.
* **Ulysses schedules**: not compared with a measurement.
* **Registered buffers** and `NCCL_MAX_NCHANNELS`: rules without measurements.
* **SGLang's kernels** use vLLM's figures. Frameworks' kernels were measured on H100 only.
* **Clocks under load**, beyond the share in the machine file (`sustained`); power caps; shared networks.
* **The first call**: warm-up, lazy connections, allocation.
"""

FITTED = "| source | rows | constants | median error | 90 % within |"

SECTION = """## Collectives

Every row of `benchmarks/data/collectives.csv` (the faster of in-place and out-of-place), and 65 rows per chip
of NCCL on one node (f16; H100 SXM with NCCL 2.29.2, A100 SXM with 2.27.3; random samples of tables measured
by the aiconfigurator project, Apache-2.0). The prediction is that of `mt.predict_kernel`, with the NCCL
variables that the run had set.

![measured and predicted times over size](pictures/fidelity_collectives.png)

{summary}

{groups}

{rows}

{validated}

That table numbers published figures V1 to V20. V12 to V16 are compared with a lower bound: one launch, plus
the longer of computing and moving the data once.
{elsewhere}

The [rule](reference/timing.md#collectives-of-libraries) has {count} constants for four machines
([values](tables/collective_constants.yaml)). The algorithm and protocol come from the library's own tables
(NCCL 2.29's `tuning.cc`, RCCL's all-pairs files) and are not fitted. `benchmarks/fit_transports.py` fits the
constants to rows of at least 512 B. Every constant has a prior, usually the library's own figure, and keeps
it if no row depends on it.
"""


def lead(rows: list[Compared], left_out: dict[str, Score]) -> str:
    """The head of the page: what was blind first."""
    import bench_programs
    import fidelity_library

    def cells(*scores: tuple[str, Score]) -> str:
        return "\n".join(f"| {n} | {s.rows} | {s.median:.1%} | {s.p90:.1%} |" for n, s in scores)

    other = fidelity_library.elsewhere()
    blind = [
        *((f"collectives, {n}, on {OTHERS[n][0]}", score([r for r in rows if r.table == n])) for n in OTHERS),
        ("GEMM in f16 on A100, LLMCompass", other),
        ("GEMM in `T` on H800, TileLang", Score.of(bench_programs.product_errors())),
    ]
    small = [r for r in rows if not r.fitted and r.table not in OTHERS]
    fitted = []
    for name, chosen in SETS.items():
        for table in chosen.tables:
            mine = [r for r in rows if r.table == table.name and r.fitted]
            errors = one_node()[name] if not mine else np.array([r.error for r in mine])
            fitted.append((f"{table.name} | {{}} | {len(chosen.constants)}", Score.of(errors)))
    attention = Score.of(bench_programs.attention_errors())
    fitted.append(("attention_prefill_h100, attention in `T` | {} | 2", attention))
    shown = [f"| {text.format(s.rows)} | {s.median:.1%} | {s.p90:.1%} |" for text, s in fitted]
    types = " and ".join(MEASURED_TYPES)
    words = {library: ", ".join(f"`{name}`" for name in names) for library, names in MEASURED.items()}
    return LEAD.format(
        blind=cells(*blind),
        left_out=cells(
            *((f"collectives on one node, {n}", s) for n, s in left_out.items()),
            ("collectives below 512 B, not fitted", score(small)),
        ),
        fitted=table_behind("Fitted rows", "fitted_rows", [FITTED, *shown]),
        types=types,
        **words,
    )


def section(rows: list[Compared]) -> str:
    """Return the collectives' section; write the tables behind it."""
    return SECTION.format(
        summary=table_behind("Errors by source", "collectives_summary", summary(rows)),
        groups=table_behind("Errors by operation and ranks, NCCL on one node", "nccl_one_node", groups()),
        rows=table_behind("All rows", "collectives", table(rows)),
        validated=table_behind("Rows of validation.csv", "validation", validated(rows)),
        elsewhere=", ".join(f"{number} {where}" for number, where in ELSEWHERE.items()) + ".",
        count=sum(len(chosen.constants) for chosen in SETS.values()),
    )


def summary(rows: list[Compared]) -> Iterator[str]:
    yield "| source | machine | rows | median error | 90 % within | worst | signed | fitted rows | from |"
    for name in dict.fromkeys(r.table for r in rows):
        mine = [r for r in rows if r.table == name]
        s, worst = score(mine), max(abs(r.error) for r in mine)
        machine = (MACHINE_OF | OTHERS)[name][0]
        yield (
            f"| {name} | {machine} | {s.rows} | {s.median:.1%} | {s.p90:.1%} | {worst:.1%} | {s.bias:+.1%} "
            f"| {sum(r.fitted for r in mine)} | {mine[0].source} |"
        )


def constants() -> Iterator[str]:
    """The figures of the machine files as they are written there."""
    for name, chosen in SETS.items():
        yield f"# {name}: {len(chosen.constants)} constants, fitted to {chosen.source}"
        protocols = rule_of(hda_of(name), chosen.library).figures.protocols
        for key in chosen.priors:
            yield line(key, protocols[key], "").partition(",\n")[0].strip() + "}"


def groups() -> Iterator[str]:
    yield "| machine | group | rows | median, signed | median, absolute | worst |"
    for name, errors in one_node().items():
        rows = rows_of(SETS[name].tables[0])
        kinds = {f"{r.operation}, {r.ranks} ranks": None for r in sorted(rows)}
        named = [(k, [f"{r.operation}, {r.ranks} ranks" == k for r in rows]) for k in kinds]
        named += [(f"{b} sizes", [low < r.nbytes <= high for r in rows]) for b, low, high in BANDS]
        for kind, mask in named:
            mine = errors[np.array(mask)]
            worst = mine[np.argmax(np.abs(mine))]
            yield (
                f"| {name} | {kind} | {len(mine)} | {np.median(mine):+.1%} | {np.median(np.abs(mine)):.1%} "
                f"| {worst:+.1%} |"
            )


def validated(rows: list[Compared]) -> Iterator[str]:
    known = {(f"{r.operation} {r.size} B [{r.config}]", r.source): r.predicted for r in rows}
    yield "| row | tests | case | measured (µs) | predicted (µs) | error | predicted by |"
    with (DATA / "validation.csv").open(encoding="utf-8", newline="") as file:
        for c in csv.DictReader(file):
            found, by = known.get((c["case"], c["source"])), "rule"
            if c["id"] in KERNELS:
                found, by = KERNELS[c["id"]].us(), "floor"
            if found is not None:
                us = float(c["measured"])
                shown = f"{us:g} | {found:.2f} | {found / us - 1:+.1%} | {by}"
                yield f"| {c['id']} | {c['what_it_tests']} | {c['machine']}: {c['case']} | {shown} |"


def table(rows: list[Compared]) -> Iterator[str]:
    """The lines of ``docs/tables/collectives.csv``: rows that chose no constant first."""
    yield "| source | operation | size_bytes | measured_us | predicted_us | error | by | chose_constants |"
    for r in sorted(rows, key=lambda r: r.fitted):
        figures = f"{r.us:.2f} | {r.predicted:.2f} | {r.error:+.1%}"
        fitted = "yes" if r.fitted else "no"
        yield f"| {r.table} | {r.operation} | {r.size} | {figures} | {r.way} | {fitted} |"


def write_page(rows: list[Compared], left_out: dict[str, Score]) -> None:
    """Replace the summary and the collectives' section of the page."""
    publish(CONSTANTS, "\n".join(constants()) + "\n")
    publish_section("summary", lead(rows, left_out))
    publish_section("collectives", section(rows))


def draw(rows: list[Compared]) -> None:
    """Measured and predicted time over size, one panel per table that is a sweep."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = [
        n for n in dict.fromkeys(r.table for r in rows) if len({r.size for r in rows if r.table == n}) > 1
    ]
    figure, grid = plt.subplots(2, 4, figsize=(16, 7), constrained_layout=True)
    for axes in grid.flat[len(tables) :]:
        axes.set_visible(False)
    for axes, name in zip(grid.flat, tables, strict=False):
        mine = [r for r in rows if r.table == name]
        axes.plot([r.size for r in mine], [r.predicted for r in mine], color="0.4", label="predicted")
        for fitted, marker, colour in ((False, "o", "tab:blue"), (True, "D", "tab:green")):
            points = [(r.size, r.us) for r in mine if r.fitted == fitted]
            if points:
                said = "fitted" if fitted else "not fitted"
                axes.plot(*zip(*points, strict=True), marker, color=colour, ms=4, label=f"measured, {said}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(name, fontsize=9)
        axes.grid(True, alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("time (µs)")
    for axes in grid[-1]:
        axes.set_xlabel("size (bytes)")
    grid.flat[len(tables) - 1].legend(fontsize=7)
    if not smoke():
        PICTURE.parent.mkdir(exist_ok=True)
        figure.savefig(PICTURE, dpi=90, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    found = list(compare())
    write_page(found, {name: leave_one_out(name) for name in ("dgx-h100", "hgx-a100")})
    draw(found)
