"""The gallery, made from the examples: their notes, their predicted time, a picture of their timeline.

python -m tests.docs.gallery     # writes docs/gallery/ anew, pictures included
"""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path
from typing import NamedTuple

from tests.lowering.test_examples import EXAMPLES, programs_of

import megatile as mt
from megatile.core.quantities import format_time
from megatile.report.timeline import draw_timeline
from megatile.sim.result import Result

FOLDER = Path(__file__).parents[2] / "docs" / "gallery"
ROWS = 12


class Card(NamedTuple):
    """One example: what its docstring says, and the timed run of its last program."""

    path: Path
    title: str
    lead: str
    notes: str
    printed: str
    result: Result

    @property
    def first_line(self) -> int:
        """The first line of code, below the docstring."""
        return (ast.parse(self.path.read_text(encoding="utf-8")).body[0].end_lineno or 0) + 2

    @property
    def picture(self) -> str:
        return f"pictures/{self.path.stem}.png"

    @property
    def time(self) -> str:
        return f"{format_time(self.result.time_ps)} on {self.result.trace.machine}"

    def text(self) -> str:
        """The page of the example."""
        parts = [
            f"# {self.title}",
            self.lead,
            f"Predicted: **{self.time}**.",
            f"![Timeline of {self.title}]({self.picture})",
            self.notes,
            f'```py\n--8<-- "examples/{self.path.name}:{self.first_line}"\n```',
        ]
        return "\n\n".join(parts) + "\n"

    def row(self) -> str:
        """The card on the first page."""
        page = f"{self.path.stem}.md"
        return f"-   [![]({self.picture})]({page})\n\n    **[{self.title}]({page})**: {self.time}"


def card(path: Path) -> Card:
    """Run an example as it stands and time the last program it runs."""
    title, lead, *notes = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        program, arrays, machine = programs_of(path)[-1]
    result = mt.simulate(program, *arrays, machine=machine)
    return Card(path, title.rstrip("."), lead, "\n\n".join(notes), printed.getvalue(), result)


def first_page(rows: list[str]) -> str:
    """The list of all cards."""
    head = (
        "# Gallery\n\n"
        "Each kernel is one script in `examples/`: it runs, compares its result with NumPy and is "
        "timed here.\nTimes are predictions for the small sizes of the script, launch included.\n\n"
    )
    return f'{head}<div class="grid cards" markdown>\n\n' + "\n\n".join(rows) + "\n\n</div>\n"


def main() -> None:
    """Write all pages and pictures."""
    (FOLDER / "pictures").mkdir(parents=True, exist_ok=True)
    rows = []
    for path in EXAMPLES:
        one = card(path)
        rows.append(one.row())
        (FOLDER / f"{path.stem}.md").write_text(one.text(), encoding="utf-8")
        draw_timeline(one.result.trace, FOLDER / one.picture, rows=ROWS)
        print(f"{one.title}: {one.time}")
    (FOLDER / "README.md").write_text(first_page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
