"""Names that ``impl=`` may force for each primitive; whoever adds a way to do one registers its name here."""

from __future__ import annotations

from megatile.core.errors import MegatileError, did_you_mean

_KNOWN: dict[str, set[str]] = {
    "Copy": {"lsu", "tma", "dsmem", "copy_engine", "nic", "software_channel"},
    "Gemm": {"tensor", "vector", "cluster"},
    "Fill": {"vector"},
    "Reduce": {"shuffle", "shared"},
    "Cumsum": {"vector"},
    "Collective": {"planner", "in_network", "shared", "shuffle", "software_channel"},
}


def add_implementation(primitive: str, name: str) -> None:
    """``impl=name`` is known for a primitive, e.g. ``add_implementation("Gemm", "my_wgmma")``."""
    _KNOWN[primitive].add(name)


def implementations(primitive: str) -> set[str]:
    return set(_KNOWN[primitive])


def check_implementation(primitive: str, name: str) -> None:
    if name not in _KNOWN[primitive]:
        raise MegatileError(
            f"there is no implementation '{name}' of {primitive.lower()}",
            advice=did_you_mean(name, _KNOWN[primitive], what="implementations"),
        )
