"""A YAML file as plain data that remembers the line of every value.

The file is untrusted: only plain YAML values are built, sizes are bounded, and whatever is wrong with it
becomes one :class:`~megatile.core.errors.MachineError` with file, line and path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from megatile.core.errors import MachineError, Place
from megatile.core.files import read_text

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_FILE_CHARS = 4 * 2**20
"""Characters of a machine file."""
MAX_VALUES = 50_000
"""Values of a machine file, aliases expanded."""
MAX_NESTING_LEVELS = 40
"""Levels of nesting in a machine file."""

SEE = "compare with 'megatile machine show dgx-h100 --yaml'"

KeyPath = tuple[str | int, ...]


@dataclass
class Document:
    """Plain data and, for each path into it, the place it was written at."""

    data: dict[str, Any]
    file: str | None = None
    places: dict[KeyPath, Place] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    def place(self, key_path: Sequence[str | int]) -> Place:
        """Return the place of a value, or of the nearest thing around it."""
        key_path = tuple(key_path)
        near = key_path
        while near and near not in self.places:
            near = near[:-1]
        at = self.places.get(near, Place(self.file))
        return Place(at.file or self.file, at.line, at.column, self.path(key_path) or None)

    def path(self, key_path: Sequence[str | int]) -> str:
        """``networks.nvlink.bandwidth``: members of lists go by their name where they have one."""
        parts: list[str] = []
        here: Any = self.data
        for step in key_path:
            try:
                here = here[step]
            except (KeyError, IndexError, TypeError):
                here = None
            named = isinstance(step, int) and isinstance(here, dict) and isinstance(here.get("name"), str)
            parts.append(str(here["name"]) if named else str(step))
        return ".".join(parts)

    def error(
        self, message: str, key_path: Sequence[str | int] = (), advice: str | None = None
    ) -> MachineError:
        return MachineError(message, place=self.place(key_path), advice=advice or SEE)


def read_document(path: str | Path) -> Document:
    """Read a YAML file."""
    advice = "check the path; 'megatile machines' lists what can be had by name"
    return parse_document(read_text(path, MAX_FILE_CHARS, MachineError, advice), str(path))


def parse_document(text: str, file: str | None = None) -> Document:
    """Read YAML text."""
    builder = _Builder(Document({}, file))
    try:
        builder.read(iter(yaml.parse(text, Loader=LOADER)))
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        what = getattr(problem, "problem", None) or "this is not YAML"
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        raise MachineError(
            f"not valid YAML: {what}", place=place, advice="check indentation, quotes and brackets near here"
        ) from None
    except (RecursionError, ValueError) as problem:
        if isinstance(problem, MachineError):
            raise
        raise MachineError(f"not valid YAML: {problem}", place=Place(file)) from None
    return builder.document


class _Builder:
    """YAML events → data. Scalars are resolved by YAML's own safe rules, nothing else is constructed.

    Events come one after the other, so that a text that is too large is refused as soon as that is known;
    an alias goes through the events of its anchor again, which count again.
    """

    def __init__(self, document: Document):
        self.document = document
        self.values = self.characters = 0
        self.scalars = yaml.SafeLoader("")
        self.anchors: dict[str, list[Any]] = {}

    def read(self, events: Iterator[Any]) -> None:
        """Read the only document of a stream."""
        file = self.document.file
        top = next(e for e in events if not isinstance(e, (yaml.StreamStartEvent, yaml.DocumentStartEvent)))
        if not isinstance(top, yaml.MappingStartEvent):
            kind = "holds a scalar" if isinstance(top, yaml.ScalarEvent) else "is empty"
            kind = "holds a sequence" if isinstance(top, yaml.SequenceStartEvent) else kind
            raise MachineError(
                f"the description {kind}, not keys and values",
                place=Place(file, 1),
                advice="start with hw_spec: and hw_abstr:",
            )
        self.document.data = self.value(top, events, ())
        self.document.places.pop((), None)
        next(events)  # the end of the document
        more = next(events)
        if not isinstance(more, yaml.StreamEndEvent):
            raise self.error(more, "not valid YAML: a description is one document", ())

    def value(self, event: Any, events: Iterator[Any], key_path: KeyPath) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.error(event, f"the description is too large: more than {MAX_VALUES} values", key_path)
        if self.characters > MAX_FILE_CHARS:
            raise self.error(
                event, f"the description is too large: more than {MAX_FILE_CHARS} characters", key_path
            )
        if len(key_path) > MAX_NESTING_LEVELS:
            raise self.error(
                event,
                f"the description is nested too deeply: more than {MAX_NESTING_LEVELS} levels",
                key_path,
            )
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise self.error(event, f"not valid YAML: no anchor '{event.anchor}' before this", key_path)
            again = iter(self.anchors[event.anchor])
            return self.value(next(again), again, key_path)
        if event.anchor is not None:
            events = iter(self.anchored(event, events))
        self.document.places[key_path] = self.place(event)
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(events, key_path)
        if isinstance(event, yaml.SequenceStartEvent):
            items = iter(lambda: next(events), None)
            inside = takewhile(lambda e: not isinstance(e, yaml.SequenceEndEvent), items)
            return [self.value(item, events, (*key_path, i)) for i, item in enumerate(inside)]
        return self.scalar(event, key_path)

    def anchored(self, event: Any, events: Iterator[Any]) -> list[Any]:
        """Keep the events of an anchored value; return those after its first."""
        kept = [event]
        depth = int(isinstance(event, yaml.CollectionStartEvent))
        while depth:
            kept.append(following := next(events))
            depth += isinstance(following, yaml.CollectionStartEvent)
            depth -= isinstance(following, yaml.CollectionEndEvent)
            if len(kept) > 4 * MAX_VALUES:
                raise self.error(event, f"the description is too large: more than {MAX_VALUES} values", ())
        plain = copy(event)
        plain.anchor = None
        self.anchors[event.anchor] = [plain, *kept[1:]]
        return kept[1:]

    def scalar(self, event: Any, key_path: KeyPath) -> Any:
        self.characters += len(event.value)
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.scalars.resolve(yaml.ScalarNode, event.value, event.implicit)
        try:
            return self.scalars.construct_object(yaml.ScalarNode(tag, event.value))
        except (yaml.YAMLError, ValueError, OverflowError):
            raise self.error(event, f"'{event.value}' (tag {tag}) is not a plain value", key_path) from None

    def mapping(self, events: Iterator[Any], key_path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or "${" in event.value:  # values are computed only
                raise self.error(event, "a key must be a plain name", key_path)
            key = event.value
            if key in result:
                raise self.error(event, f"key '{key}' appears twice", (*key_path, key))
            here = (*key_path, key)
            result[key] = self.value(next(events), events, here)
            # Of an unknown or misspelt key the line of the key itself is wanted.
            self.document.places[here] = self.place(event)
        return result

    def place(self, event: Any) -> Place:
        mark = event.start_mark
        return Place(self.document.file, mark.line + 1, mark.column + 1)

    def error(self, event: Any, message: str, key_path: KeyPath) -> MachineError:
        at = self.place(event)
        return MachineError(
            message, place=Place(at.file, at.line, at.column, self.document.path(key_path) or None)
        )
