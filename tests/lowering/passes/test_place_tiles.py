"""``lowering/passes/place_tiles.py``: where tensors and tiles lie, and how many versions of a tile there
are."""

from __future__ import annotations

from tests.lowering.shared import pipelined, text_after

import megatile as mt


def test_place_tiles() -> None:
    lines = text_after(mt.lower(pipelined), "place_tiles")
    assert lines[0].startswith('def pipelined(A: f16[64, 96] @ home("hbm", "device"), B: f16[96, 64] @ home(')
    assert 'a = alloc((64, 32), "f16", "shared", "block", versions=2)' in lines
    assert (
        'c = alloc((64, 64), "f32", "registers", "block", parts=(part("warpgroup", replica()),), slices=2)'
        in lines
    )
    assert 'for k in pipelined(0, 3, 1, stages=2, fresh=("a", "b")):' in lines
