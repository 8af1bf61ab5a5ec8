"""Tile programs as CUDA C++, and its meaning on the CPU (``mt.compile(prog, target="cuda")``)."""
