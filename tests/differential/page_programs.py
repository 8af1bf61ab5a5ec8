"""Generator b: programs of several phases, written from the reference page alone.

Program n has one to four phases; each reads the input or the tensor of an earlier phase and writes a new one.
All tensors are outputs, so all are compared.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import tests.differential.more_phases  # noqa: F401  (registers its kinds)
from tests.differential.phases import KINDS, Launch, Phase
from tests.differential.values import NUMPY, Value, converted

import megatile.language as T

INNER_EXTENT = 64
MOST = 64


class PageProgram(NamedTuple):
    seed: int
    launch: Launch
    source: Value
    phases: tuple[Phase, ...]
    program: Any

    def inputs(self) -> dict[str, np.ndarray]:
        draw = np.random.default_rng(self.seed)
        small = draw.integers(-8, 9, self.source.shape) / 4
        numbers = draw.integers(-100, 101, self.source.shape) if self.source.whole else small
        return {
            "source": converted(numbers, self.source.dtype),
            "weights": (draw.integers(-8, 9, (INNER_EXTENT, 11)) / 4).astype(np.float32),
            "index": draw.integers(0, 1000, 13).astype(np.int32),
            "counts": draw.integers(0, MOST + 1, 8).astype(np.int32),
            "s": np.float32(draw.choice((-1.5, 0.5, 2.0))),
        }

    def results(self) -> list[np.ndarray]:
        return [np.zeros(f.result.shape, NUMPY[f.result.dtype]) for f in self.phases]

    def expected(self) -> list[np.ndarray]:
        inputs = self.inputs()
        known = {self.source.name: inputs["source"]}
        for phase in self.phases:
            known[phase.result.name] = KINDS[phase.kind].oracle(phase.p, known[phase.source.name], inputs)
        return [known[phase.result.name] for phase in self.phases]

    def wrong(self, got: list[np.ndarray]) -> str | None:
        """The first phase whose tensor differs, and where; what comes of it is not looked at."""
        every = zip(self.phases, got, self.expected(), strict=True)
        for number, (phase, found, wanted) in enumerate(every):
            if phase.result.exact:
                wide, other = found.astype(np.float64), wanted.astype(np.float64)
                same = (wide == other) | (np.isnan(wide) & np.isnan(other))
            else:
                size = max(1.0, float(np.max(np.abs(wanted), initial=0)))
                same = np.isclose(found, wanted, rtol=2e-3, atol=1e-3 * size)
            if not same.all():
                at = tuple(int(i) for i in np.argwhere(~same)[0])
                return (
                    f"phase {number} {phase.kind}: {(~same).sum()} of {same.size} elements; at {at} "
                    f"{found[at]}, not {wanted[at]}; {phase.p}"
                )
        return None


def page_program(seed: int) -> PageProgram:
    """Program number ``seed``; every fourth is of several devices."""
    rng = random.Random(f"page {seed}")
    devices = rng.choice((2, 4)) if seed % 4 == 3 else 1
    launch = Launch(rng.randint(1, 6), rng.choice((2, 4)), devices)
    shape = (rng.randint(1, 4) * 4 if devices > 1 else rng.randint(1, 33), rng.randint(1, 32))
    dtype = rng.choice(("f32", "f32", "f16", "bf16", "f64", "i32", "i8", "u8", "i16"))
    whole = dtype[0] in "iu"
    source = Value("source", shape, dtype, True, 100 if whole else 2, 0 if whole else 2)
    known, phases = [source], []
    wanted = rng.randint(1, 4)
    kinds = [name for name, kind in KINDS.items() if kind.devices == (devices > 1)]
    while len(phases) < wanted:
        name, read = rng.choice(kinds), rng.choice((known[-1], known[-1], rng.choice(known)))
        drawn = KINDS[name].draw(rng, read, launch)
        if drawn is None:
            continue
        result = drawn[0]._replace(name=f"result{len(phases)}")
        phases.append(Phase(name, read, result, drawn[1]))
        if result.shape[1] <= INNER_EXTENT and result.shape[0] <= MOST:
            known.append(result)
    return PageProgram(seed, launch, source, tuple(phases), build(launch, source, phases))


class Names:
    """What a phase sees of its program."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known, most=MOST)


def build(launch: Launch, source: Value, phases: list[Phase]) -> Any:
    shapes = [source, *(phase.result for phase in phases)]
    filled = [*shapes, *[Value(f"unused{k}", (1, 1), "f32", True, 0, 0) for k in range(5 - len(shapes))]]
    types = [T.Tensor(value.shape, value.dtype) for value in filled]
    extents = {"device": launch.devices, "block": launch.blocks, "warpgroup": 2, "warp": launch.warps // 2}

    @T.program
    def program(
        source: types[0], weights: T.Tensor((INNER_EXTENT, 11), "f32"), index: T.Tensor((13,), "i32"),
        counts: T.Tensor((8,), "i32"), s: T.float32, result0: types[1], result1: types[2], result2: types[3],
        result3: types[4],
    ):  # fmt: skip
        with T.Kernel(**extents):
            known = {
                "source": source,
                "result0": result0,
                "result1": result1,
                "result2": result2,
                "result3": result3,
            }
            for phase in phases:
                KINDS[phase.kind].emit(
                    Names(
                        source=known[phase.source.name], result=known[phase.result.name], weights=weights,
                        index=index, counts=counts, s=s,
                    ),
                    phase.p,
                )  # fmt: skip

    return program
