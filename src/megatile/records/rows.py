"""Rows of tables by the names of their fields.

A table of the engine is an array of 64-bit integers; a class says what the columns of a row are:

    class Queue(Row):
        sent: int
        taken: int

``Queue.taken`` is the number of the column (1), so that ``rows[:, Queue.taken]`` is a column of an array.
``Queue(words, at).taken`` is that integer of the row that begins at ``at``, to be read or assigned. In the
functions of `engine/` rows are only written like that: `desugar` turns them into accesses to one array.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

NONE = -1
"""The value for "none" in every field."""


class Words:
    """Integers one after another, addressed from the first: a list, or the end of a row."""

    def __init__(self, words: Any, at: int) -> None:
        self._words, self._at = words, at

    def __getitem__(self, index: int) -> int:
        return int(self._words[self._at + index])

    def __setitem__(self, index: int, value: int) -> None:
        self._words[self._at + index] = value

    def at(self, index: int) -> Words:
        """Return the words from ``index`` on."""
        return Words(self._words, self._at + index)

    @property
    def size(self) -> int:
        """How many words a table has room for."""
        return len(self._words)


R = TypeVar("R", bound="Row")


class Field(NamedTuple):
    """A column: its number, and what stands there ("int", "float", "Words", "Table[…]")."""

    at: int
    kind: str

    def of_row(self) -> property:
        """Return the integer of this column in a row, or what begins there."""
        at = self.at

        def put(row: Any, value: int) -> None:
            row._words[row._at + at] = value

        get: dict[str, Callable[[Any], Any]] = {
            "Words": lambda row: Words(row._words, row._at + at),
            "float": lambda row: float(row._words[row._at + at].view("f8")),
        }
        return property(get.get(self.kind, lambda row: int(row._words[row._at + at])), put)


class Row:
    """A row of a table; subclasses declare the columns."""

    fields: ClassVar[Mapping[str, Field]] = {}
    width: ClassVar[int] = 0
    """How many words a row has; those that end with `Words` have more."""
    _columns: ClassVar[Mapping[str, int]] = {}
    KIND: ClassVar[int] = NONE
    """The kind of an instruction with these operands."""
    _view: ClassVar[Any] = None
    """The class of the rows themselves, in which fields are integers of the row."""

    def __init_subclass__(cls, kind: int = NONE, width: int = 0, view: bool = False) -> None:
        if view:
            return
        fields = dict(cls.fields)
        for name, annotation in inspect.get_annotations(cls).items():
            if hasattr(Row, name):
                raise TypeError(f"{cls.__name__}: no field can be called '{name}'")
            fields[name] = Field(len(fields), annotation)
            setattr(cls, name, fields[name].at)
        ends_with_words = [f.kind for f in fields.values()][-1:] == ["Words"]
        cls.fields, cls.KIND = fields, kind
        cls._columns = {name: field.at for name, field in fields.items()}
        cls.width = max(width, cls.width, len(fields) - ends_with_words)
        properties = {name: field.of_row() for name, field in fields.items()}
        cls._view = type(cls.__name__, (cls,), properties, view=True)

    def __new__(cls, *_: Any) -> Any:
        return object.__new__(cls._view)

    def __init__(self, words: Any, at: int = 0) -> None:
        self._words, self._at = words, at

    @classmethod
    def row(cls, **values: int) -> list[int]:
        """Return a row with these values; other fields have none."""
        row, columns = [NONE] * cls.width, cls._columns
        try:
            for name, value in values.items():
                row[columns[name]] = value
        except KeyError as name:
            raise TypeError(f"{cls.__name__} has no field {name}, only {', '.join(columns)}") from None
        return row

    @classmethod
    def of(cls: type[R], row: Row) -> R:
        """Return the same row with other fields."""
        return cls(row._words, row._at)

    def update(self, **values: int) -> None:
        """Set some fields."""
        for name, value in values.items():
            setattr(self, name, value)

    def at(self: R, index: int) -> R:
        """Return the row so many rows behind this one."""
        return type(self)(self._words, self._at + index * self.width)

    def __repr__(self) -> str:
        return show(self)


class Table(Generic[R]):
    """The rows of a table that there is room for."""

    def __init__(self, arena: Any, name: str, kind: type[R]) -> None:
        self._arena, self._name, self._kind = arena, name, kind

    def __getitem__(self, index: int) -> R:
        return self._kind(self._arena.memory, self._arena.row_at(self._name, index))

    @property
    def size(self) -> int:
        return int(self._arena.size(self._name))


def show(row: Row) -> str:
    """Return a row as text, for debugging: ``Queue(sent=3, taken=1)``."""
    shown = (f"{name}={getattr(row, name)}" for name, field in row.fields.items() if field.kind != "Words")
    return f"{type(row).__name__}({', '.join(shown)})"
