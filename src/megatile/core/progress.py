"""How far long work has come, reported to a listener if there is one.

with shown("predicting"):              # a bar on stderr, if that is a terminal
    for number, name in enumerate(names):
        tell(name, number, len(names))
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with what is done now, how many parts are done, and of how many."""
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def tell(what: str, done: int, of: int) -> None:
    """Say what comes next."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, done, of)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within this, ``listener`` is called."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def shown(what: str, progress: bool | Listener = True) -> Iterator[Callable[[], None]]:
    """A bar on a terminal's stderr, with a second one for the parts of the part in work; the value is a
    function that moves the first one by one part. ``progress`` may be a listener instead, or False.
    """
    if callable(progress):
        with listening(progress):
            yield lambda: None
    elif not progress or not sys.stderr.isatty():
        yield lambda: None
    else:
        with _bars(what) as advance:
            yield advance


@contextmanager
def estimated(progress: bool | Listener = True) -> Iterator[None]:
    """A bar on a terminal's stderr for the part in work alone, with the time left, from the first `tell` on.
    ``progress`` may be a listener instead, or False."""
    if callable(progress):
        with listening(progress):
            yield
    elif not progress or not sys.stderr.isatty():
        yield
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        percent = TextColumn("{task.percentage:.1f} %")
        columns = (TextColumn("{task.description}"), BarColumn(), percent, TimeRemainingColumn())
        bars = Progress(*columns, console=Console(stderr=True), transient=True)
        task = bars.add_task("", total=None)

        def listener(name: str, done: int, of: int) -> None:
            bars.start()
            bars.update(task, description=name, completed=done, total=of)

        try:
            with listening(listener):
                yield
        finally:
            bars.stop()


@contextmanager
def _bars(what: str) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        whole, part = bars.add_task(what, total=None), bars.add_task("", total=None, visible=False)

        def listener(name: str, done: int, of: int) -> None:
            bars.update(part, description=name, completed=done, total=of, visible=True)

        with listening(listener):
            yield lambda: bars.advance(whole)
