"""Layouts by TileLang's names: data do not depend on them, predicted times do (bank conflicts)."""

from megatile.compat.tilelang.hints import LAYOUTS

globals().update(LAYOUTS)
