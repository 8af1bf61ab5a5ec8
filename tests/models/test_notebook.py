"""The notebook's outputs are those of its cells (``pytest --update-golden`` writes them anew)."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "examples" / "size_a_deployment.ipynb"


def run_cells(text: str) -> str:
    """Return a notebook after running its code cells in order."""
    whole = json.loads(text)
    names: dict[str, Any] = {}
    for count, cell in enumerate((c for c in whole["cells"] if c["cell_type"] == "code"), 1):
        cell |= {"execution_count": count, "outputs": run_cell("".join(cell["source"]), names, count)}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell as a notebook does: what it prints, and the value of its last expression."""
    tree = ast.parse(source)
    if isinstance(tree.body[-1], ast.Expr):
        tree.body[-1] = ast.Assign([ast.Name("_", ast.Store())], tree.body[-1].value)
    names["_"], printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.fix_missing_locations(tree), "cell", "exec"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    value = names["_"]
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        result = {"output_type": "execute_result", "data": data, "execution_count": count}
        outputs.append({**result, "metadata": {}})
    return outputs


def shown(text: str) -> list[Any]:
    """Return cells and their texts; how tables look in HTML is tested elsewhere."""
    return [
        (cell["source"], [o.get("text") or o["data"]["text/plain"] for o in cell.get("outputs", ())])
        for cell in json.loads(text)["cells"]
    ]


def test_the_notebook_has_the_outputs_of_its_cells(request: pytest.FixtureRequest) -> None:
    old = FILE.read_text(encoding="utf-8")
    new = run_cells(old)
    if request.config.getoption("--update-golden"):
        FILE.write_text(new, encoding="utf-8")
        return
    assert shown(new) == shown(old), "pytest --update-golden writes the notebook anew"
