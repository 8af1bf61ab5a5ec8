"""A schedule applied to lengths: which kernel runs on which rows and columns, when, on which rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from megatile.attention.schedules.bands import FULL, Band, Mask, MaskTile, visible_pairs
from megatile.attention.schedules.routes import Held, Routes, Transfer
from megatile.core.cached import cached_in_owner
from megatile.core.placement import Piece, Pieces, cuts, local_length, split

EVERYTHING = MaskTile(FULL)
OWN = -1  # stands for the rank's own KV, not cut into chunks
Array = Any
Run = tuple[int, int]  # rows from..to
KeyRun = tuple[int, int, int]  # (number among the held chunks, or OWN; rows from..to)
AnyRun = TypeVar("AnyRun", Run, KeyRun)
Messages = dict[int, list[tuple[Held, int]]]  # by peer: the chunks of its message, with their tokens


class Exchange(NamedTuple):
    """What a rank sends and receives at once."""

    sends: Messages
    receives: Messages


@dataclass(frozen=True)
class KernelCall:
    """One local kernel: some query rows over some key rows; several runs where all is visible.

    ``at``: the positions of the first row and column in their sequence, of a ``biased`` division.
    """

    q: tuple[Run, ...]
    kv: tuple[KeyRun, ...]
    tile: MaskTile = EVERYTHING
    at: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> int:
        return sum(end - begin for begin, end in self.q)

    @property
    def columns(self) -> int:
        return sum(end - begin for _, begin, end in self.kv)

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs; forward costs 4·dim flops for each, per head."""
        return visible_pairs(self.tile.band, self.rows, self.columns)


@dataclass(frozen=True)
class Division:
    """Attention of divided sequences by ``routes``: what every rank does at every step.

    ``q[r]`` are the query pieces of rank r, ``chunks[r][c]`` the pieces of its KV chunk c, ``kv[r]`` its own
    KV in local order. ``shift[s]`` is the key length minus the query length of sequence s. ``biased``: tiles
    need positions (ALiBi, mask functions), so that nothing is joined across pieces. ``batches`` is a cache
    of those who work by it.
    """

    routes: Routes
    q: tuple[Pieces, ...]
    kv: tuple[Pieces, ...]
    chunks: tuple[tuple[Pieces, ...], ...]
    mask: Mask
    shift: tuple[int, ...]
    biased: bool = False
    _unmasked: dict[Any, list[KernelCall]] = field(default_factory=dict, repr=False, compare=False)
    batches: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        routes: Routes,
        q: Sequence[Pieces],
        kv: Sequence[Pieces],
        mask: Mask,
        shift: Sequence[int],
        biased: bool = False,
    ) -> Division:
        """Cut each rank's KV into the routes' chunks: part c of every piece.

        Of packed sequences chunk c is part c of all of it, so that short sequences are not torn into pieces.
        """
        chunks = tuple(tuple(_chunks(pieces, routes.chunks, len(shift) > 1)) for pieces in kv)
        return cls(routes, tuple(q), tuple(kv), chunks, mask, tuple(shift), biased)

    def chunk_rows(self, rank: int) -> list[list[Run]]:
        """Per chunk, the local KV rows of ``rank`` that it consists of."""
        if len(self.shift) > 1:
            ends = [0, *accumulate(split(local_length(self.kv[rank]), self.routes.chunks))]
            return [[run] if run[0] < run[1] else [] for run in pairwise(ends)]
        rows: list[list[Run]] = [[] for _ in range(self.routes.chunks)]
        at = 0
        for piece in self.kv[rank]:
            for c, size in enumerate(split(piece.length, self.routes.chunks)):
                if size:
                    rows[c].append((at, at + size))
                at += size
        return rows

    @cached_in_owner
    def chunk_runs(self, rank: int) -> list[tuple[Run, ...]]:
        """Return the same; rows that follow one another are one run."""
        return [joined_runs(runs) for runs in self.chunk_rows(rank)]

    @cached_in_owner
    def held(self, step: int, rank: int) -> tuple[Held, ...]:
        """Return the chunks that a rank works on at a step; at step 0 it has its own KV instead."""
        return self.routes.held(step, rank) if step else ()

    @cached_in_owner
    def exchange(self, number: int, rank: int) -> Exchange:
        """Return the messages of an exchange."""
        sends, receives = self.routes.sends(number, rank), self.routes.receives(number, rank)
        return Exchange(self._messages(sends), self._messages(receives))

    def _messages(self, transfers: Sequence[Transfer]) -> Messages:
        found: Messages = defaultdict(list)
        for peer, held in transfers:
            found[peer].append((held, self.chunk_length(held)))
        return dict(found)

    def chunk_length(self, held: Held) -> int:
        return local_length(self.chunks[held.source][held.chunk])

    @cached_in_owner
    def calls(self, step: int, rank: int) -> list[KernelCall]:
        """Return the kernels of a rank at a step. Queries that see the same keys, all of them, share one
        call: every query has one such call at most."""
        keys = [(slot, self.chunks[h.source][h.chunk]) for slot, h in enumerate(self.held(step, rank))]
        return self._calls(rank, keys) if step else self._own_calls(rank)

    def calls_on(self, held: Held, rank: int) -> list[KernelCall]:
        """Return the kernels of a rank on one chunk by itself (slot 0 of their keys)."""
        pieces = self.chunks[held.source][held.chunk]
        if not self.mask.none or self.biased:
            return self._calls(rank, [(0, pieces)])
        # Without a mask it does not matter where in its sequence a piece stands.
        key = (rank, *((piece.length, piece.sequence) for piece in pieces))
        if key not in self._unmasked:
            self._unmasked[key] = self._calls(rank, [(0, pieces)])
        return self._unmasked[key]

    def pairs(self, step: int, rank: int) -> int:
        """Return visible pairs a rank works on at a step."""
        return sum(call.pairs for call in self.calls(step, rank))

    def link_tokens(self, exchange: int) -> dict[tuple[int, int], int]:
        """Return tokens of KV that each link (sender, receiver) carries in an exchange."""
        links, tokens = self.link_loads(exchange)
        return dict(zip(map(tuple, links.tolist()), tokens.tolist(), strict=True))

    def link_loads(self, exchange: int) -> tuple[Array, Array]:
        """Return the links of an exchange, [links, 2], and the tokens that each of them carries."""
        receivers, sources, chunks = self.routes.all_sends(exchange)
        ranks = self.routes.ranks
        codes = (np.arange(ranks)[:, None] * ranks + receivers).ravel()
        used, which = np.unique(codes, return_inverse=True)
        tokens = np.zeros(len(used), dtype=np.int64)
        np.add.at(tokens, which, self.chunk_lengths[sources, chunks].ravel())
        return np.stack(np.divmod(used, ranks), axis=1), tokens

    @cached_property
    def chunk_lengths(self) -> Array:
        """Tokens of every chunk, [source, chunk]."""
        return np.array([[local_length(pieces) for pieces in own] for own in self.chunks], dtype=np.int64)

    def _own_calls(self, rank: int) -> list[KernelCall]:
        q, kv = self.q[rank], self.kv[rank]
        causal_only = self.mask.purely_causal and not self.biased and not any(self.shift)
        if not (causal_only and q == kv and _ascending(q)):
            return self._calls(rank, [(OWN, kv)])
        # A causal kernel on the joined pieces of a sequence is exact: local order is the order of positions.
        runs: dict[int, Run] = {}
        at = 0
        for piece in q:
            begin, _ = runs.get(piece.sequence, (at, at))
            at += piece.length
            runs[piece.sequence] = (begin, at)
        causal = MaskTile(Band(None, 0))
        return [KernelCall((run,), ((OWN, *run),), causal) for run in runs.values() if run[0] < run[1]]

    @cached_property
    def _queries(self) -> list[dict[int, list[tuple[Run, Piece]]]]:
        """The query pieces of each rank with their rows, by sequence."""
        found: list[dict[int, list[tuple[Run, Piece]]]] = [defaultdict(list) for _ in self.q]
        for rank, pieces in enumerate(self.q):
            for run, piece in _numbered(pieces):
                found[rank][piece.sequence].append((run, piece))
        return found

    def _calls(self, rank: int, keys: Sequence[tuple[int, Pieces]]) -> list[KernelCall]:
        calls: list[KernelCall] = []
        seen: dict[Run, list[KeyRun]] = defaultdict(list)
        queries = self._queries[rank]
        for slot, pieces in keys:
            for (k_begin, k_end), k_piece in _numbered(pieces):
                key: KeyRun = (slot, k_begin, k_end)
                for q_run, q_piece in queries.get(k_piece.sequence, ()):
                    tile = self.mask.tile(q_piece, k_piece, self.shift[k_piece.sequence])
                    if tile is None:
                        continue
                    if tile.band.full and not self.biased:
                        seen[q_run].append(key)
                    else:
                        at = (q_piece.start, k_piece.start) if self.biased else (0, 0)
                        calls.append(KernelCall((q_run,), (key,), tile, at))
        together: dict[tuple[KeyRun, ...], list[Run]] = defaultdict(list)
        for q_run, runs in sorted(seen.items()):
            together[joined_runs(runs)].append(q_run)
        return calls + [KernelCall(joined_runs(q), kv) for kv, q in together.items()]


def division_for(
    routes: Routes,
    pieces_q: Sequence[Pieces],
    pieces_kv: Sequence[Pieces],
    mask: Mask,
    lengths_q: Sequence[int],
    lengths_kv: Sequence[int],
    biased: bool = False,
) -> Division:
    """Return a division with the usual alignment: the ends of queries and keys of each sequence meet."""
    shift = [k - q for q, k in zip(lengths_q, lengths_kv, strict=True)]
    return Division.of(routes, pieces_q, pieces_kv, mask, shift, biased)


@cached_in_owner
def is_dense(routes: Routes) -> bool:
    """Return whether an exchange connects a rank with at least half of the others: a case for an
    all-to-all."""
    if routes.ranks < 3:
        return False
    peers = {transfer.peer for transfer in routes.sends(0, 0)}
    return 2 * len(peers) >= routes.ranks


def _chunks(pieces: Pieces, count: int, packed: bool) -> list[Pieces]:
    if packed:
        return cuts(pieces, split(local_length(pieces), count))
    parts = [cuts([piece], split(piece.length, count)) for piece in pieces]
    return [tuple(part for own in parts for part in own[c]) for c in range(count)]


def _numbered(pieces: Pieces) -> list[tuple[Run, Piece]]:
    result, at = [], 0
    for piece in pieces:
        if piece.length:
            result.append(((at, at + piece.length), piece))
        at += piece.length
    return result


def _ascending(pieces: Pieces) -> bool:
    last = (-1, -1)
    for piece in pieces:
        if (piece.sequence, piece.start) <= last:
            return False
        last = (piece.sequence, piece.start + (piece.length - 1) * piece.stride)
    return True


def joined_runs(runs: Sequence[AnyRun]) -> tuple[AnyRun, ...]:
    """Return runs that follow one another (in one slot) as one."""
    result: list[Any] = []
    for run in runs:
        if result and (*result[-1][:-2], result[-1][-1]) == run[:-1]:
            result[-1] = (*result[-1][:-1], run[-1])
        else:
            result.append(run)
    return tuple(result)
