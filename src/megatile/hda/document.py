"""A YAML file as plain data that remembers the line of every value.

The file is untrusted: only plain YAML values are built, sizes are bounded, and whatever is wrong with it
becomes one :class:`~megatile.core.errors.MachineError` with file, line and path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from megatile.core.errors import MachineError, Place
from megatile.core.files import read_text

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LARGEST_FILE = 4 * 2**20
MOST_VALUES = 200_000
DEEPEST = 40

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
        """The place of a value, or of the nearest thing around it."""
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
    return parse_document(read_text(path, LARGEST_FILE, MachineError, advice), str(path))


def parse_document(text: str, file: str | None = None) -> Document:
    """Read YAML text."""
    try:
        _check_depth(text, file)
        node = yaml.compose(text, Loader=LOADER)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        what = getattr(problem, "problem", None) or "this is not YAML"
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        raise MachineError(
            f"not valid YAML: {what}", place=place, advice="check indentation, quotes and brackets near here"
        ) from None
    except (RecursionError, ValueError) as problem:
        raise MachineError(f"not valid YAML: {problem}", place=Place(file)) from None
    if not isinstance(node, yaml.MappingNode):
        kind = "holds a sequence" if isinstance(node, yaml.SequenceNode) else "holds a scalar"
        kind = "is empty" if node is None else kind
        raise MachineError(
            f"the description {kind}, not keys and values",
            place=Place(file, 1),
            advice="start with hw_spec: and hw_abstr:",
        )
    document = Document({}, file)
    document.data = _Builder(document).mapping(node, ())
    return document


def _check_depth(text: str, file: str | None) -> None:
    """Composing recurses in native code, which crashes on deep nesting; reading events does not."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST + 1:
            mark = event.start_mark
            place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
            raise MachineError("the description is nested too deeply", place=place)


class _Builder:
    """YAML nodes → data. Scalars are resolved by YAML's own safe rules, nothing else is constructed."""

    def __init__(self, document: Document):
        self.document = document
        self.values = 0
        self.scalars = yaml.SafeLoader("")

    def value(self, node: yaml.Node, key_path: KeyPath) -> Any:
        self.values += 1
        if self.values > MOST_VALUES or len(key_path) > DEEPEST:
            raise self.error(node, "the description is too large or nested too deeply", key_path)
        self.document.places[key_path] = self.place(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key_path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*key_path, i)) for i, item in enumerate(node.value)]
        try:
            return self.scalars.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, OverflowError):
            raise self.error(
                node, f"'{node.value}' (tag {node.tag}) is not a plain value", key_path
            ) from None

    def mapping(self, node: yaml.MappingNode, key_path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if (
                not isinstance(key_node, yaml.ScalarNode) or "${" in key_node.value
            ):  # values are computed only
                raise self.error(key_node, "a key must be a plain name", key_path)
            key = key_node.value
            if key in result:
                raise self.error(key_node, f"key '{key}' stands twice", (*key_path, key))
            here = (*key_path, key)
            result[key] = self.value(value_node, here)
            # Of an unknown or misspelt key the line of the key itself is wanted.
            self.document.places[here] = self.place(key_node)
        return result

    def place(self, node: yaml.Node) -> Place:
        mark = node.start_mark
        return Place(self.document.file, mark.line + 1, mark.column + 1)

    def error(self, node: yaml.Node, message: str, key_path: KeyPath) -> MachineError:
        at = self.place(node)
        return MachineError(
            message, place=Place(at.file, at.line, at.column, self.document.path(key_path) or None)
        )
