"""Attention on one device and a NumPy executor of schedules: real chunks move, every transfer is checked."""

from __future__ import annotations

import numpy as np

from megatile.attention.schedules import Division, Mask, Schedule, division_for, positions
from megatile.attention.schedules.division import OWN


def visible(mask: Mask, q_length: int, k_length: int) -> np.ndarray:
    """The mask as the definition says it, without bands."""
    q = np.arange(q_length)[:, None] + (k_length - q_length)
    k = np.arange(k_length)[None, :]
    seen = np.ones((q_length, k_length), dtype=bool)
    if mask.left is not None:
        seen &= k >= q - mask.left
    if mask.right is not None:
        seen &= k <= q + mask.right
    return seen


def by_heads(x):
    """[S, H, D] as [H, S, D] and back, for products of matrices."""
    return x.transpose(1, 0, 2)


def attention(q, k, v, seen, scale):
    """[S, H, D] attention with as few KV heads as k has; returns out, lse and the probabilities."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = by_heads(q) @ k.transpose(1, 2, 0) * scale
    scores = np.where(seen, scores, -np.inf)
    with np.errstate(divide="ignore"):
        top = np.max(scores, axis=-1, initial=-np.inf)
        safe = np.where(np.isfinite(top), top, 0.0)
        lse = np.log(np.exp(scores - safe[..., None]).sum(-1)) + safe
    weights = np.exp(scores - np.where(np.isfinite(lse), lse, 0.0)[..., None])
    return by_heads(weights @ by_heads(v)), lse, weights


def attention_gradients(q, k, v, seen, scale, out, lse, d_out):
    """Gradients of one block given the overall out and lse, as the backward of flash-attention has them."""
    group = q.shape[1] // k.shape[1]
    kk, vv = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.where(seen, by_heads(q) @ kk.transpose(1, 2, 0) * scale, -np.inf)
    weights = np.exp(scores - np.where(np.isfinite(lse), lse, 0.0)[..., None])
    d_weights = by_heads(d_out) @ vv.transpose(1, 2, 0)
    delta = np.einsum("ihd,ihd->hi", d_out, out)[..., None]
    d_scores = weights * (d_weights - delta) * scale
    d_q = by_heads(d_scores @ by_heads(kk))
    fold = lambda x: x.reshape(x.shape[0], -1, group, x.shape[-1]).sum(2)  # noqa: E731
    d_k, d_v = (by_heads(x.transpose(0, 2, 1) @ by_heads(y)) for x, y in ((d_scores, q), (weights, d_out)))
    return d_q, fold(d_k), fold(d_v)


def merge(out, lse, rows, block_out, block_lse):
    """out [S,H,D] and lse [H,S] take in a block for some rows."""
    old = lse[:, rows]
    new = np.logaddexp(old, block_lse)
    keep, take = np.exp(old - new).T[..., None], np.exp(block_lse - new).T[..., None]
    out[rows] = out[rows] * keep + block_out * take
    lse[:, rows] = new


class Run:
    """All ranks of a schedule in one process."""

    def __init__(self, schedule: Schedule, mask: Mask, q, k, v, scale: float):
        assert schedule.heads == 1
        layout = schedule.layout(mask.right == 0)
        lengths_q, lengths_k = [q.shape[0]], [k.shape[0]]
        pieces_q, pieces_k = layout.pieces(lengths_q), layout.pieces(lengths_k)
        self.division: Division = division_for(
            schedule.routes, pieces_q, pieces_k, mask, lengths_q, lengths_k
        )
        self.ranks, self.routes, self.scale = schedule.ranks, schedule.routes, scale
        self.where_q = [np.array(positions(p), dtype=int) for p in pieces_q]
        self.where_k = [np.array(positions(p), dtype=int) for p in pieces_k]
        self.q = [q[w] for w in self.where_q]
        self.k, self.v = [k[w] for w in self.where_k], [v[w] for w in self.where_k]
        self.rows = [self.division.chunk_rows(rank) for rank in range(self.ranks)]
        self.out = [np.zeros(x.shape[:2] + v.shape[2:]) for x in self.q]
        self.lse = [np.full((x.shape[1], x.shape[0]), -np.inf) for x in self.q]

    def chunk(self, rank, chunk):
        rows = [np.arange(a, b) for a, b in self.rows[rank][chunk]]
        rows = np.concatenate(rows) if rows else np.zeros(0, dtype=int)
        return rows, (self.k[rank][rows], self.v[rank][rows])

    def start(self):
        return [{h: self.chunk(r, h.chunk)[1] for h in self.routes.held(0, r)} for r in range(self.ranks)]

    def exchanged(self, stores, exchange, own):
        """What every rank holds after an exchange; a rank can only send what it has."""
        mail = {}
        for rank in range(self.ranks):
            source = stores if self.routes.relays else own
            for transfer in self.routes.sends(exchange, rank):
                mail[rank, transfer.peer, transfer.held] = source[rank][transfer.held]
        after = []
        for rank in range(self.ranks):
            expected = self.routes.receives(exchange, rank)
            after.append({t.held: mail.pop((t.peer, rank, t.held)) for t in expected})
            assert set(after[-1]) == set(self.routes.held(exchange + 1, rank))
        assert not mail
        return after

    def operands(self, step, rank, call, store):
        held = self.routes.held(step, rank)
        rows = np.concatenate([np.arange(a, b) for a, b in call.q])
        pick = lambda slot: (self.k[rank], self.v[rank]) if slot == OWN else store[held[slot]]  # noqa: E731
        k = np.concatenate([pick(slot)[0][a:b] for slot, a, b in call.kv])
        v = np.concatenate([pick(slot)[1][a:b] for slot, a, b in call.kv])
        i, j = np.arange(len(rows))[:, None], np.arange(len(k))[None, :]
        seen = np.ones((len(rows), len(k)), dtype=bool)
        if call.tile.band.lower is not None:
            seen &= j - i >= call.tile.band.lower
        if call.tile.band.upper is not None:
            seen &= j - i <= call.tile.band.upper
        assert seen.sum() == call.pairs > 0
        return rows, k, v, seen

    def forward(self):
        stores = own = self.start()
        self.history = [stores]
        for step in range(self.routes.exchanges + 1):
            for rank in range(self.ranks):
                for call in self.division.calls(step, rank):
                    rows, k, v, seen = self.operands(step, rank, call, stores[rank])
                    o, lse, _ = attention(self.q[rank][rows], k, v, seen, self.scale)
                    visible_rows = rows[seen.any(1)]
                    merge(self.out[rank], self.lse[rank], visible_rows, o[seen.any(1)], lse[:, seen.any(1)])
            if step < self.routes.exchanges:
                stores = self.exchanged(stores, step, own)
                self.history.append(stores)
        return self.gathered(self.out, self.where_q)

    def backward(self, d_out):
        """Cycles run in reverse with dK, dV travelling along; direct routes send gradients straight home."""
        d_out = [d_out[w] for w in self.where_q]
        d_q = [np.zeros_like(x) for x in self.q]
        home = [(np.zeros_like(k), np.zeros_like(v)) for k, v in zip(self.k, self.v, strict=True)]
        travelling = [{} for _ in range(self.ranks)]
        for step in range(self.routes.exchanges, -1, -1):
            for rank in range(self.ranks):
                store = self.history[step][rank]
                grads = travelling[rank]
                for held in self.routes.held(step, rank):
                    grads.setdefault(held, tuple(np.zeros_like(x) for x in store[held]))
                for call in self.division.calls(step, rank):
                    rows, k, v, seen = self.operands(step, rank, call, store)
                    got = attention_gradients(
                        self.q[rank][rows], k, v, seen, self.scale,
                        self.out[rank][rows], self.lse[rank][:, rows], d_out[rank][rows],
                    )  # fmt: skip
                    d_q[rank][rows] += got[0]
                    at = 0
                    for slot, a, b in call.kv:
                        target = home[rank] if slot == OWN else grads[self.routes.held(step, rank)[slot]]
                        for x, g in zip(target, got[1:], strict=True):
                            x[a:b] += g[at : at + b - a]
                        at += b - a
            if step > 0:
                travelling = self.returned(travelling, step - 1, home)
        for rank in range(self.ranks):
            for held, grads in travelling[rank].items():
                assert held.source == rank
                self.add_home(home, held, grads)
        d_k = self.gathered([h[0] for h in home], self.where_k)
        d_v = self.gathered([h[1] for h in home], self.where_k)
        return self.gathered(d_q, self.where_q), d_k, d_v

    def returned(self, travelling, exchange, home):
        after = [{} for _ in range(self.ranks)]
        for rank in range(self.ranks):
            for transfer in self.routes.receives(exchange, rank):
                grads = travelling[rank].pop(transfer.held)
                if self.routes.relays:
                    after[transfer.peer][transfer.held] = grads
                else:
                    assert transfer.held.source == transfer.peer
                    self.add_home(home, transfer.held, grads)
        return after

    def add_home(self, home, held, grads):
        rows = self.chunk(held.source, held.chunk)[0]
        for x, g in zip(home[held.source], grads, strict=True):
            x[rows] += g

    def gathered(self, parts, where):
        whole = np.zeros((sum(map(len, where)), *parts[0].shape[1:]))
        for part, w in zip(parts, where, strict=True):
            whole[w] = part
        return whole
