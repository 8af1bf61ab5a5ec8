"""``python -m megatile``."""

from megatile.cli.main import main

if __name__ == "__main__":
    main()
