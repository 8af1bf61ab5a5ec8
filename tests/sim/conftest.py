"""Helpers of this folder (`toys`, `random_plans`) and the SimPy models of the benchmarks are importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parents[1] / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
