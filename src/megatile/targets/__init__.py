"""Targets: one folder each; the interpreter defines the language."""
