"""Pages of the gallery are made from the examples (``python -m tests.docs.gallery`` writes them anew)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.gallery import FOLDER, card, first_page
from tests.lowering.test_examples import EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_page_shows_its_example(example: Path) -> None:
    one = card(example)
    assert (FOLDER / f"{example.stem}.md").read_text(encoding="utf-8") == one.text()
    assert one.row() in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert (FOLDER / one.picture).stat().st_size > 10_000


def test_no_page_is_left_over() -> None:
    pages = {path.stem for path in FOLDER.glob("*.md")} - {"README"}
    pictures = {path.stem for path in (FOLDER / "pictures").iterdir()}
    assert pages == pictures == {path.stem for path in EXAMPLES}
    assert (
        (FOLDER / "README.md")
        .read_text(encoding="utf-8")
        .startswith(first_page([]).partition("\n\n</div>")[0])
    )
