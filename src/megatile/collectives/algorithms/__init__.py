"""The algorithms, a file for each family, and how to find one; importing this package registers them all."""

from collections.abc import Mapping

from megatile.collectives.algorithms import (
    binomial as binomial,
    direct as direct,
    halving_doubling as halving_doubling,
    hierarchical as hierarchical,
    in_network as in_network,
    ring as ring,
    tree as tree,
)
from megatile.collectives.job import CollectiveError
from megatile.collectives.registry import ALGORITHMS, Algorithm, by_import_path


def algorithms() -> Mapping[str, Algorithm]:
    """Return all algorithms there are."""
    return ALGORITHMS


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm by registry name, or by import path (``package.module:function``)."""
    if not isinstance(name, str):
        raise CollectiveError(f"{name!r} is not the name of an algorithm", advice="use 'auto' or 'ring', …")
    if ":" in name or ("." in name and name not in ALGORITHMS):
        return _imported(name)
    return ALGORITHMS.find(name)


def _imported(path: str) -> Algorithm:
    found = by_import_path(path, "algorithm")
    if isinstance(found, Algorithm):
        return found
    for known in ALGORITHMS.values():
        if known.write is found:
            return known
    raise CollectiveError(f"'{path}' is not an algorithm", advice="decorate it with @algorithm(...)")
