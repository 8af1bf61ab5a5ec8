"""The collectives' part of ``docs/fidelity.md`` and its picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fidelity_collectives import SETTINGS, Compared, fit_sizes, score, validation
from fidelity_kernels import ELSEWHERE, KERNELS
from fit_protocol import PRIORS, in_files, text
from harness import publish, smoke

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "fidelity.md"
PICTURE = DOCS / "pictures" / "fidelity_collectives.png"
BEGIN, END = "<!-- collectives: begin -->", "<!-- collectives: end -->"

HEAD = """## Collectives

Predicted times beside published ones, every row of `benchmarks/data/collectives.csv` (the smaller of the
in-place and out-of-place times). A row is what `megatile collective all_reduce -a nccl` (`rccl` on MI300X)
prints for the machine; runs with a forced ring are predicted with rings only.

![measured and predicted times over size](pictures/fidelity_collectives.png)

"""

MODEL = """### The model and its constants

A collective costs a start, then a time per step along the path of the data, then bytes over a rate: the form
with which NCCL predicts itself when it chooses an algorithm (`src/graph/tuning.cc`). The algorithms are
those of the libraries: NCCL's rings, its trees (chains inside nodes, binary between them), in-switch
reduction and its tree over nodes; RCCL's all-pairs exchange and its rings on every link. A small path sends
a flag beside every word (LL: short steps, half of the wire lost), a line path one in 128 bytes (LL128), a
bulk path synchronises per message (Simple). The line path has no constants of its own: NCCL's table gives
its start beside that of LL and its step beside that of Simple.

What libraries do with small sizes comes from their sources and is not fitted:

* One channel for every 4 KiB (512 threads with 8 bytes each; in rings for every 4 KiB per rank), as the
  loop in NCCL's `topoGetAlgoInfo` does (`enqueue.cc`). Twelve channels fill a link: NCCL's table has 36.7
  GB/s per channel on Hopper and 20 on Ampere, of 393 and 274. Hence times are flat from 32 KiB to 512 KiB
  on eight GPUs.
* Blocks of a ring are multiples of 16 bytes (`runRing` in `all_reduce.h`), so below 128 bytes some of eight
  are empty. A benchmark runs collectives one after another; the rank that begins the only full block has
  its sum after 8 steps and begins the next while the sum still goes round, where eight full blocks need 14
  steps.
* RCCL takes its all-pairs algorithms (`tools/msccl-algorithms`) for multiples of 256 elements, with LL
  below 512 KiB and Simple from there on; in captured graphs MSCCL++ for multiples of 32 bytes up to 1 MiB
  (`msccl_lifecycle.cc`); else one ring. Hence 512 bytes take longer than 1 KiB, and 16 longer than 32 with
  graphs. The limits changed from version to version of RCCL; these are of the files that agree with the run.

With four nodes large sizes are predicted about 20 % too fast (the table of H100x32). `in_network_tree` passes
blocks between nodes as a ring does, 2(n-1)/n of the bytes through a network card; NCCL's pair of trees brings
an inner node up to twice the bytes. With two nodes both are the same, so the fitted table cannot show it. A
share of the network cards below 1 hides it (11.0 % instead of 15.4 %) without being the cause.

`benchmarks/fit_protocol.py` fits the constants of a machine file to three sizes of its first table:
Hockney's n½ (time of the smallest row × rate of the largest), the middle of the sizes below it on a
logarithmic scale, and the largest. Where a table was also measured with captured graphs, the same sizes of
that run count too. Three sizes cannot tell five constants apart, so each has a prior, counted as known to a
factor of two where a row counts as known to 5 %. `make bench` fits again and compares with the files. At
most six constants act on a machine: `h100-cluster` names one and inherits five from `dgx-h100`.

How blind the fit is: the constants come from the fitted rows and from the priors only. But the form of the
model (the twelve channels, RCCL's limits), the choice of priors and the rule for the sizes were written with
all rows in view, and were changed after looking at scores; read them as a fair test of the constants and a
lenient one of the model. Two tables of `h100-cluster` (4 nodes, forced ring) and the H200 rows have no fitted
row at all. The column "no fit" has the median error over all rows with the priors alone, as for a machine
that nobody measured.

No row is left out: where the smaller of two times is still slow, it counts.

"""


def section(rows: list[Compared], unfitted: list[Compared]) -> str:
    """The collectives' part of ``docs/fidelity.md``; ``unfitted``: the same rows with the priors alone."""
    by_kind = {kind: [r for r in rows if r.kind == kind] for kind in ("scored", "fitted")}
    scored = by_kind["scored"]
    median, worst = score(scored)
    beyond = sum(abs(r.error) > 0.35 for r in scored)
    out = [
        BEGIN,
        HEAD
        + f"All scored rows ({len(scored)}): median error {median:.1%}, worst {worst:.1%}; "
        f"{beyond} beyond 35 %.\nWith no fit at all ({len(unfitted)} rows): "
        "median {:.1%}, worst {:.1%}.".format(*score(unfitted)),
        "",
        *summary(rows, unfitted),
        MODEL + "\n".join(constants()),
        "",
        "### Rows of `benchmarks/data/validation.csv`",
        "",
        *validated(rows),
    ]
    titles = {"scored": "Scored rows", "fitted": "Rows fitted to"}
    for kind, title in titles.items():
        out += [f"### {title}", "", *table(by_kind[kind]), ""]
    sources = dict.fromkeys((r.row.table, r.row.source) for r in rows)
    out += ["Sources: " + "; ".join(f"{name}: {source}" for name, source in sources) + ".", "", END]
    return "\n".join(out)


def summary(rows: list[Compared], unfitted: list[Compared]) -> Iterator[str]:
    yield "| measurements | machine | scored rows | median error | worst error | fitted rows | no fit |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for name in dict.fromkeys(r.row.table for r in rows):
        mine = [r for r in rows if r.row.table == name]
        scored = [r for r in mine if r.kind == "scored"]
        median, worst = score(scored)
        alone, _ = score([r for r in unfitted if r.row.table == name])
        yield (
            f"| {name} | {SETTINGS[name].machine} | {len(scored)} | {median:.1%} | {worst:.1%} "
            f"| {len(mine) - len(scored)} | {alone:.1%} |"
        )
    yield ""


def constants() -> Iterator[str]:
    yield "| machine file | fitted at (B) | constant | prior | fitted | prior from |"
    yield "|---|---|---|---:|---:|---|"
    for machine, values in in_files().items():
        sizes = ", ".join(str(s) for s in fit_sizes(machine))
        for name, value in values.items():
            prior, source = PRIORS[machine][name]
            yield (
                f"| {machine} | {sizes} | `{name}` | {text(name, prior)} | {text(name, value)} | {source} |"
            )


def validated(rows: list[Compared]) -> Iterator[str]:
    checks = list(validation(rows))
    yield "| | tests | case | measured (µs) | predicted (µs) | error |"
    yield "|---|---|---|---:|---:|---:|"
    for c in checks:
        if c.predicted is not None:
            error = c.predicted / c.us - 1
            yield f"| {c.number} | {c.tests} | {c.case} | {c.us:g} | {c.predicted:.2f} | {error:+.1%} |"
    yield ""
    yield "Single kernels: floors from the machine files, products at the rate under load (`sustained`), and"
    yield "attention (V17) as on its page. Nothing is fitted to these rows."
    yield ""
    yield "| | tests | case | measured (µs) | floor (µs) | difference |"
    yield "|---|---|---|---:|---:|---:|"
    for c in checks:
        if c.number in KERNELS:
            us = KERNELS[c.number].us()
            yield f"| {c.number} | {c.tests} | {c.case} | {c.us:g} | {us:.2f} | {us / c.us - 1:+.1%} |"
    yield ""
    yield ", ".join(f"{number} {where}" for number, where in ELSEWHERE.items()) + "."
    yield ""


def table(rows: list[Compared]) -> Iterator[str]:
    yield "| measurements | operation | size (B) | measured (µs) | predicted (µs) | error | algorithm, path |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for r in rows:
        yield (
            f"| {r.row.table} | {r.row.operation} | {r.row.size} | {r.row.us:.2f} | {r.predicted:.2f} "
            f"| {r.error:+.1%} | {r.algorithm} |"
        )


def write_page(rows: list[Compared], unfitted: list[Compared]) -> None:
    """Replace the collectives' part of the page, leaving others' parts as they are."""
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "# Fidelity\n\nMade by `make bench`.\n"
    made = section(rows, unfitted)
    if BEGIN in old:
        head, _, rest = old.partition(BEGIN)
        new = head + made + rest.partition(END)[2]
    else:
        new = old.rstrip() + "\n\n" + made + "\n"
    publish(PAGE, new)


def draw(rows: list[Compared]) -> None:
    """Measured and predicted time over size, one panel per table that is a sweep."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = [name for name in SETTINGS if len({r.row.size for r in rows if r.row.table == name}) > 1]
    figure, grid = plt.subplots(2, 4, figsize=(16, 7), constrained_layout=True)
    for axes in grid.flat[len(tables) :]:
        axes.set_visible(False)
    for axes, name in zip(grid.flat, tables, strict=False):
        mine = [r for r in rows if r.row.table == name]
        axes.plot([r.row.size for r in mine], [r.predicted for r in mine], color="0.4", label="predicted")
        marks = (("scored", "o", "tab:blue"), ("fitted", "D", "tab:green"))
        for kind, marker, colour in marks:
            points = [(r.row.size, r.row.us) for r in mine if r.kind == kind]
            if points:
                axes.plot(*zip(*points, strict=True), marker, color=colour, ms=4, label=f"measured, {kind}")
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
