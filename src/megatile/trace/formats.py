"""Read and write traces by file name: ``*.jsonl[.gz]`` is an op log, ``*.json[.gz]`` a Perfetto trace."""

from __future__ import annotations

from pathlib import Path

from megatile.core.arguments import no_none
from megatile.trace.events import Trace, TraceError
from megatile.trace.oplog import read_oplog, write_oplog
from megatile.trace.perfetto import read_perfetto, write_perfetto

_FORMATS = {".json": (read_perfetto, write_perfetto), ".jsonl": (read_oplog, write_oplog)}


def _format(path: Path) -> str:
    name = path.name[:-3] if path.name.endswith(".gz") else path.name
    suffix = Path(name).suffix
    if suffix not in _FORMATS:
        raise TraceError(
            f"the name '{path.name}' does not say which trace format it is",
            advice="use .json or .json.gz (Perfetto), .jsonl or .jsonl.gz (op log)",
        )
    return suffix


@no_none
def read_trace(path: str | Path) -> Trace:
    """Read a Perfetto trace or an op log, chosen by the file's name."""
    return _FORMATS[_format(Path(path))][0](path)


@no_none
def write_trace(trace: Trace, path: str | Path) -> Path:
    """Write a Perfetto trace or an op log, chosen by the file's name."""
    return _FORMATS[_format(Path(path))][1](trace, path)


@no_none
def convert_trace(source: str | Path, target: str | Path) -> Path:
    """Read one trace file and write it in the format of the other's name."""
    _format(Path(target))  # a wrong target name is reported before a long read
    return write_trace(read_trace(source), target)
