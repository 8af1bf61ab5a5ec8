"""Tables, trees and pictures for people. Reads machines and traces, computes nothing of its own.

Names load when first used: what draws machines needs no NumPy.
"""

from typing import TYPE_CHECKING

from megatile.core.public import PublicNames

if TYPE_CHECKING:
    from megatile.report.summary import summary as summary, summary_json as summary_json
    from megatile.report.timeline import draw_timeline as draw_timeline
    from megatile.trace.waits import write_dump as write_dump

_WHERE = {
    "draw_timeline": "megatile.report.timeline",
    "summary": "megatile.report.summary",
    "summary_json": "megatile.report.summary",
    "write_dump": "megatile.trace.waits",
}
__all__ = list(_WHERE)
__getattr__ = PublicNames(__name__, _WHERE)
