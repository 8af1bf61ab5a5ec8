"""The old place of ``megatile.core.expr``."""

from megatile.core.expr import *  # noqa: F403
