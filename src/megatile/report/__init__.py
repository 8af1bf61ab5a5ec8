"""What a person looks at: tables, trees, pictures. Reads machines and traces, computes nothing of its own."""

from megatile.trace.critical import CriticalStep, critical_path, why_slow
from megatile.report.deadlock import write_dump
from megatile.report.summary import busy_ps, exposed_ps, summary
from megatile.trace.tables import format_bytes, format_ps, text_table
from megatile.report.timeline import draw_timeline

__all__ = [
    "CriticalStep",
    "busy_ps",
    "critical_path",
    "draw_timeline",
    "exposed_ps",
    "format_bytes",
    "format_ps",
    "summary",
    "text_table",
    "why_slow",
    "write_dump",
]
