"""TileLang's spelling over megatile: ``import megatile.tilelang as tilelang``."""

from megatile.compat.tilelang import *  # noqa: F403
from megatile.compat.tilelang import __all__ as __all__
from megatile.tilelang import layout as layout
