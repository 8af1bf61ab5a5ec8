"""Collectives: decompositions into rings, algorithms, planner. Names load when first used."""

from megatile.core.public import PublicNames

_WHERE = {
    "ALGORITHMS": "registry",
    "CollectiveError": "job",
    "Explanation": "candidates",
    "Job": "job",
    "Prediction": "planner",
    "algorithm": "registry",
    "collective": "planner",
    "find_algorithm": "algorithms",
    "predict": "planner",
    "prove": "provenance",
    "sweep": "sweeps",
}
__getattr__ = PublicNames(__name__, {name: f"{__name__}.{module}" for name, module in _WHERE.items()})
