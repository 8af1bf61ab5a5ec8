"""From a YAML document to a checked ``MachineSpec``: extends, parameters, overrides, schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megatile.core.arithmetic import evaluate
from megatile.core.cached import cached
from megatile.core.errors import MachineError, MegatileError, did_you_mean
from megatile.core.files import exists, is_inside
from megatile.core.public import extensions
from megatile.core.quantities import times
from megatile.hda import schema
from megatile.hda.document import Document, KeyPath, read_document
from megatile.hda.probe import probed

MAX_EXTENDS = 8
"""Files in a chain of ``extends``."""
MAX_COMPUTED = 10_000
"""Values of a machine file that are expressions."""
MAX_PROBLEMS = 1000
"""Problems of a file that are described: each takes a tenth of a millisecond."""
_TEMPLATE = re.compile(r"\$\{([^{}]*)\}")
_FACTOR = re.compile(r"(\d+(?:\.\d+)?)\s*x")
"""A factor in place of a value: ``2x``, ``0.5x``."""
MEASURED = ("latency", "hop_overhead")
"""Figures of networks that are part of the figures of transports."""
FOLDER = Path(__file__).parent / "machines"


def machine_names() -> list[str]:
    """Return names of all shipped machines."""
    return list(_stems(FOLDER))


@cached()
def _stems(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def find(name: str) -> Path | None:
    """Return the file of a shipped machine."""
    path = FOLDER / f"{name}.yaml"
    return path if name in _stems(FOLDER) else None


def resolve(document: Document, overrides: Mapping[str, Any], trust: bool = False) -> Document:
    """Apply ``extends``, then overrides, then parameters; ``trust`` allows bases outside a file's folder."""
    document, measured = _extend(document, trust)
    _override(document, overrides)
    for name, network in _networks(document.data).items():
        for key in MEASURED if name in measured else ():
            before, now = (each.get(key, "0 ns") for each in (measured[name], network))
            if before != now:
                network.setdefault(f"measured_{key}", before)
    _parameters(document)
    return document


def _networks(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: Any = data.get("networks")
    return {n["name"]: n for n in found} if _named(found) else {}


def other_form(data: Mapping[str, Any]) -> Any:
    """Return the module above that reads a description of this form (``reads``, ``to_hda``); None for our
    own."""
    forms = () if "hw_spec" in data else extensions(__name__)
    return next((form for form in forms if form.reads(data)), None)


# extends


def _extend(document: Document, trust: bool) -> tuple[Document, dict[str, dict[str, Any]]]:
    """``{extends: base, …}`` → base with the rest merged over it, as often as needed; and the networks as
    they were in the last file with figures of transports, which hold for these."""
    layers = [document]
    while "extends" in layers[-1].data:
        top = layers[-1]
        if len(layers) > MAX_EXTENDS:
            raise top.error(f"'extends' is circular or nested more than {MAX_EXTENDS} deep", ("extends",))
        layers.append(_base(top, trust))
    result, measured = Document({}, document.file), {}
    while layers:
        layer = layers.pop()
        result = merge(result, layer) if result.data else layer
        if "transports" in layer.data:
            measured = {name: dict(network) for name, network in _networks(result.data).items()}
    return result, measured


def _base(document: Document, trust: bool) -> Document:
    name = document.data["extends"]
    if not isinstance(name, str):
        raise document.error(f"extends needs the name or path of a machine, not {name!r}", ("extends",))
    folder = Path(document.file or ".").parent
    beside = folder / name
    path = beside if Path(name).suffix in (".yaml", ".yml") else find(name)
    outside = Path(name).is_absolute() or not is_inside(beside, folder)
    if path == beside and outside and not trust:
        raise document.error(
            f"cannot extend '{name}': it is not in the folder of this file",
            ("extends",),
            "put it beside this file, or allow it: --trust (trust=True)",
        )
    if path is None or not exists(path):
        raise document.error(
            f"there is no machine '{name}' to extend",
            ("extends",),
            "name a shipped machine (megatile machines) or a .yaml file beside this one",
        )
    base = read_document(path)
    if path != beside and isinstance(base.data.get("parameters"), dict):
        base.data["parameters"].update(probed(name))
    return base


def merge(base: Document, over: Document) -> Document:
    """Mappings merge by key, lists of named members by name (``remove: true`` drops one); others replace."""
    merged = Document({}, over.file)

    def copy(value: Any, source: Document, key_path: KeyPath, to: KeyPath) -> Any:
        if key_path in source.places:
            merged.places[to] = source.places[key_path]
        if isinstance(value, dict):
            return {k: copy(v, source, (*key_path, k), (*to, k)) for k, v in value.items()}
        if isinstance(value, list):
            return [copy(v, source, (*key_path, i), (*to, i)) for i, v in enumerate(value)]
        return value

    def mappings(
        a: dict[str, Any], b: dict[str, Any], wa: KeyPath, wb: KeyPath, to: KeyPath
    ) -> dict[str, Any]:
        result = {}
        for key in [*a, *(k for k in b if k not in a)]:
            ka, kb, kt = (*wa, key), (*wb, key), (*to, key)
            if key not in b:
                result[key] = copy(a[key], base, ka, kt)
            elif key not in a:
                result[key] = copy(b[key], over, kb, kt)
            else:
                result[key] = values(a[key], b[key], ka, kb, kt)
        return result

    def values(a: Any, b: Any, wa: KeyPath, wb: KeyPath, to: KeyPath) -> Any:
        if isinstance(a, dict) and isinstance(b, dict):
            return mappings(a, b, wa, wb, to)
        if _named(a) and _named(b) and b:
            return members(a, b, wa, wb, to)
        return copy(b, over, wb, to)

    def members(a: list[Any], b: list[Any], wa: KeyPath, wb: KeyPath, to: KeyPath) -> list[Any]:
        later: dict[str, int] = {}
        for j, item in enumerate(b):
            if later.setdefault(item["name"], j) != j:
                raise over.error(f"'{item['name']}' appears twice", (*wb, j), "give each its own name")
        result: list[Any] = []
        for i, item in enumerate(a):
            j = later.pop(item["name"], -1)
            at = (*to, len(result))
            if j < 0:
                result.append(copy(item, base, (*wa, i), at))
            elif not b[j].get("remove"):
                result.append(mappings(item, b[j], (*wa, i), (*wb, j), at))
        for j in later.values():
            if b[j].get("remove"):
                names = [item["name"] for item in a]
                raise over.error(
                    f"there is no '{b[j]['name']}' to remove", (*wb, j), did_you_mean(b[j]["name"], names)
                )
            result.append(copy(b[j], over, (*wb, j), (*to, len(result))))
        return result

    rest = {k: v for k, v in over.data.items() if k != "extends"}
    merged.data = mappings(base.data, rest, (), (), ())
    return merged


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, dict) and isinstance(v.get("name"), str) for v in value
    )


# overrides and parameters


def _override(document: Document, overrides: Mapping[str, Any]) -> None:
    """``nodes=4`` sets a parameter, ``networks.nvlink.bandwidth='900 GB/s'`` one value, ``…='2x'`` doubles
    it."""
    parameters = document.data.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    for name, value in overrides.items():
        if name in parameters:
            parameters[name] = value
        elif "." in name:
            _set_path(document, name, value)
        else:
            paths = _value_paths(document.data)
            near = did_you_mean(name, [*parameters, *paths])
            every = did_you_mean(name, parameters or paths, what="parameters" if parameters else "values")
            raise MachineError(
                f"machine '{document.data.get('name', document.file)}' has no parameter '{name}'",
                advice=near if near.startswith("did") else every,
            )


def _value_paths(data: Mapping[str, Any]) -> list[str]:
    """Return paths of values that are often changed, like ``memory.hbm.size``."""
    parts = [(section, data.get(section)) for section in ("memory", "networks", "engines")]
    keys = ("size", "bandwidth", "throughput", "latency")
    entries = [(section, entry) for section, part in parts if _named(part) for entry in part or ()]
    return [f"{section}.{entry['name']}.{key}" for section, entry in entries for key in keys if key in entry]


def _set_path(document: Document, path: str, value: Any) -> None:
    here: Any = document.data
    steps = path.split(".")
    whole = next((f"{key}.{path}" for key, part in here.items() if _holds(part, steps[0])), None)
    if steps[0] not in here and whole is not None:
        raise MachineError(f"there is no '{steps[0]}' in '{path}'", advice=f"did you mean '{whole}'?")
    for step in steps[:-1]:
        here = _step(here, step, path)
    if not isinstance(here, dict):
        raise MachineError(
            f"there is no '{path}' to set", advice="name a key, like networks.nvlink.bandwidth"
        )
    match = _FACTOR.fullmatch(value.strip()) if isinstance(value, str) else None
    here[steps[-1]] = value if match is None else _multiplied(here.get(steps[-1]), float(match[1]), path)


def _multiplied(value: Any, factor: float, path: str) -> Any:
    """Return a figure, or a figure of every dtype, times a factor."""
    if isinstance(value, dict) and value:
        return {key: _multiplied(part, factor, f"{path}.{key}") for key, part in value.items()}
    found = times(value, factor)
    if found is None or factor <= 0:
        raise MachineError(
            f"'{path}' has no figure to multiply by {factor:g}", advice="give a value with its unit"
        )
    return found


def _holds(part: Any, step: str) -> bool:
    """Return whether a section has an entry of this name."""
    return step in part if isinstance(part, dict) else _named(part) and any(i["name"] == step for i in part)


def _step(here: Any, step: str, path: str) -> Any:
    if isinstance(here, dict) and step in here:
        return here[step]
    names = list(here) if isinstance(here, dict) else []
    if _named(here):
        names = [item["name"] for item in here]
        if step in names:
            return here[names.index(step)]
    raise MachineError(f"there is no '{step}' in '{path}'", advice=did_you_mean(step, names))


def _parameters(document: Document) -> None:
    """Replace ``${nodes * 8}`` everywhere by its value."""
    parameters = document.data.pop("parameters", {})
    if not isinstance(parameters, dict):
        raise document.error("parameters must be names with values", ("parameters",))
    for name, value in parameters.items():
        if not isinstance(value, (str, int, float)):
            raise document.error(f"parameter '{name}' must be a number or a text", ("parameters", name))
        if isinstance(value, str) and "${" in value:
            raise document.error(
                f"parameter '{name}' is computed", ("parameters", name), "compute where it is used"
            )

    left = iter(range(MAX_COMPUTED))

    def computed(match: re.Match[str]) -> Any:
        if next(left, None) is None:
            raise MachineError(f"more than {MAX_COMPUTED} values are computed")
        return evaluate(match.group(1), parameters)

    def fill(value: Any, key_path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {k: fill(v, (*key_path, k)) for k, v in value.items()}
        if isinstance(value, list):
            return [fill(v, (*key_path, i)) for i, v in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            whole = _TEMPLATE.fullmatch(value.strip())
            if whole:
                return computed(whole)
            found = _TEMPLATE.sub(lambda match: str(computed(match)), value)
            if _TEMPLATE.search(found):  # a file written from this machine would compute it again
                raise MachineError(f"'{value}' computes what is computed again", advice="nest no ${...}")
            return found
        except MegatileError as problem:
            raise document.error(problem.message, key_path, problem.advice) from None

    document.data = {key: fill(value, (key,)) for key, value in document.data.items()}
    document.parameters = parameters


# schema

_FIELDS: dict[tuple[str, ...], Any] = {
    (): schema.MachineSpec,
    ("hw_spec",): schema.HardwareSpecification,
    ("hw_spec", "pe"): schema.ComputeUnit,
    ("hw_spec", "pe_groups"): schema.ComputeUnit,
    ("hw_abstr",): schema.ScaleView,
    ("memory",): schema.MemorySpec,
    ("networks",): schema.NetworkSpec,
    ("engines",): schema.EngineSpec,
    ("engines", "throughput"): schema.EngineSpec,
    ("control",): schema.ControlSpec,
    ("control", "host_link"): schema.HostLinkSpec,
    ("control", "launch"): schema.LaunchSpec,
    ("channels",): schema.ChannelSpec,
    ("transports",): schema.TransportSpec,
    ("transports", "protocols"): schema.ProtocolFiguresSpec,
    ("kernels",): schema.KernelSpec,
}


def validate(document: Document) -> Any:
    """Return the checked description, or the first problem (and how many more there are)."""
    try:
        return schema.MachineSpec.model_validate(document.data)
    except ValidationError as failed:
        found, hidden = _described(document, failed)
        # The garbage collector does not see what pydantic's error holds: in a circle it would stay for good.
        failed.__traceback__ = None
    first = min(found, key=_is_missing)
    if len(found) + hidden > 1:
        more = f"; {len(found) + hidden - 1} more, shown by 'megatile machine check'"
        raise MachineError(first.message + more, place=first.place, advice=first.advice)
    raise first


def schema_problems(document: Document) -> list[MachineError]:
    """Return everything that the schema alone finds wrong, in the order of the file, up to `MAX_PROBLEMS`."""
    try:
        schema.MachineSpec.model_validate(document.data)
    except ValidationError as failed:
        found, more = _described(document, failed)
        return [*found, document.error(f"{more} more problems are not shown")] if more else found
    return []


def _described(document: Document, failed: ValidationError) -> tuple[list[MachineError], int]:
    """Return the first problems in our words, and how many more there are."""
    errors = islice(failed.errors(include_url=False, include_context=True), MAX_PROBLEMS)
    described = [describe(document, error, _fields) for error in errors]
    paths = [(p.place and p.place.path) or "" for p in described]
    meant = {(path.rpartition(".")[0], p.advice) for p, path in zip(described, paths, strict=True)}
    found = [
        p
        for p, path in zip(described, paths, strict=True)
        if not _is_missing(p) or (path, f"did you mean {p.message.split()[1]}?") not in meant
    ]
    found.sort(key=lambda p: ((p.place and p.place.line) or 0, _is_missing(p)))
    return found, failed.error_count() - len(described)


def _is_missing(problem: MachineError) -> bool:
    """A misspelt key is unknown and missing at once; that it is missing says less."""
    return problem.message.endswith("is missing")


def describe(document: Document, error: Any, keys_at: Callable[[KeyPath], list[str]]) -> MachineError:
    """Return one finding of pydantic in our words, at its place; ``keys_at`` lists the keys allowed
    somewhere."""
    loc = tuple(step for step in error["loc"] if step != "[key]")
    key_path = _in_file(document.data, loc)
    last = str(loc[-1]) if loc else ""
    kind = error["type"]
    if kind in _PLAIN_WORDS:
        return document.error(f"must be {_PLAIN_WORDS[kind]}, got {_shown(error['input'])}", key_path)
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return document.error(
            f"unknown key '{last}'", key_path, did_you_mean(last, keys_at(key_path[:-1]), what="keys")
        )
    if kind.startswith("missing"):
        return document.error(
            f"key '{last}' is missing", key_path[:-1] if key_path and key_path[-1] == last else key_path
        )
    if kind == "greater_than_equal":
        return document.error(
            f"must be at least {error['ctx']['ge']:g}, got {_shown(error['input'])}", key_path
        )
    if kind == "literal_error":
        expected = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return document.error(
            f"'{error['input']}' is not known here", key_path, did_you_mean(str(error["input"]), expected)
        )
    message = error["msg"].removeprefix("Value error, ")
    text, _, advice = message.partition(" (try: ")
    return document.error(text[:1].lower() + text[1:], key_path, advice.removesuffix(")") or None)


_PLAIN_WORDS = {
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "dataclass_type", "model_type"), "keys and values"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    "string_type": "a string",
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _in_file(data: Any, loc: tuple[str | int, ...]) -> KeyPath:
    """Pydantic's location without the names of union branches, which are not in the file."""
    key_path: list[str | int] = []
    here = data
    for place, step in enumerate(loc):
        inside = (isinstance(here, dict) and step in here) or (
            isinstance(here, list) and isinstance(step, int) and step < len(here)
        )
        if inside:
            here = here[step]
            key_path.append(step)
        elif place == len(loc) - 1:
            key_path.append(step)
    return tuple(key_path)


def _fields(key_path: KeyPath) -> list[str]:
    """Return the keys that may stand at this place of a description."""
    names = tuple(step for step in key_path if isinstance(step, str))
    if len(names) > 2 and names[0] == "transports":  # transports.SCALE.LIBRARY.protocols.NAME
        names = ("transports", *names[3:4])
    owner = _FIELDS.get(names, schema.MachineSpec)
    keys = getattr(owner, "model_fields", None) or getattr(owner, "__dataclass_fields__", {})
    return [*keys, *(("extends", "parameters") if owner is schema.MachineSpec else ())]
