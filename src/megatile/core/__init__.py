"""Errors, quantities and arithmetic: the lowest layer, which imports nothing else of megatile."""
