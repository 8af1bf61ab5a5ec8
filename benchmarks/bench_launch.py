"""Plans on real processes: how much of the messages' time is hidden behind kernels."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import Row, at_least, bench, sized
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.runtime.processes import run_processes

UNITS, STEPS, VALUES = sized((2, 12, 1 << 20), (2, 2, 256))


def ring_plan() -> Plan:
    """As ring attention goes: a kernel on what is held, while it goes on to the next unit."""
    b = PlanBuilder("overlap", scale="device", units=UNITS)
    x = b.tile("x", (VALUES,), "f32", memory="l2", role="input")
    y = b.tile("y", (1,), "f32", memory="l2", role="output")
    ring = b.channel("ring", source=(unit + UNITS - 1) % UNITS, slot_bytes=4 * VALUES, memory="l2", slots=2)
    with b.loop(0, STEPS, index="k", held=x) as loop:
        b.compute("exp", y, [loop.held])
        b.send(ring, loop.held, to=(unit + 1) % UNITS)
        loop.next(held=b.receive(ring, (VALUES,), "f32"))
    return b.finish()


@bench("launch: messages behind kernels", needs=["torch"])
def overlap() -> Iterator[Row]:
    """Kernels that last as long as messages: in turn they would take twice as long as either."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with tempfile.TemporaryDirectory(prefix="megatile-") as name:
        folder = Path(name)
        (folder / "plan").write_text(ring_plan().to_json(), encoding="utf-8")
        run_processes("overlap_work", folder, UNITS, what="overlap", timeout=120, steps=STEPS)
        found = [json.loads((folder / f"times_{u}").read_text(encoding="utf-8")) for u in range(UNITS)]
    messages, kernels, both = (max(x[key] for x in found) for key in ("messages", "kernels", "both"))
    yield Row(f"{STEPS} messages of {VALUES * 4 >> 10} KiB between {UNITS} processes", messages, "s")
    yield Row("the same beside kernels that last as long", both, "s", messages + kernels, "in turn")
    hidden = (messages + kernels - both) / min(messages, kernels)
    yield Row("share of the messages' time that is hidden", hidden, "", bar=at_least(0.5))
