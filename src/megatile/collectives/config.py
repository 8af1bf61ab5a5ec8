"""``ccl.yaml``: the collective kernels there are, and how each is wired."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from megatile.collectives.job import CollectiveError
from megatile.core.errors import Place, did_you_mean

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


def load_ccl_config(path: str | Path | None = None) -> dict[str, Any]:
    """The configuration from a file, or the one that comes with megatile."""
    import yaml

    if path is None:
        text = resources.files("megatile.collectives").joinpath("ccl.yaml").read_text(encoding="utf-8")
        name = "ccl.yaml"
    else:
        name = str(path)
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as problem:
            raise CollectiveError(f"cannot read {path}: {problem.strerror}") from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise CollectiveError(f"{name} is not YAML: {problem}") from None
    return check_config(data, name)


def check_config(data: Any, name: str = "ccl.yaml") -> dict[str, Any]:
    """Refuse what is not a configuration, with the entry and the key."""
    if not isinstance(data, Mapping) or not isinstance(data.get("algorithms"), Mapping):
        raise CollectiveError(f"{name} declares no algorithms", advice="write them under 'algorithms:'")
    for entry, values in {"defaults": data.get("defaults") or {}, **data["algorithms"]}.items():
        place = Place(name, path=entry)
        if not isinstance(values, Mapping):
            raise CollectiveError("an entry is keys and values", place=place)
        for key in values:
            if (
                key not in KEYS
                and not key.startswith("kernel_")
                and (entry, key) != ("defaults", "algorithm")
            ):
                advice = did_you_mean(key, KEYS, what="keys")
                raise CollectiveError(f"unknown key '{key}'", place=place, advice=advice)
    return dict(data)


def resolve_algorithm_config(cfg: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Defaults, overridden by the algorithm's entry (the default algorithm's if no name is given)."""
    defaults = dict(cfg.get("defaults") or {})
    chosen = name or defaults.pop("algorithm", None)
    known = cfg["algorithms"]
    if chosen not in known:
        advice = did_you_mean(str(chosen), known, what="algorithms")
        listed = ", ".join(sorted(known))
        raise CollectiveError(f"unknown algorithm '{chosen}'; there are {listed}", advice=advice)
    merged = {**defaults, **known[chosen], "algorithm": chosen}
    for key in ("module", "topology"):
        if key not in merged:
            raise CollectiveError(f"algorithm '{chosen}' declares no {key}")
    return merged
