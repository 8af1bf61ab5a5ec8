"""``megatile`` and ``python -m megatile``."""

import sys


def main() -> None:
    """The command line. Ctrl-C while it is still being loaded ends it as quietly as later."""
    try:
        from megatile.cli.main import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
