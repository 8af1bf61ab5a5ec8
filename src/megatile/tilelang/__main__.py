"""``python -m megatile.tilelang FILE.py [ARGUMENTS]`` runs a file whose ``import tilelang`` megatile answers;
``python -m megatile.tilelang -m MODULE [ARGUMENTS]`` a module, such as ``pytest``. Only this process changes.
"""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

from megatile.compat.tilelang.takeover import installed
from megatile.core.files import exists

USAGE = (
    "python -m megatile.tilelang FILE.py [ARGUMENTS], or python -m megatile.tilelang -m MODULE [ARGUMENTS]"
)


def main(arguments: list[str]) -> None:
    module = arguments[1:] if arguments[:1] == ["-m"] else []
    if not module and (not arguments or arguments[0].startswith("-")):
        sys.exit(f"error: give a Python file or -m and a module: {USAGE}")
    if not module and not exists(arguments[0]):
        sys.exit(f"error: there is no file '{arguments[0]}'; usage: {USAGE}")
    if module and not _exists(module[0]):
        sys.exit(f"error: there is no module '{module[0]}'; usage: {USAGE}")
    with installed() as comparisons:
        try:
            if module:
                sys.argv = module
                runpy.run_module(module[0], run_name="__main__", alter_sys=True)
            else:
                sys.argv = arguments
                sys.path[0] = str(Path(arguments[0]).resolve().parent)
                runpy.run_path(arguments[0], run_name="__main__")
        finally:
            if comparisons.skipped:
                print(comparisons, file=sys.stderr)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # of a package that does not exist, or of no name
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
