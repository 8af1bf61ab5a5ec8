"""A transformer block, GQA attention and MLP, heads and inner columns over the ranks: two all-reduces."""

from typing import Any

import numpy as np

from megatile.parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    add,
    attention,
    initialize_model_parallel,
    rms_norm,
    silu,
)
from megatile.parallel.benches import difference, on_every_rank, values, verdict

TOKENS, DIM, HEADS, SHARED = 16, 16, 16, 8
HIDDEN = HEADS * DIM
SHAPES = {
    "q": (HIDDEN, HIDDEN), "k": (HIDDEN, SHARED * DIM), "v": (HIDDEN, SHARED * DIM), "o": (HIDDEN, HIDDEN),
    "up": (HIDDEN, 2 * HIDDEN), "down": (2 * HIDDEN, HIDDEN),
}  # fmt: skip
BY_ROWS = ("o", "down")


def reference(x: Any, w: dict[str, Any]) -> Any:
    """Return the block in NumPy."""
    x, w = x.astype(np.float32), {name: part.astype(np.float32) for name, part in w.items()}

    def norm(a: Any) -> Any:
        return a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5)

    y = norm(x)
    q = (y @ w["q"]).reshape(TOKENS, HEADS, DIM)
    k, v = ((y @ w[n]).reshape(TOKENS, SHARED, DIM).repeat(HEADS // SHARED, 1) for n in "kv")
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(DIM)
    scores[:, np.triu(np.ones((TOKENS, TOKENS), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", weights, v).reshape(TOKENS, -1) @ w["o"]
    z = norm(x) @ w["up"]
    return x + (z / (1 + np.exp(-z))) @ w["down"]


def run(torch: Any) -> int:
    size = torch.distributed.get_world_size()
    parts = max(n for n in range(1, size + 1) if size % n == 0 and SHARED % n == 0)
    w = {name: values(i + 1, *shape) / 4 for i, (name, shape) in enumerate(SHAPES.items())}
    x = values(0, TOKENS, HIDDEN)
    exact = reference(x, w)

    def body(rank: int, found: dict[int, float]) -> None:
        initialize_model_parallel(parts, torch=torch)

        def layer(name: str) -> Any:
            kind = RowParallelLinear if name in BY_ROWS else ColumnParallelLinear
            made = kind(*SHAPES[name], torch=torch)
            made.weight.copy_(np.split(w[name], parts, 0 if name in BY_ROWS else 1)[rank % parts])
            return made

        inside = torch.empty(x.shape, dtype="f16").copy_(x)
        one = torch.ones((HIDDEN,), dtype="f16")
        q, k, v = (layer(name)(rms_norm(inside, one)) for name in "qkv")
        mixed = attention(q, k, v, heads=HEADS // parts, kv_heads=SHARED // parts)
        inside = add(inside, layer("o")(mixed))
        y = add(inside, layer("down")(silu(layer("up")(rms_norm(inside, one)))))
        found[rank] = difference(y.numpy(), exact) if torch.has_data else 0.0

    return verdict("tp_transformer_block", on_every_rank(torch, body), 0.05, torch)
