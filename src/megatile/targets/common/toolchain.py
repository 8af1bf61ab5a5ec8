"""The C compiler of this computer, and the code it has made."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from megatile.core.cached import CACHE_VARIABLE, cache_directory, cache_key, cached, read_cached, write_cached
from megatile.core.stopped import LOOK_SECONDS, StopWatch
from megatile.core.version import __version__
from megatile.hda.probe import host_flags
from megatile.targets.common.errors import CompileError

FLAGS = ("-O2", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-w")
_LANGUAGES = {
    "c": ("CC", ("cc", "gcc", "clang"), ("-std=gnu11",), ("-lm", "-lpthread")),
    "c++": ("CXX", ("c++", "g++", "clang++"), ("-std=gnu++17",), ("-lm",)),
}
"""Of each language: the variable that names its compiler, the usual compilers, its flags and libraries."""
_TIMEOUT_SECONDS = 600
"""Time that a compiler may take."""


def compiler(language: str = "c") -> list[str]:
    """Return the command of the first there is: of ``$CC`` (``$CXX``), the usual ones, or the package
    ziglang."""
    variable, usual, _, _ = _LANGUAGES[language]
    try:
        given = shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise CompileError(f"${variable} is not a command: {error}", advice=f"unset {variable}") from None
    for command in ([given] if given else []) + [[one] for one in usual]:
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]]
        if command is given:
            raise CompileError(
                f"${variable} names '{command[0]}', which does not exist",
                advice=f"unset {variable}, or install it",
            )
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", {"c": "cc"}.get(language, language)]
    raise CompileError(
        f"there is no {language.upper()} compiler here",
        advice=f"install {usual[1]} or {usual[2]}, or pip install 'megatile[native]'",
    )


@cached()
def _identity(command: tuple[str, ...]) -> str:
    """Return what distinguishes one compiler from another."""
    path = os.path.realpath(command[0])
    try:
        state = os.stat(path)
        return f"{' '.join(command)} {path} {state.st_size} {state.st_mtime_ns}"
    except OSError:
        return " ".join(command)


def native() -> list[str]:
    """Return the flags that let a compiler use all that this computer has."""
    return ["-mcpu=native"] if platform.machine() in ("arm64", "aarch64") else ["-march=native"]


_LIBRARIES: dict[Path, ctypes.CDLL] = {}
"""By the path of the kept code. Loaded once: every object of ctypes for a library makes types of its own."""


def _said(process: subprocess.Popen[str]) -> str:
    """Wait for a compiler and return what it printed."""
    end, stopped = time.monotonic() + _TIMEOUT_SECONDS, StopWatch()
    while True:
        try:
            return process.communicate(timeout=LOOK_SECONDS)[0]
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                raise
        if stopped.lost([process.pid]):
            raise CompileError("the compiler was stopped by a signal", advice="start again")


class Making:
    """Code being compiled: begun at once, waited for by ``load``."""

    def __init__(self, source: str, options: tuple[str, ...] = (), language: str = "c"):
        command = compiler(language)
        self.language, (_, _, standard, libraries) = language, _LANGUAGES[language]
        flags = [*FLAGS, *standard, *native(), *options]
        host = f"{platform.machine()} {' '.join(sorted(host_flags()))}"
        name = cache_key(source, _identity(tuple(command)), " ".join(flags), host, __version__)
        self.path = cache_directory() / f"cpu-{name}.so"
        self.source, self.before, self.after = source, [*command, *flags], libraries
        self.process: subprocess.Popen[str] | None = None
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.was_cached = read_cached(self.path) is not None
        if not self.was_cached:
            self._begin()

    def _begin(self) -> None:
        try:
            self.folder = tempfile.TemporaryDirectory(prefix="megatile-")
            folder = Path(self.folder.name)
            text, self.made = folder / f"kernel.{self.language}", folder / "kernel.so"
            text.write_text(self.source, encoding="utf-8")
            self.process = subprocess.Popen(
                [*self.before, str(text), "-o", str(self.made), *self.after],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "TMPDIR": str(folder)},  # where a compiler that is killed leaves files
            )
        except OSError as error:
            if self.folder is not None:
                self.folder.cleanup()
            raise CompileError(
                f"the {self.language.upper()} compiler cannot be started: {error}",
                advice="it needs a directory for temporary files (TMPDIR), and memory",
            ) from None

    def load(self, *symbols: str) -> ctypes.CDLL:
        """Return the library; kept code that does not load, or lacks one of the symbols, is made again."""
        if self.process is None:
            with suppress(OSError, AttributeError):
                return self._loaded(self.path, symbols)
            self._begin()
        assert self.process is not None
        assert self.folder is not None
        with self.folder:
            return self._compiled(self.process, symbols)

    def _compiled(self, process: subprocess.Popen[str], symbols: tuple[str, ...]) -> ctypes.CDLL:
        try:
            said = _said(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            lines = [line for line in said.splitlines() if "error" in line] or said.splitlines()
            raise CompileError(
                f"the {self.language.upper()} compiler failed: {lines[0] if lines else 'it said nothing'}",
                advice="try another compiler: CC=gcc, CXX=g++",
            )
        if not self.made.exists():
            raise CompileError(
                f"the {self.language.upper()} compiler wrote no output",
                advice="try another compiler: CC=gcc, CXX=g++",
            )
        written = write_cached(self.path, self.made.read_bytes())
        try:
            # Code of before may be loaded under the name of what is kept.
            return self._loaded(self.path if written and not self.was_cached else self.made, symbols)
        except (OSError, AttributeError) as error:
            self.path.unlink(missing_ok=True)
            raise CompileError(
                f"the compiled library cannot be loaded: {error}",
                advice=f"another compiler (CC=gcc, CXX=g++), or {CACHE_VARIABLE}= where code may be run",
            ) from None

    def _loaded(self, path: Path, symbols: tuple[str, ...]) -> ctypes.CDLL:
        found = _LIBRARIES.get(self.path) if path == self.path else None
        found = found or ctypes.CDLL(str(path))
        for symbol in symbols:
            getattr(found, symbol)
        _LIBRARIES[self.path] = found
        return found
