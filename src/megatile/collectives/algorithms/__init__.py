"""The algorithms, one file each; importing this package registers them all."""

from megatile.collectives.algorithms import (
    by_dimension as by_dimension,
    direct as direct,
    dissemination as dissemination,
    double_tree as double_tree,
    halving_doubling as halving_doubling,
    hamilton as hamilton,
    hierarchical as hierarchical,
    in_network as in_network,
    in_network_tree as in_network_tree,
    rail_rings as rail_rings,
    ring as ring,
    ring_naive as ring_naive,
    tree as tree,
)
