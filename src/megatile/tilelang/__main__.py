"""``python -m megatile.tilelang FILE.py …`` runs a file as TileLang would.

``MEGATILE_AS_TILELANG=1 python FILE.py`` means the same; where megatile runs from its sources, after
``python -m megatile.tilelang --install``.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from megatile.compat.tilelang import takeover


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--install"]:
        print(f"wrote {takeover.write_startup_file(*arguments[1:2])}")
    elif not arguments or not Path(arguments[0]).is_file():
        sys.exit("error: give a Python file: python -m megatile.tilelang FILE.py (or --install)")
    else:
        takeover.install()
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
