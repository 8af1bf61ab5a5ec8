"""Results with rows: as a data frame, as a Plotly figure, and as a table in notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from megatile.core.errors import MegatileError, did_you_mean


class HasRows:
    """A result whose ``rows()`` are dicts with the same keys."""

    if TYPE_CHECKING:

        def rows(self) -> list[dict[str, Any]]: ...

    def to_pandas(self) -> Any:
        """Return the rows as a ``pandas.DataFrame`` (``pip install 'megatile[notebook]'``)."""
        return data_frame(self.rows())

    def to_plotly(self, x: str | None = None, y: str = "time_us") -> Any:
        """Return a Plotly figure of ``y`` over ``x``, the first column if not given; rows without a value are
        left out (``pip install 'megatile[notebook]'``)."""
        rows = self.rows()
        names = list(rows[0]) if rows else []
        first = x or next(iter(names), "")
        for name in (first, y):
            if name not in names:
                raise MegatileError(
                    f"the rows have no '{name}'", advice=did_you_mean(name, names, what="columns")
                )
        known = [row for row in rows if row[y] is not None]
        graph = _imported("plotly.graph_objects")
        points = graph.Scatter(
            x=[str(row[first]) for row in known], y=[row[y] for row in known], mode="lines+markers",
            hovertext=["<br>".join(f"{k}: {escape(str(v))}" for k, v in row.items()) for row in known],
        )  # fmt: skip
        return graph.Figure(points, {"xaxis_title": first, "yaxis_title": y, "title": repr(self)})

    def _repr_html_(self) -> str:
        rows = self.rows()
        head = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
            for row in rows
        )
        caption = f"<caption>{escape(repr(self))}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def data_frame(rows: Iterable[dict[str, Any]]) -> Any:
    """Return rows as a ``pandas.DataFrame``."""
    return _imported("pandas").DataFrame(list(rows))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise MegatileError(f"{name} is not installed", advice="pip install 'megatile[notebook]'") from None
