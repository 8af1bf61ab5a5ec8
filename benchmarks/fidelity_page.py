"""The head and the collectives' part of ``docs/fidelity.md`` and its picture: ``python fidelity_page.py``."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fidelity_collectives import MACHINE_OF, OTHERS, Compared, compare, one_node, score
from fidelity_kernels import ELSEWHERE, KERNELS
from fit_transports import BANDS, DATA, SETS, hda_of, leave_one_out, line, rows_of
from harness import publish, smoke
from megatile.timing.collective_choice import MEASURED, MEASURED_TYPES, rule_of
from megatile.timing.fit import Score

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "fidelity.md"
TABLE = DOCS / "tables" / "collectives.csv"
PICTURE = DOCS / "pictures" / "fidelity_collectives.png"
BEGIN, END = "<!-- collectives: begin -->", "<!-- collectives: end -->"
LEAD_BEGIN, LEAD_END = "<!-- summary: begin -->", "<!-- summary: end -->"

LEAD = """# Accuracy

How far predictions are from times that other people measured. What counts is the first table: rows that
chose neither a constant nor the form of a rule. There are few of them here (those of H200 are four runs of
16 GiB); measurements of your own machine tell more (`megatile machine fit`).

| rows that chose nothing | rows | median error | 90 % within |
|---|---:|---:|---:|
{blind}

Rows left out in turn: each is predicted by a fit without it. They chose no constant then, but the form of
the rule was found with rows of these chips in view, also with some that are not in this repository.

| rows left out | rows | median error | 90 % within |
|---|---:|---:|---:|
{left_out}

Rows that chose constants, for comparison (of attention also the form of the programs):

| fitted rows | rows | constants | median error | 90 % within |
|---|---:|---:|---:|---:|
{fitted}

## What cannot be predicted

* **Frameworks.** Two frameworks that measure the same GEMM differ by -10 % to +7 % (5th to 95th
  percentile): whether activations are quantised inside the timed call, which kernel is taken, how it was
  warmed up. No prediction is nearer than that.
* **Operations without measured rows.** Collectives: NCCL has rows of {nccl}, RCCL of {rccl}. `broadcast`,
  `reduce`, `gather`, `scatter` and `send_recv` follow the rule of the others and say so (`origin`).
* **Element types without measured rows.** Collectives were measured in {types}; other types count as so
  many bytes.
* **Machines without measured rows**: H200, H800, B200, GB200, V100, L20, MI325X, TPU v5p, and clusters of
  A100 and MI300X or over EFA, RoCE and TCPXO. Their figures follow from link rates and the libraries'
  sources; the machine files say `estimate`.
* **Attention of one call with fewer blocks than SMs**, written in `T`: FlashAttention 3 divides its keys
  over several blocks, the program does not (20 to 80 % too long).
* **Registered buffers** (no local copy, no fill), `NCCL_MAX_NCHANNELS` and its relatives: by rule,
  without rows.
* **SGLang's kernels**, which count as vLLM's, and kernels of frameworks on machines other than H100.
* **Clocks under load**, other than the share that a machine file names (`sustained`); power caps; several
  jobs on one network.
* **The first call**: warm-up, lazy connections, allocation.
"""

HEAD = """## Collectives

Predicted times beside published ones, every row of `benchmarks/data/collectives.csv` (the smaller of the
in-place and out-of-place times) and 65 rows of NCCL on one node per chip
(`benchmarks/data/kernels/nccl_*`, f16, H100 SXM with NCCL 2.29.2, A100 SXM with 2.27.3: random parts of
tables measured by the aiconfigurator project, Apache-2.0). A row is what `predict_kernel` says for the
machine, with NCCL's variables as the run had them.

![measured and predicted times over size](pictures/fidelity_collectives.png)

"""

MODEL = """### The rule and its constants

The rule is on the page [Timing](reference/timing.md#collectives-of-libraries). Which algorithm and
protocol a library takes follows from its own tables (NCCL 2.29's `tuning.cc`, RCCL's all-pairs files) and
is not fitted: rings with LL up to about 1 MiB on eight GPUs, in-switch reduction above from five ranks
on, rings below five; LL trees over nodes for few bytes, in-switch trees for many.

`benchmarks/fit_transports.py` fits the constants to rows of at least 512 B, minimising a soft absolute
value of ln(predicted/measured)/5 %; every constant has a prior, mostly the figure by which the library
models itself, known to a factor of 1.6 (rates: to 10 %). One that no row depends on keeps its prior.
NCCL's figures for trees over nodes turned out to be right within a few per cent before any fit.

Below 512 B, rings leave blocks empty: blocks are multiples of 16 bytes, and the rank that begins the only
full block has its sum after n steps and begins the next all-reduce while the sum still goes round.

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
    shown = "\n".join(f"| {text.format(s.rows)} | {s.median:.1%} | {s.p90:.1%} |" for text, s in fitted)
    types = " and ".join(MEASURED_TYPES)
    words = {library: ", ".join(f"`{name}`" for name in names) for library, names in MEASURED.items()}
    text = LEAD.format(
        blind=cells(*blind),
        left_out=cells(
            *((f"collectives on one node, {n}", s) for n, s in left_out.items()),
            ("collectives below 512 B, to which nothing is fitted", score(small)),
        ),
        fitted=shown,
        types=types,
        **words,
    )
    return f"{LEAD_BEGIN}\n{text}\n{LEAD_END}"


def section(rows: list[Compared]) -> str:
    """The collectives' part of the page."""
    out = [
        BEGIN,
        HEAD + "\n".join(summary(rows)),
        "",
        MODEL + "\n".join(constants()),
        "",
        "### NCCL on one node",
        "",
        *groups(),
        "",
        "### Rows of `benchmarks/data/validation.csv`",
        "",
        *validated(rows),
    ]
    out += [
        "### All rows",
        "",
        "Every row with its prediction, and whether it chose constants: "
        "[collectives.csv](tables/collectives.csv).",
    ]
    sources = dict.fromkeys((r.table, r.source) for r in rows)
    out += ["Sources: " + "; ".join(f"{name}: {source}" for name, source in sources) + ".", "", END]
    return "\n".join(out)


def summary(rows: list[Compared]) -> Iterator[str]:
    yield "| measurements | machine | rows | median error | 90 % within | worst | signed | of them fitted |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for name in dict.fromkeys(r.table for r in rows):
        mine = [r for r in rows if r.table == name]
        s, worst = score(mine), max(abs(r.error) for r in mine)
        machine = (MACHINE_OF | OTHERS)[name][0]
        yield (
            f"| {name} | {machine} | {s.rows} | {s.median:.1%} | {s.p90:.1%} | {worst:.1%} | {s.bias:+.1%} "
            f"| {sum(r.fitted for r in mine)} |"
        )


def constants() -> Iterator[str]:
    """The figures of the machine files as they are written there."""
    yield "```yaml"
    for name, chosen in SETS.items():
        yield f"# {name}: {len(chosen.constants)} constants, fitted to {chosen.source}"
        protocols = rule_of(hda_of(name), chosen.library).figures.protocols
        for key in chosen.priors:
            yield line(key, protocols[key], "").partition(",\n")[0].strip() + "}"
    yield "```"


def groups() -> Iterator[str]:
    yield "| chip | group | rows | median, signed | median, absolute | worst |"
    yield "|---|---|---:|---:|---:|---:|"
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
    with (DATA / "validation.csv").open(encoding="utf-8", newline="") as file:
        checks = list(csv.DictReader(file))
    yield "| | tests | case | measured (µs) | predicted (µs) | error |"
    yield "|---|---|---|---:|---:|---:|"
    for c in checks:
        found, us = known.get((c["case"], c["source"])), float(c["measured"])
        if found is not None:
            yield (
                f"| {c['id']} | {c['what_it_tests']} | {c['machine']}: {c['case']} | {us:g} | {found:.2f} "
                f"| {found / us - 1:+.1%} |"
            )
    yield ""
    yield "Single kernels: floors from the machine files, products at the rate under load (`sustained`)."
    yield "Nothing is fitted to these rows."
    yield ""
    yield "| | tests | case | measured (µs) | floor (µs) | difference |"
    yield "|---|---|---|---:|---:|---:|"
    for c in checks:
        if c["id"] in KERNELS:
            us, floor = float(c["measured"]), KERNELS[c["id"]].us()
            case = f"{c['machine']}: {c['case']}"
            shown = f"{us:g} | {floor:.2f} | {floor / us - 1:+.1%}"
            yield f"| {c['id']} | {c['what_it_tests']} | {case} | {shown} |"
    yield ""
    yield ", ".join(f"{number} {where}" for number, where in ELSEWHERE.items()) + "."
    yield ""


def table(rows: list[Compared]) -> Iterator[list[str]]:
    """The lines of ``docs/tables/collectives.csv``: rows that chose no constant first."""
    yield [
        "measurements",
        "operation",
        "size_bytes",
        "measured_us",
        "predicted_us",
        "error",
        "by",
        "chose_constants",
    ]
    for r in sorted(rows, key=lambda r: r.fitted):
        figures = [f"{r.us:.2f}", f"{r.predicted:.2f}", f"{r.error:+.1%}"]
        yield [r.table, r.operation, str(r.size), *figures, r.way, "yes" if r.fitted else "no"]


def write_page(rows: list[Compared], left_out: dict[str, Score]) -> None:
    """Replace the head and the collectives' part of the page, leaving others' parts as they are."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table(rows))
    old = PAGE.read_text(encoding="utf-8")
    new = section(rows).join((old.partition(BEGIN)[0], old.partition(END)[2]))
    rest = new.partition(LEAD_END)[2] if LEAD_BEGIN in new else f"\n\n{new[new.index(BEGIN) :]}"
    publish(PAGE, lead(rows, left_out) + rest)


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
