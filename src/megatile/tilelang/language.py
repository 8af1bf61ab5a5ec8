"""TileLang's words: ``import megatile.tilelang.language as T``."""

from megatile.compat.tilelang.language import *  # noqa: F403
from megatile.compat.tilelang.language import __all__ as __all__, __getattr__ as __getattr__
