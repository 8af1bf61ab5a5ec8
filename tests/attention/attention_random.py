"""Random calls of attention on real processes: right, or refused on every rank.

python -m tests.attention.attention_random --cases 2000 --seed 0
"""

from __future__ import annotations

import argparse
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.distributed as dist
from tests.attention.attention_processes import run_ranks

from megatile.attention import hamilton_attention, shard_sequence
from megatile.core.errors import MegatileError

LIMITS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}
SCHEDULES = ("ring", "zigzag", "striped", "direct", "hamilton", "hamilton:2", "ulysses", "ulysses:2+ring",
             "ulysses:3+zigzag", "auto")  # fmt: skip
LAYOUTS = (None, None, "contiguous", "zigzag", "striped", "slices", "balanced", "cycles")


def draw(seed):
    """One case: options of the call, shapes and how tokens are divided. The same on every rank."""
    random = np.random.default_rng(seed)
    pick = lambda *x: x[int(random.integers(len(x)))]  # noqa: E731
    packed = random.random() < 0.4
    lengths = [int(random.integers(0, 24)) for _ in range(int(random.integers(1, 5)))]
    if not packed:
        lengths = [int(pick(0, 1, 3, 8, 17, 33, 64))]
    heads = pick((2, 2), (4, 2), (6, 3), (4, 1), (3, 3))
    options = {"causal": bool(pick(True, False)), "schedule": pick(*SCHEDULES)}
    if random.random() < 0.25:
        options["window_size"] = (int(random.integers(-1, 9)), int(random.integers(-1, 9)))
    if random.random() < 0.2:
        options["softcap"] = float(pick(0.5, 2.0, -1.0, 30.0))
    if random.random() < 0.2:
        options["softmax_scale"] = float(pick(0.3, 1.0, -0.2))
    return {
        "lengths": lengths,
        "packed": packed,
        "padding": packed and random.random() < 0.3,
        "heads": heads,
        "batch": 1 if packed else int(pick(1, 2)),
        "dtype": pick(*LIMITS),
        "layout": pick(*LAYOUTS),
        "options": options,
        "sinks": random.random() < 0.2,
        "slopes": random.random() < 0.15,
        "mask": None if packed else pick(None, None, None, "near", "documents", "heads"),
    }


MASKS = {
    "near": lambda b, h, q, kv: (q - kv).abs() < 5,
    "documents": lambda b, h, q, kv: q // 7 == kv // 7,
    "heads": lambda b, h, q, kv: (q + h) % 3 != kv % 2,
}


def exact(case, q, k, v, sinks, slopes):
    """[tokens or batch…] by the definition in f64, one sequence after the other."""
    ends = [0, *accumulate(case["lengths"])]
    parts = [_one(case, *(x[:, a:b] for x in (q, k, v)), sinks, slopes) for a, b in pairwise(ends)]
    return torch.cat(parts, 1)


def _one(case, q, k, v, sinks, slopes):
    options, group = case["options"], case["heads"][0] // case["heads"][1]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * options.get("softmax_scale", q.shape[-1] ** -0.5)
    cap = options.get("softcap", 0.0)
    scores = cap * torch.tanh(scores / cap) if cap else scores
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None, :]
    scores = scores if slopes is None else scores - slopes[:, None, None] * (i - j).abs()
    left, right = options.get("window_size", (-1, -1))
    seen = (j <= i) if options["causal"] else (j <= i + right if right >= 0 else torch.ones_like(j <= i))
    seen = seen & (j >= i - left) if left >= 0 else seen
    if case["mask"]:
        h = torch.arange(q.shape[2])[None, :, None, None]
        seen = seen & MASKS[case["mask"]](torch.zeros(1, 1, 1, 1).long(), h, i, j)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    lse = torch.logsumexp(scores, -1, keepdim=True)
    weights = torch.exp(scores - lse.masked_fill(lse == float("-inf"), 0))[..., : k.shape[1]]
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def run_case(seed):
    """None where it is right, "refused: …", or what is wrong."""
    case, ranks = draw(seed), dist.get_world_size()
    random, dtype = torch.Generator().manual_seed(seed), case["dtype"]
    total, dim = sum(case["lengths"]), 4
    shapes = [
        (case["batch"], total, n, dim) for n in (case["heads"][0], *[case["heads"][1]] * 2, case["heads"][0])
    ]
    whole = [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]
    extra = [torch.rand(case["heads"][0], generator=random, dtype=torch.float64) for _ in range(2)]
    sinks, slopes = (x if case[name] else None for x, name in zip(extra, ("sinks", "slopes"), strict=True))
    given = [x.double().requires_grad_() for x in whole[:3]]
    out = exact(case, *given, sinks, slopes)
    want = [out, *torch.autograd.grad((out * whole[3].double()).sum(), given)]
    ends = [0, *accumulate(case["lengths"])]
    place = {name: case["options"][name] for name in ("causal", "schedule")}
    call = {**case["options"], "sinks": sinks, "alibi_slopes": slopes, "mask_mod": MASKS.get(case["mask"])}
    where = list(range(total))
    if case["padding"]:
        more = torch.randint(0, 6, (len(ends) - 1,), generator=random).tolist()
        padded = [n + x for n, x in zip(case["lengths"], more, strict=True)]
        places = [0, *accumulate(padded)]
        where = [places[s] + i for s, n in enumerate(case["lengths"]) for i in range(n)]
        total, place["cu_seqlens"] = places[-1], places
        call |= {"cu_seqlens": ends, "cu_seqlens_padded": places}
    elif case["packed"]:
        place["cu_seqlens"] = call["cu_seqlens"] = ends

    def spread(x):
        """With padding, and packed without a batch."""
        filled = x.new_zeros((x.shape[0], total, *x.shape[2:])).index_copy(
            1, torch.tensor(where, dtype=torch.long), x
        )
        return filled[0] if case["packed"] else filled

    try:
        if case["layout"] is not None:
            place["layout"] = call["layout"] = case["layout"]
        share = {**place, "dim": 0 if case["packed"] else 1}
        local = [shard_sequence(spread(x), **share).requires_grad_() for x in whole[:3]]
        got = hamilton_attention(*local, **call)
        grads = torch.autograd.grad((got * shard_sequence(spread(whole[3]), **share)).sum(), local)
    except MegatileError as error:
        return f"refused: {error}"
    for name, a, b in zip(("out", "dq", "dk", "dv"), (got, *grads), want, strict=True):
        b = shard_sequence(spread(b.detach()), **share)
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        error = float((a.detach().double() - b).abs().max()) if b.numel() else 0.0
        if a.shape != b.shape or not error <= LIMITS[dtype] * scale:
            return f"{name} is off by {error:.1e} on {ranks} ranks: seed {seed}, {case}"
    return None


def run_cases(rank, seeds):
    return [run_case(seed) for seed in seeds]


def outcomes(seeds, ranks):
    """(right, refused, problems) of cases on so many ranks; a refusal must be the same on all."""
    found = run_ranks(run_cases, ranks, list(seeds), timeout=600.0)
    broken = [error for _, error in found if error]
    if broken:
        return 0, 0, [f"{ranks} ranks, seeds {seeds[0]}…: {broken[0][-600:]}"]
    right, refused, problems = 0, 0, []
    for seed, *answers in zip(seeds, *(answer for answer, _ in found), strict=True):
        wrong = [x for x in answers if x and not x.startswith("refused")]
        problems += wrong[:1]
        if not wrong and len({bool(x) for x in answers}) > 1:
            problems.append(f"seed {seed} on {ranks} ranks: refused on some: {set(answers)}")
        right += not any(answers)
        refused += all(answers) and not wrong
    return right, refused, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given, total = parser.parse_args(), [0, 0, 0]
    for ranks in range(1, 10):
        seeds = list(range(given.seed + ranks - 1, given.seed + given.cases, 9))
        right, refused, problems = outcomes(seeds, ranks)
        total = [a + b for a, b in zip(total, (right, refused, len(problems)), strict=True)]
        print(
            f"{ranks} ranks: {right} right, {refused} refused, {len(problems)} wrong",
            *problems[:5],
            sep="\n  ",
            flush=True,
        )
    print("all: {} right, {} refused, {} wrong".format(*total))


if __name__ == "__main__":
    main()
