"""``timing/transfer_paths.py``: paths of transfers and control messages through the memories and networks
of a machine."""

from __future__ import annotations

import numpy as np
import pytest
from tests.timing.many_routes_cases import GRIDS, grid

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.timing import Resources


@pytest.mark.parametrize(("topology", "extents"), GRIDS)
def test_messages_and_channels_of_many_pairs(topology: str, extents: list[int]) -> None:
    hda = grid(topology, extents)
    n = hda.level("core").total
    b = PlanBuilder("p", scale="core", units=n)
    b.channel("c", source=(unit - 1) % n, slot_bytes=64, memory="local")
    machine_of = Resources(hda, b.finish())
    units, peers = np.random.default_rng(0).integers(0, n, (2, 40))
    pairs = list(zip(units.tolist(), peers.tolist(), strict=True))
    assert machine_of.messages_ps(units, peers, 8).tolist() == [machine_of.message_ps(*p, 8) for p in pairs]
    lanes = machine_of.virtual_channels("c", units, peers).tolist()
    assert lanes == [machine_of.virtual_channel("c", *p) for p in pairs]
