"""The tutorials of the tile language show the code of the examples, word for word."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").glob("[0-9]*.py"))
    if "megatile.language as T" in path.read_text("utf-8")
]


def code_of(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_page_for_every_example(example: Path) -> None:
    page = ROOT / "docs" / "tutorials" / f"{example.stem}.md"
    shown = {line for line in code_of(page.read_text(encoding="utf-8")).splitlines() if line.strip()}
    source = example.read_text(encoding="utf-8")
    code = source[source.index('"""', 3) + 3 :].split("\n\nif __name__")[0]
    missing = [line for line in code.splitlines() if line.strip() and line not in shown]
    assert not missing, f"{page.name} lacks {missing[:3]}"
    assert page.name in (ROOT / "docs" / "tutorials" / "README.md").read_text(encoding="utf-8")
