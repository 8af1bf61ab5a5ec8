"""``megatile check-kernel FILE.py``: run a file of TileLang kernels and say what became of each."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import patch

from megatile.compat.tilelang import cpu_torch, kernel as kernels, source, takeover
from megatile.compat.tilelang.cpu_torch import Comparisons, NotCompared
from megatile.compat.tilelang.small import Smaller, is_kernel, smaller
from megatile.compat.tilelang.time import least_time, predicted_ms
from megatile.core.errors import MegatileError, Place
from megatile.core.files import exists
from megatile.core.frames import raised_at
from megatile.hda import machine as find_machine
from megatile.targets.interpret.errors import RunError


def grids(programs: tuple[Any, ...]) -> list[tuple[int, ...]]:
    return [p.launch.extents(p.launch.dispatch) for p in programs]


@dataclass
class Checked:
    """What became of a kernel: how often it ran, for how long on this computer, and what was found."""

    name: str
    programs: tuple[Any, ...]
    runs: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    least_us: float = 0.0
    predicted_us: float | None = None
    """On the machine, at the extents asked for or else the file's own; None where time depends on data."""
    timed: tuple[Any, ...] = ()
    """The Programs at those extents."""

    def predict(self, programs: tuple[Any, ...], hda: Any) -> Checked:
        self.timed = programs
        self.least_us = sum(least_time(p, hda).seconds for p in programs) * 1e6
        try:
            self.predicted_us = predicted_ms(programs, hda) * 1e3
        except MegatileError:
            self.predicted_us = None
        return self

    def as_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "launches": [{"grid": list(g)} for g in grids(self.programs)],
            "predicted_launches": [{"grid": list(g)} for g in grids(self.timed)],
            "runs": self.runs,
            "seconds_on_this_cpu": round(self.seconds, 4),
            "least_us_on_the_machine": round(self.least_us, 6),
            "predicted_us_on_the_machine": None if self.predicted_us is None else round(self.predicted_us, 3),
            "warnings": self.warnings,
        }


@dataclass
class CheckedFile:
    """The kernels of a file, its sizes that were made small (as the file has them), and how many comparisons
    were not made at its own sizes, where tensors have no values."""

    kernels: list[Checked]
    made_small: dict[str, Any]
    not_compared: int


def check_file(
    path: Path, arguments: list[str], machine: str, at: Mapping[str, int] | None = None, as_is: bool = False
) -> CheckedFile:
    """Run a file as a script, with its sizes made small: every kernel it calls is built for the machine,
    checked and run, and predicted there ``at`` extents by name, or at the file's own sizes. ``as_is``, or an
    error that may come from small sizes, leaves them."""
    if not exists(path):
        raise MegatileError(f"there is no file '{path}'", advice="give a Python file with TileLang kernels")
    hda = find_machine(machine)
    try:
        code, change = smaller(path, {}, _AsIs if as_is else Smaller)
    except (SyntaxError, UnicodeDecodeError) as error:
        line, said = getattr(error, "lineno", None), getattr(error, "msg", error)
        raise MegatileError(
            f"'{path}' is not a Python file: {said}", place=Place(str(path), line) if line else None,
            advice="give a file of kernels",
        ) from None  # fmt: skip
    changed = change.changed
    with _as_script(path, arguments, machine) as comparisons:
        try:
            found = _run(path, code, hda, at or {})
        except MegatileError as error:
            if not changed or isinstance(error, RunError):
                raise
            found, changed = (
                _run(path, smaller(path, {}, _AsIs)[0], hda, at or {}),
                {},
            )  # sizes that belong together
        if changed and not at:
            _predict_whole(path, found, hda, comparisons)
    return CheckedFile(list(found.values()), changed, comparisons.skipped)


class _AsIs(Smaller):
    """Leaves sizes as they are."""

    def small(self, name: str | None, value: ast.expr) -> ast.expr:
        return value


class _WithoutValues(_AsIs):
    """Lets assertions on comparisons that were not made pass: they are counted."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node if is_kernel(node) else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> Any:
        judged = ast.Name(_JUDGED, ast.Load())
        node.test = ast.copy_location(ast.Call(judged, [node.test], []), node.test)
        return node


_JUDGED = "__megatile_judged__"


def _judged(result: Any) -> Any:
    return True if isinstance(result, NotCompared) else result


@contextmanager
def _as_script(path: Path, arguments: list[str], machine: str) -> Iterator[Comparisons]:
    main, argv = sys.modules["__main__"], patch.object(sys, "argv", [str(path), *arguments])
    folders = patch.object(sys, "path", [str(path.parent.resolve()), *sys.path])
    chosen = patch.dict(os.environ, {"MEGATILE_MACHINE": machine})
    with takeover.installed() as comparisons, argv, folders, chosen:
        try:
            yield comparisons
        finally:
            sys.modules["__main__"] = main


def _execute(code: CodeType, path: Path) -> None:
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(path)
    vars(main)[_JUDGED] = _judged
    exec(code, main.__dict__)


def _run(path: Path, code: CodeType, hda: Any, at: Mapping[str, int]) -> dict[Any, Checked]:
    found: dict[Any, Checked] = {}
    try:
        with _watched(found, hda, at):
            _execute(code, path)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise MegatileError(f"'{path}' ends with {stop.code}", advice="see what it printed") from None
    except MegatileError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines()
        raise MegatileError(
            f"'{path}' fails: {type(error).__name__}: {said[0] if said else ''}",
            place=raised_at(error),
            advice="run python -m megatile.tilelang FILE.py for the whole traceback",
        ) from None
    if not found:
        raise MegatileError(
            f"'{path}' calls no kernel",
            advice="call one below if __name__ == '__main__': the file is run as a script",
        )
    return found


def _predict_whole(path: Path, found: dict[Any, Checked], hda: Any, comparisons: Comparisons) -> None:
    """Run the file with its own sizes on arrays without data; its kernels are predicted, not run."""
    code = smaller(path, {}, _WithoutValues)[0]
    large: dict[Any, Checked] = {}

    def shape_of(kind: Any, *_: Any, **__: Any) -> Any:
        return cpu_torch.without_data(kind.shape, kind.dtype.as_torch())

    def noted(built: source.Built, arrays: dict[str, Any]) -> None:
        for name, kind in built.tensors.items():
            arrays.setdefault(name, shape_of(kind))
        key = tuple(str(p) for p in built.programs)
        if key not in large:
            large[key] = Checked(built.programs[0].name, built.programs).predict(built.programs, hda)

    def call_once(function: Callable[[], Any]) -> float:
        function()
        return 1.0

    calm: dict[str, Any] = {
        "new_array": shape_of,
        "assert_close": lambda *_, **__: comparisons.skip(),
        "measured_ms": call_once,
    }
    quiet = suppress(Exception, SystemExit), redirect_stdout(StringIO()), cpu_torch.shapes_only()
    with quiet[0], quiet[1], quiet[2], patch.multiple(kernels, execute=noted, **calm):
        _execute(code, path)
    pending = list(large.values())
    for one in found.values():
        same = next((other for other in pending if other.name == one.name), None)
        if same is not None:
            pending.remove(same)
            one.timed, one.least_us, one.predicted_us = same.timed, same.least_us, same.predicted_us
    found.update({("only predicted", i): one for i, one in enumerate(pending)})


@contextmanager
def _watched(found: dict[Any, Checked], hda: Any, at: Mapping[str, int]) -> Iterator[None]:
    """Note every kernel that is run."""
    execute: Callable[..., None] = kernels.execute

    def noted(built: source.Built, arrays: dict[str, Any]) -> None:
        start = time.perf_counter()
        execute(built, arrays)
        seconds = time.perf_counter() - start
        key = tuple(str(p) for p in built.programs)
        if key not in found:
            timed = built.again(at).programs if at and built.again is not None else built.programs
            texts = [w for p in built.programs for w in p.warnings]
            found[key] = Checked(built.programs[0].name, built.programs, 0, 0.0, texts).predict(timed, hda)
        found[key].runs += 1
        found[key].seconds += seconds

    with patch.object(kernels, "execute", noted):
        yield
