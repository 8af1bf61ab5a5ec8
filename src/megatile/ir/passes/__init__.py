"""Passes over Programs: each a frozen dataclass with a name and ``apply(program)``, one per file."""
