"""``collectives/phases/chain.py``: trees of messages."""

from __future__ import annotations

from tests.collectives.closed_forms import seconds

from toy_machines import chips


def test_chunks_hide_latency_in_a_chain():
    machine = chips("ring", 8)
    whole = seconds(machine, "ring", operation="broadcast")
    assert seconds(machine, "ring", operation="broadcast", chunks=16) < whole / 3
