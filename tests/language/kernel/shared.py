"""What several files of tests/language/kernel share."""

from __future__ import annotations

import numpy as np


def numbers(units, elements, dtype="f2"):
    return np.random.default_rng(units).integers(-3, 4, (units, elements)).astype(dtype)
