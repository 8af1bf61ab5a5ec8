"""``ccl.yaml``: the collective kernels there are, and how each is wired."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, resources
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from megatile.collectives.job import CollectiveError
from megatile.collectives.registry import TRUST
from megatile.core.arguments import no_none
from megatile.core.errors import MachineError, MegatileError, Place, did_you_mean
from megatile.core.files import exists, read_text
from megatile.core.quantities import whole
from megatile.hda.document import Document, parse_document

KEYS = (
    "module",
    "topology",
    "mapper",
    "validator",
    "buffer_kind",
    "n_slots",
    "slot_size",
    "n_elem",
    "world_size",
    "root_cube",
    "backpressure",
    "vc_chunk_size",
    "ipcq_credit_size_bytes",
    "reduce_op",
    "dtype",
)
"""What an entry may declare; keys that begin with ``kernel_`` go to the kernel as they are."""


STANDARD: Mapping[str, Any] = {
    "buffer_kind": "tcm",
    "n_slots": 4,
    "slot_size": 4096,
    "n_elem": 8,
    "reduce_op": "sum",
    "dtype": "f16",
}
"""What holds where neither the defaults nor the entry say anything.

``root_cube`` is then the last one; ``mapper`` follows from the module and ``world_size`` (`mapper_name`)."""
LEAST = {
    "n_slots": 1,
    "slot_size": 1,
    "n_elem": 1,
    "world_size": 1,
    "root_cube": 0,
    "vc_chunk_size": 1,
    "ipcq_credit_size_bytes": 0,
}
SHAPE = "write kernel(t_ptr, …, tl) and kernel_args(*, n_elem, world_size, **config)"
BACKPRESSURE = ("sleep",)
"""What a sender does while its queue is full: it sleeps until the credit wakes it."""
MAX_FILE_BYTES = 4 << 20
"""Bytes of a ccl.yaml that are read."""
_OWN_KERNELS = "megatile.collectives.kernels."
NAMES = ("module", "topology", "mapper", "validator", "buffer_kind", "reduce_op", "dtype")


class CclFile(dict[str, Any]):
    """A configuration that was read from a file, whose errors have lines."""

    def __init__(self, data: Mapping[str, Any], document: Document) -> None:
        super().__init__(data)
        self.document = document


class Entry(dict[str, Any]):
    """The settings of one algorithm; ``places`` says where each stands in its file."""

    places: Mapping[str, Place] = MappingProxyType({})


@contextmanager
def at_key(config: Mapping[str, Any], key: str) -> Iterator[None]:
    """Give errors about a setting the place where it stands in its file."""
    try:
        yield
    except MegatileError as problem:
        place = getattr(config, "places", {}).get(key)
        if place is None or problem.place is not None:
            raise
        raise CollectiveError(problem.message, place=place, advice=problem.advice) from None


def given(config: Mapping[str, Any]) -> Entry:
    """What a configuration says; null says nothing, but a mode must be named."""
    said = Entry({k: v for k, v in config.items() if v is not None or k == "backpressure"})
    said.places = getattr(config, "places", said.places)
    return said


def load_ccl_config(path: str | Path | None = None) -> dict[str, Any]:
    """The configuration from a file; without one ``./ccl.yaml``, or else the one that comes with megatile."""
    if path is None and exists("ccl.yaml"):
        path = "ccl.yaml"
    if path is None:
        text = resources.files("megatile.compat.ccl").joinpath("ccl.yaml").read_text(encoding="utf-8")
        name = "ccl.yaml"
    else:
        name = str(path)
        text = read_text(path, MAX_FILE_BYTES, CollectiveError)
    try:
        document = parse_document(text, name)
    except MachineError as problem:
        advice = "start with algorithms:" if "hw_spec" in (problem.advice or "") else problem.advice
        raise CollectiveError(problem.message, place=problem.place, advice=advice) from None
    return check_config(CclFile(document.data, document), name)


def check_config(data: Any, name: str = "ccl.yaml") -> dict[str, Any]:
    """Refuse what is not a configuration, with the file, the line and the key."""
    none = CollectiveError(f"{name} declares no algorithms", advice="write them under 'algorithms:'")
    if not isinstance(data, Mapping) or not isinstance(data.get("algorithms"), Mapping):
        raise none
    paths = [(key,) for key in data] + [("algorithms", key) for key in data["algorithms"]]
    for path in paths:
        if not isinstance(path[-1], str):
            said = f"the key {path[-1]!r} is not a name"
            raise CollectiveError(said, place=_place(data, path, name), advice="write a name")
    if not data["algorithms"]:
        raise none
    for entry, values in {"defaults": data.get("defaults") or {}, **data["algorithms"]}.items():
        where = ("defaults",) if entry == "defaults" else ("algorithms", entry)
        if not isinstance(values, Mapping):
            raise CollectiveError("an entry is keys and values", place=_place(data, where, name))
        for key in values:
            known = key in KEYS or (isinstance(key, str) and key.startswith("kernel_"))
            if not known and (entry, key) != ("defaults", "algorithm"):
                advice, place = did_you_mean(str(key), KEYS, what="keys"), _place(data, (*where, key), name)
                raise CollectiveError(f"unknown key '{key}'", place=place, advice=advice)
        checked = Entry(values)
        checked.places = {key: _place(data, (*where, key), name) for key in values}
        check_values(checked)
    return data if isinstance(data, CclFile) else dict(data)


def _place(data: Mapping[str, Any], path: tuple[Any, ...], name: str) -> Place:
    if isinstance(data, CclFile):
        return data.document.place(path)
    return Place(name, path=".".join(map(str, path)))


def check_values(values: Mapping[str, Any]) -> None:
    """Refuse numbers and names that cannot be."""
    for key, least in LEAST.items():
        value = values.get(key)
        if value is not None and (whole(value) is None or value < least):
            with at_key(values, key):
                raise CollectiveError(f"{key} cannot be {value!r}", advice=f"use {least} or more")
    mode = values.get("backpressure", "sleep")
    if mode not in BACKPRESSURE:
        with at_key(values, "backpressure"):
            raise CollectiveError(
                f"there is no backpressure {mode!r}",
                advice="use sleep: a sender whose queue is full waits for the credit",
            )
    for key in NAMES:
        if key in values and not (isinstance(values[key], str) or hasattr(values[key], "kernel")):
            with at_key(values, key):
                raise CollectiveError(f"{key} cannot be {values[key]!r}", advice="use a name")


def kernel_module(module: Any, *, trust: bool = False) -> Any:
    """A module with ``kernel`` and ``kernel_args``: itself, or by name.

    A name is that of a kernel of megatile, or of an entry point of the group ``megatile.kernels``; any other
    module is imported, which runs its code, with ``trust=True`` only.
    """
    found = module
    if isinstance(module, str):
        installed = entry_points(group="megatile.kernels", name=module)
        if not (trust or installed or module.startswith(_OWN_KERNELS)):
            raise CollectiveError(f"importing the module '{module}' would run its code", advice=TRUST)
        try:
            found = next(iter(installed)).load() if installed else _imported(module)
        except (ImportError, TypeError, ValueError) as problem:  # "." and "" are no names of modules
            raise CollectiveError(f"module '{module}' cannot be imported: {problem}") from None
    for needed in ("kernel", "kernel_args"):
        if not callable(getattr(found, needed, None)):
            name = getattr(found, "__name__", str(found))
            raise CollectiveError(f"module '{name}' has no function '{needed}'", advice=SHAPE)
    return found


def _imported(module: str) -> Any:
    """Import a module, also one in the working folder, as Python itself would for a script there."""
    before = list(sys.path)
    sys.path.append(str(Path.cwd()))
    try:
        return import_module(module)
    finally:
        sys.path[:] = before


@no_none
def resolve_algorithm_config(cfg: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Defaults, overridden by the entry of an algorithm: the named, the default, or the first one."""
    defaults = dict(cfg.get("defaults") or {})
    known = check_config(cfg)["algorithms"]
    chosen = name or defaults.pop("algorithm", None) or next(iter(known), None)
    if chosen not in known:
        raise CollectiveError(
            f"unknown algorithm '{chosen}'; there are {', '.join(sorted(known))}",
            place=None
            if name or not isinstance(cfg, CclFile)
            else _place(cfg, ("defaults", "algorithm"), ""),
            advice=did_you_mean(str(chosen), known, what="algorithms"),
        )
    own = given(known[chosen])
    merged = Entry({**STANDARD, **given(defaults), **own, "algorithm": chosen})
    if isinstance(cfg, CclFile):
        merged.places = {
            key: _place(cfg, ("algorithms", chosen, key) if key in own else ("defaults", key), "")
            for key in merged
            if key in own or key in defaults
        }
    if "module" not in merged:
        place = _place(cfg, ("algorithms", chosen), "") if isinstance(cfg, CclFile) else None
        raise CollectiveError(f"algorithm '{chosen}' declares no module", place=place)
    return merged


def check_reduction(config: Mapping[str, Any], module: Any) -> None:
    """Refuse a reduction that the kernel does not do; a module says which it can in ``REDUCE_OPS``."""
    able = getattr(module, "REDUCE_OPS", ("sum",))
    if config["reduce_op"] not in able:
        name = getattr(module, "__name__", "the module").rpartition(".")[2]
        raise CollectiveError(
            f"{name} does not reduce by '{config['reduce_op']}'",
            advice=did_you_mean(config["reduce_op"], able, what="reductions")
            or "declare REDUCE_OPS in the module, and let its kernel follow reduce_op",
        )
