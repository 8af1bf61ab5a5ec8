"""The Program: what a tile function means, as plain data that prints, parses back and can be checked."""
