"""What a person looks at: tables, trees, pictures. Reads machines and traces, computes nothing of its own."""

from megatile.report.summary import summary, summary_json
from megatile.report.timeline import draw_timeline
from megatile.trace.waits import write_dump

__all__ = [
    "draw_timeline",
    "summary",
    "summary_json",
    "write_dump",
]
