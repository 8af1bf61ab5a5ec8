"""How long products of library kernels take: GEMM, grouped GEMM, layers of experts."""

from __future__ import annotations

from typing import Any

from megatile.timing.device import Device, Shape, some
from megatile.timing.schemes import Scheme, scheme

FEW_ROWS = 32
"""Below so many rows, frameworks take another kernel for block scales (FlashInfer's, operands swapped)."""
BLOCK = 128
"""Elements along k, and half as many columns, that DeepGEMM's blocks need; other shapes go to CUTLASS."""
LIKELY = 4
"""Quantiles by which experts of different load are represented."""
SPREAD = 1.1
"""The busiest of n ranks lies so many times sqrt(2 ln n) standard deviations above the mean."""
MAX_EXPONENT = 4.0
"""Beyond this exponent of a power law, loads are as good as even but for the busiest expert."""
BUSIEST = 0.8
"""The most loaded expert gets at most this part of the tokens (the distribution of the measured rows)."""


def gemm_scheme(device: Device, dtype: str) -> Scheme:
    """Return how operands are stored and multiplied; weights travel packed where nothing multiplies them."""
    found = scheme(dtype)
    if found.suffix and not device.multiplies(found.compute):
        return found._replace(activation=2.0, compute="bf16")
    return found


def gemm(device: Device, shape: Shape, dtype: str) -> Any:
    """(m × k) · (k × n) into 16 bits. For 8-bit operands the m × k activations are quantised from 16 bits
    first, unless they are ``quantised`` already."""
    m, n, k = (shape[name] * 1.0 for name in "mnk")
    kind, x = gemm_scheme(device, dtype), device.x
    main = f"gemm{kind.suffix}"

    def call(name: str) -> Any:
        figures = device.kernel(name)
        groups = x.ceil(m / figures.rows) * x.ceil(n / figures.columns)
        group = 2 * figures.rows * figures.columns * k / (device.rate(kind.compute) * figures.share) * 1e6
        moved = m * k * kind.activation + n * k * kind.weight + m * n * max(2, kind.activation)
        time = device.time(name, groups, group, moved)
        return device.issued(name, time + quantising)

    quantising = 0.0
    if quantiser := _quantiser(kind, shape):
        rows = device.kernel(quantiser).rows
        quantising = device.time(quantiser, m / rows, 0.0, m * k * (2 + kind.activation))
    time = call(main)
    if device.has(f"{main}_few"):
        time = x.where(m < FEW_ROWS, call(f"{main}_few"), time)
    if device.has(f"{main}_odd"):
        time = x.where(_is_odd(shape), call(f"{main}_odd"), time)
    return time


def _is_odd(shape: Shape) -> Any:
    return (shape["n"] % (BLOCK // 2) > 0) | (shape["k"] % BLOCK > 0)


def _quantiser(kind: Scheme, shape: Shape) -> str:
    """Return the kernel that quantises activations first; none where they have 16 bits or are quantised."""
    if not kind.suffix or kind.activation >= 2 or some(shape["quantised"]):
        return ""
    return "quantise_block" if kind.name == "fp8_block" else "quantise"


def gemm_kernels(device: Device, shape: Shape, dtype: str) -> tuple[str, ...]:
    kind = gemm_scheme(device, dtype)
    main = f"gemm{kind.suffix}"
    for name, here in ((f"{main}_odd", _is_odd(shape)), (f"{main}_few", shape["m"] < FEW_ROWS)):
        if device.has(name) and some(here):
            return (name,)
    quantiser = _quantiser(kind, shape)
    return (main, quantiser) if quantiser else (main,)


def grouped_gemm(device: Device, shape: Shape, dtype: str) -> Any:
    """Return ``groups`` products of (m / groups × k) · (k × n) in one kernel, operands quantised already."""
    m, n, k, groups = (shape[name] * 1.0 for name in ("m", "n", "k", "groups"))
    kind, x = gemm_scheme(device, dtype), device.x
    name = f"gemm{kind.suffix}"
    figures = device.kernel(name)
    met = x.minimum(groups, m)
    tiles = met * x.ceil(m / met / figures.rows) * x.ceil(n / figures.columns)
    group = 2 * figures.rows * figures.columns * k / (device.rate(kind.compute) * figures.share) * 1e6
    moved = m * k * kind.activation + met * n * k * kind.weight + m * n * 2
    return device.issued(name, device.time(name, tiles, group, moved))


def grouped_kernels(device: Device, shape: Shape, dtype: str) -> tuple[str, ...]:
    return (f"gemm{scheme(dtype).suffix}",)


def moe(device: Device, shape: Shape, dtype: str) -> Any:
    """Return a layer of experts on the busiest rank: rows are permuted, multiplied (gate and up, then down)
    by the experts that they meet, permuted back, and summed over the top k. ``tokens`` are those of all
    ranks."""
    kind, x = gemm_scheme(device, dtype), device.x
    main = f"moe{kind.suffix}"
    time = _moe(device, shape, kind, main)
    if device.has(f"{main}_ep"):
        time = x.where(shape["expert_parallel"] > 1, _moe(device, shape, kind, f"{main}_ep"), time)
    return time


def _moe(device: Device, shape: Shape, kind: Scheme, name: str) -> Any:
    tokens, hidden, topk = (shape[extent] * 1.0 for extent in ("tokens", "hidden", "topk"))
    inner = shape["inner"] / shape["tensor_parallel"]
    figures, x = device.kernel(name), device.x
    rate = device.rate(kind.compute) * figures.share
    met, tiles, pairs = _load(device, shape, figures.rows)
    time: Any = 0.0
    for columns, depth in (((1 + (shape["gated"] > 0)) * inner, hidden), (hidden, inner)):
        groups = tiles * x.ceil(columns / figures.columns)
        work = x.ceil(groups / device.units) * 2 * figures.rows * figures.columns * depth / rate * 1e6
        moved = met * columns * depth * kind.weight + pairs * (columns + depth) * 2
        traffic = moved / (device.bandwidth * figures.bandwidth) * 1e6
        time = time + x.maximum(work, traffic) + figures.exposed * x.minimum(work, traffic)
    permuted = pairs if figures.packed else tokens * topk
    around = 4 * permuted * hidden + 4 * tokens * hidden + 6 * pairs * inner
    aligned = shape["experts"] / (shape["expert_parallel"] if figures.packed else 1)
    start = figures.start_us + aligned * (figures.split_us or 0.0)
    return device.issued(name, start + time + around / (device.bandwidth * figures.passes) * 1e6)


def _load(device: Device, shape: Shape, rows: int) -> tuple[Any, Any, Any]:
    """Return for the busiest rank: experts that some row meets, tiles of rows, and rows (token, expert).

    ``skew`` is 100 times the exponent of a power law of loads; 0: rows are spread evenly.
    """
    x = device.x
    tokens, topk, experts = (shape[extent] * 1.0 for extent in ("tokens", "topk", "experts"))
    ranks, skew = shape["expert_parallel"], x.minimum(shape["skew"] / 100, MAX_EXPONENT)
    own = experts / ranks
    skewed, alpha = skew > 0, x.where(skew > 0, skew + 1e-5, 1.5)  # moments of whole exponents are limits
    most = x.maximum(BUSIEST * tokens, 1.001) ** (1 - alpha)
    scale = (1 - most) / (alpha - 1)
    mean, square = (_moment(power, alpha, most, x) / scale for power in (1, 2))
    spread = x.sqrt(x.maximum(square / mean**2 - 1, 0.0))
    top = ((most - 1) * (1 - 0.5 / experts) + 1) ** (1 / (1 - alpha)) / mean
    above = 1 + spread / own**0.5 * SPREAD * x.sqrt(2 * x.log(ranks * 1.0))
    above = x.where(skewed & (ranks > 1), x.maximum(above, (top + own - 1) / own), 1.0)
    pairs = x.minimum(tokens * topk / ranks * above, tokens * x.minimum(topk, own))
    met, tiles = 0.0, 0.0
    loads = [((most - 1) * (i + 0.5) / LIKELY + 1) ** (1 / (1 - alpha)) for i in range(LIKELY)]
    middle = sum(loads) / LIKELY
    for load in loads:
        each = x.minimum(pairs / own * x.where(skewed, load / middle, 1.0), tokens)
        some = x.where(skewed, 1 - x.exp(-each), x.minimum(each, 1.0))
        met = met + own * some / LIKELY
        tiles = tiles + own * some * x.ceil(each / x.maximum(some, 1e-9) / rows) / LIKELY
    return x.maximum(met, x.minimum(pairs, 1.0)), x.maximum(tiles, 1.0), pairs


def _moment(power: int, alpha: Any, most: Any, x: Any) -> Any:
    """Integrate x^(power - alpha) from 1 to the largest load; ``most`` is that load to 1 - alpha."""
    return (most ** ((power + 1 - alpha) / (1 - alpha)) - 1) / (power + 1 - alpha)


def moe_kernels(device: Device, shape: Shape, dtype: str) -> tuple[str, ...]:
    main = f"moe{scheme(dtype).suffix}"
    return (f"{main}_ep" if device.has(f"{main}_ep") and some(shape["expert_parallel"] > 1) else main,)
