"""Passes that need the machine: where tiles lie, and what does each statement."""
