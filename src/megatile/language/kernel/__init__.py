"""Kernels of processing elements, `tl`; users import `megatile.language.tl`."""
