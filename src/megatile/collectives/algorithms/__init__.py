"""The algorithms, one file each, and how to find one; importing this package registers them all."""

from collections.abc import Mapping

from megatile.collectives.algorithms import binomial as binomial
from megatile.collectives.algorithms import bruck as bruck
from megatile.collectives.algorithms import by_dimension as by_dimension
from megatile.collectives.algorithms import direct as direct
from megatile.collectives.algorithms import dissemination as dissemination
from megatile.collectives.algorithms import double_tree as double_tree
from megatile.collectives.algorithms import halving_doubling as halving_doubling
from megatile.collectives.algorithms import hamilton as hamilton
from megatile.collectives.algorithms import hierarchical as hierarchical
from megatile.collectives.algorithms import in_network as in_network
from megatile.collectives.algorithms import in_network_tree as in_network_tree
from megatile.collectives.algorithms import node_tree as node_tree
from megatile.collectives.algorithms import pairwise as pairwise
from megatile.collectives.algorithms import rail_rings as rail_rings
from megatile.collectives.algorithms import ring as ring
from megatile.collectives.algorithms import ring_naive as ring_naive
from megatile.collectives.algorithms import tree as tree
from megatile.collectives.job import CollectiveError
from megatile.collectives.registry import ALGORITHMS, Algorithm, by_import_path


def algorithms() -> Mapping[str, Algorithm]:
    """All algorithms there are."""
    return ALGORITHMS


def find_algorithm(name: str) -> Algorithm:
    """An algorithm by registry name, or by import path (``package.module:function``)."""
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
