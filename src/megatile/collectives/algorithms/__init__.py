"""The algorithms, one file each; importing this package registers them all."""

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
from megatile.collectives.algorithms import pairwise as pairwise
from megatile.collectives.algorithms import rail_rings as rail_rings
from megatile.collectives.algorithms import ring as ring
from megatile.collectives.algorithms import ring_naive as ring_naive
from megatile.collectives.algorithms import tree as tree
