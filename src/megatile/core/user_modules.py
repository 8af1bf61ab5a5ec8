"""Run a user's Python file as a module that can import what lies beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from megatile.core.errors import MegatileError, Place
from megatile.core.files import read_text
from megatile.core.frames import raised_at

MAX_SOURCE_BYTES = 16 << 20
"""Bytes of a Python file that are read."""


@contextmanager
def user_module(file: str | Path) -> Iterator[ModuleType]:
    """Execute a Python file and yield its module.

    Inside the block the module is registered and its folder is first on ``sys.path``, as for a script, so
    dataclasses and helper modules beside the file work. Afterwards ``sys.path`` and ``sys.modules`` are as
    before. An exception of the file is a `MegatileError` with its line.
    """
    path = Path(file)
    read_text(path, MAX_SOURCE_BYTES)
    folder = path.resolve().parent
    # A file named like a module that is in use (json.py) must not replace it.
    name = path.stem if path.stem not in sys.modules else f"megatile_user_{path.stem}"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader, origin=str(path))
    assert spec is not None
    module = module_from_spec(spec)
    search_path, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(folder))
    sys.modules[name] = module
    try:
        try:
            loader.exec_module(module)
        except MegatileError:
            raise
        except Exception as error:
            raise _at_line(error, str(path)) from error
        yield module
    finally:
        sys.path[:] = search_path
        new = {key.partition(".")[0] for key in sys.modules.keys() - known}
        own = {name} | {top for top in new if _lies_in(sys.modules.get(top), folder)}
        for key in [key for key in sys.modules.keys() - known if key.partition(".")[0] in own]:
            del sys.modules[key]


def _lies_in(module: ModuleType | None, folder: Path) -> bool:
    """Return whether a top-level module is a file or package directly in ``folder``."""
    file = getattr(module, "__file__", None)
    if file is not None:
        where = Path(file).resolve()
        return folder == (where.parent.parent if where.name == "__init__.py" else where.parent)
    return any(Path(part).resolve().parent == folder for part in getattr(module, "__path__", ()))


def _at_line(error: Exception, file: str) -> MegatileError:
    """Return an exception of a file as one sentence with the user's last line that it came through."""
    if isinstance(error, SyntaxError):
        return MegatileError(error.msg, place=Place(error.filename or file, error.lineno))
    return MegatileError(f"{type(error).__name__}: {error}", place=raised_at(error) or Place(file))
