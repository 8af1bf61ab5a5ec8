"""The rewriter both languages share, and Python's meaning of what it makes."""
