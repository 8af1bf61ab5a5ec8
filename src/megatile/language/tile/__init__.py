"""The tile language `T`; users import it as `megatile.language`."""
