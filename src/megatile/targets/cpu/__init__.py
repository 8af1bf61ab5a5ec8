"""Tile programs as machine code: C with vector extensions, by the compiler of this computer."""
