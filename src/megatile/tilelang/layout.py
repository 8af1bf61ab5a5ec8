"""Layouts by TileLang's names: data do not depend on them, predicted times do (bank conflicts)."""

from megatile.compat.tilelang.launch import LAYOUTS

globals().update(LAYOUTS)
