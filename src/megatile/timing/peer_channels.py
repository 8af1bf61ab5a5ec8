"""Channels of a library's point-to-point sends: thread blocks that carry the message to one peer.

NCCL shares its channels out as if every rank sent to every other one, and gives a message more of them only
when it is long. So a ring that sends to one peer fills less of a port than an all-to-all of the same bytes.
The rules and their figures are the library's own (``p2p`` in ``hda/libraries``), not fitted.

Of a channel's threads one half sends and the other receives, so a message goes at half of what the library
takes a whole channel to carry by the protocol Simple.
"""

from __future__ import annotations

from math import ceil, inf, log2
from typing import Any

import numpy as np

from megatile.core.quantities import size as bytes_of
from megatile.hda.catalog import library as tables_of
from megatile.hda.model import TransportFigures


def p2p_channels(figures: TransportFigures) -> int:
    """Return the channels of all point-to-point sends of a rank: a power of two."""
    return _power_above(figures.channels)


def peer_channels(
    figures: TransportFigures, library: str, ranks: int, nbytes: Any, nodes: int = 1, card: float = 0.0
) -> Any:
    """Return the channels that carry a message of ``nbytes`` to one of the other ``ranks``; 0: not known.
    ``card``: bytes per second of a rank's network card, for ranks on several nodes."""
    rules = tables_of(library).get("p2p") if library in ("nccl", "rccl") else None
    if rules is None:
        return np.zeros_like(np.asarray(nbytes, float))
    size, total = np.asarray(nbytes, float), p2p_channels(figures)
    most = min(total, _power_above(rules["peer_channels"] or 2 * max(1, figures.links)))
    chunk = bytes_of(rules["chunk"])
    smallest, largest = chunk * rules["least"], chunk * rules["most"]
    if nodes > 1:
        chunk = bytes_of(rules["far_chunk"])
        smallest, largest = chunk * rules["far_least"], chunk * rules["far_most"]
        most = min(most, _power_above(ceil(card // bytes_of("1 GB") / rules["far_channel"])))
        while most > 1 and most * ceil(ranks / rules["batch"]) > total:
            most //= 2
    least = most
    while least > 1 and least * ranks > total:
        least //= 2
    channels = np.clip(np.ceil(size / smallest), 1, least)
    for _ in range(int(log2(most))):
        channels = np.where((size / channels > largest) & (2 * channels <= most), 2 * channels, channels)
    return channels


def peer_channel_rate(figures: TransportFigures, library: str) -> float:
    """Return the bytes per second of one channel of a message; infinite without a figure."""
    if figures.channel is None or library not in ("nccl", "rccl"):
        return inf
    tables = tables_of(library)
    rules, own = tables.get("p2p"), tables.get("generations", {}).get(figures.generation)
    simple = own["tree_channel"][0] / own["ring_ll128_channel"] if own else 1.0  # the figure is that of LL128
    return figures.channel * simple * (rules["sends"] if rules else 1.0)


def _power_above(number: int) -> int:
    return 1 << max(0, ceil(log2(max(1, number))))
