"""Set-up for all tests: pictures without a screen, property tests without a stopwatch."""

import os

from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")

# A busy machine must not make a property test fail.
settings.register_profile("megatile", deadline=None)
settings.load_profile("megatile")
