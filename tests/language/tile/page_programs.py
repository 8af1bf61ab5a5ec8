"""Random kernels as source text, written with the words of docs/reference/tile-language.md and nothing else.

The interpreter is the judge: the Plan, C and CUDA text must give what it gives.

    python -m tests.language.tile.page_programs 500        # the first 500 seeds; ends with 1 if one differs
"""

from __future__ import annotations

import importlib.util
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import megatile as mt
from megatile.language.tile.errors import ProgramError

ONE = (
    "T.exp(-T.abs({}))", "T.exp2(-T.abs({}))", "T.sqrt(T.abs({}))", "T.rsqrt(T.abs({}) + 1.0)", "T.sin({})",
    "T.cos({})", "T.tanh({})", "T.erf({})", "T.sigmoid({})", "T.abs({})", "T.log(T.abs({}) + 1.0)",
    "T.log2(T.abs({}) + 1.0)", "T.floor({})", "T.ceil({})", "T.round({})",
)  # fmt: skip
TWO = (
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "T.max({}, {})",
    "T.min({}, {})",
    "T.clamp({}, -2.0, T.abs({}))",
)
REDUCE = ("sum", "max", "min", "absmax", "abssum")


class Writer:
    """One kernel in the making: tiles ``t0 t1 t2`` of m × n, ``v`` of m, and a tensor of each kind."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.m, self.n = rng.choice((16, 32)), rng.choice((16, 32, 48))
        self.blocks = rng.randint(1, 3), rng.randint(1, 3)
        self.rows = self.m * self.blocks[1] - rng.choice((0, 0, 5))
        self.columns = self.n * self.blocks[0] - rng.choice((0, 0, 3))
        self.lines: list[str] = []
        self.depth, self.loops = 3, 0
        self.atomics = ("max", "min")[seed % 2]
        """One kind a program: a maximum and a minimum of one element depend on the order of blocks."""

    def add(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def tile(self) -> str:
        return self.rng.choice(("t0", "t1", "t2"))

    def value(self, depth: int) -> str:
        rng = self.rng
        if depth == 0:
            leaf = f"{self.tile()}[i, j]"
            return rng.choice((leaf, leaf, "v[i]", f"{rng.uniform(-2, 2):.3f}", "T.cast(i + j, 'f32')"))
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(ONE).format(self.value(depth - 1))
        if kind < 0.85:
            return rng.choice(TWO).format(self.value(depth - 1), self.value(depth - 1))
        condition = rng.choice(("i < j", "(i + j) % 2 == 0", f"{self.tile()}[i, j] > 0.0"))
        return f"T.if_then_else({condition}, {self.value(depth - 1)}, {self.value(depth - 1)})"

    def elementwise(self) -> None:
        self.add(f"for i, j in T.Parallel({self.m}, {self.n}):")
        self.add(f"    {self.tile()}[i, j] = T.clamp({self.value(self.rng.randint(1, 3))}, -50.0, 50.0)")

    def reduction(self) -> None:
        op, clear = self.rng.choice(REDUCE), self.rng.choice((True, False))
        self.add(f"T.reduce_{op}({self.tile()}, v, dim=1, clear={clear})")
        self.add(f"for i in T.Parallel({self.m}):")
        self.add("    v[i] = T.clamp(v[i], -20.0, 20.0)")

    def product(self) -> None:
        self.add(f"T.copy(a, X[by * {self.m}, 0])")
        self.add(f"T.copy(b, X[0, bx * {self.n}])")
        self.add(f"T.gemm(a, b, {self.tile()}, clear_accum={self.rng.choice((True, False))})")

    def movement(self) -> None:
        one, other = self.tile(), self.tile()
        choices = [
            f"T.copy({one}, X[by * {self.m}, bx * {self.n}])",
            f"T.fill({one}, {self.rng.uniform(-1, 1):.2f})",
        ]
        choices += [f"T.clear({one})", f"T.copy({one}, {other})"] if one != other else []
        choices += [f"T.cumsum({one}, dim={self.rng.randint(0, 1)})"]
        self.add(self.rng.choice(choices))

    def gather(self) -> None:
        self.add(f"for i, j in T.Parallel({self.m}, {self.n}):")
        self.add(f"    {self.tile()}[i, j] = X[I[i], j % {self.columns}]")

    def atomic(self) -> None:
        self.add(f"for i in T.Parallel({self.m}):")
        self.add(f"    T.atomic_{self.atomics}(Z[{self.rng.choice(('i % 4', '-1', 'bx'))}], v[i])")

    def loop(self) -> None:
        self.loops += 1
        name, kind = f"k{self.loops}", self.rng.random()
        count = self.rng.randint(1, 3)
        head = self.rng.choice(
            (f"T.serial({count})", f"T.unroll({count})", f"T.Pipelined({count}, num_stages=2)")
        )
        if kind < 0.2:
            self.add(f"n{self.loops} = T.read_scalar(I[{self.rng.randint(0, 3)}], bound={self.rows})")
            head = f"T.serial(n{self.loops} % 3)"
        self.add(f"for {name} in {head}:")
        self.depth += 1
        if "Pipelined" in head:
            self.add(f"T.copy(t0, X[by * {self.m}, {name} * {self.n}])")
        self.body(self.rng.randint(1, 2))
        self.depth -= 1

    def branch(self) -> None:
        self.add(f"if {self.rng.choice(('bx == 0', '(bx + by) % 2 == 0', 'by > 0'))}:")
        self.depth += 1
        self.body(1)
        self.depth -= 1
        if self.rng.random() < 0.5:
            self.add("else:")
            self.depth += 1
            self.body(1)
            self.depth -= 1

    def body(self, count: int) -> None:
        simple = [
            self.elementwise,
            self.elementwise,
            self.reduction,
            self.movement,
            self.movement,
            self.gather,
        ]
        for _ in range(count):
            nested = [self.loop, self.branch] if self.depth < 5 else []
            self.rng.choice([*simple, *nested, self.product, self.atomic])()

    def text(self) -> str:
        """The file: a program named ``kernel``."""
        m, n = self.m, self.n
        across, down = self.blocks
        self.add(f"t0, t1, t2 = (T.alloc(({m}, {n}), 'f32') for _ in range(3))")
        self.add(f"v = T.alloc(({m},), 'f32')")
        self.add(f"a, b = T.alloc(({m}, 16), 'f16', level='l1'), T.alloc((16, {n}), 'f16', level='l1')")
        if self.rng.random() < 0.3:
            self.add(f"T.use_swizzle({self.rng.randint(1, 3)}, order='{self.rng.choice(('row', 'column'))}')")
        for name in ("t0", "t1", "t2", "v"):
            self.add(f"T.fill({name}, {self.rng.uniform(-1, 1):.2f})")
        self.add(f"T.copy(t1, X[by * {m}, bx * {n}])")
        self.body(self.rng.randint(3, 6))
        self.add(f"T.copy(Y[by * {m}, bx * {n}], {self.tile()})")
        shape, threads = f"({self.rows}, {self.columns})", self.rng.choice((32, 64, 128))
        head = [
            "import megatile.language as T", "", "", "@T.program",
            f"def kernel(X: T.Tensor({shape}, 'f32'), I: T.Tensor(({m},), 'i32'),",
            f"           Y: T.Tensor({shape}, 'f32'), Z: T.Tensor((4,), 'f32')):",
            f"    with T.Kernel(block=({across}, {down}), threads={threads}) as (bx, by):",
        ]  # fmt: skip
        lines = [line[4:] if line.startswith("            ") else line for line in self.lines]
        return "\n".join([*head, *lines, ""])

    def arrays(self) -> list[Any]:
        data = np.random.default_rng(self.rng.randrange(1 << 30))
        x = data.standard_normal((self.rows, self.columns)).astype(np.float32)
        index = data.integers(0, self.rows, self.m).astype(np.int32)
        return [x, index, np.zeros_like(x), np.zeros(4, np.float32)]


def differences(seed: int, folder: Path) -> list[str]:
    """Return who gives something else than the interpreter for the program of a seed."""
    writer = Writer(seed)
    file = folder / f"program_{seed}.py"
    file.write_text(writer.text())
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arrays = writer.arrays()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judge = [a.copy() for a in arrays]
        mt.run(module.kernel, *judge, machine="dgx-h100")
        found = {"plan": [a.copy() for a in arrays]}
        for name, value in mt.execute(module.kernel, *arrays, machine="dgx-h100").items():
            found["plan"]["XIYZ".index(name)] = value
        for target in ("cpu", "cuda"):
            found[target] = [a.copy() for a in arrays]
            mt.compile(module.kernel, target=target, machine="dgx-h100")(*found[target])
    close = {"rtol": 2e-3, "atol": 2e-3}
    return [
        f"seed {seed}: {who} differs in {'XIYZ'[number]}"
        for who, results in found.items()
        for number, (one, other) in enumerate(zip(results, judge, strict=True))
        if not np.allclose(one, other, equal_nan=True, **close)
    ]


def main(count: int) -> int:
    """Try seeds; a program that the language refuses (a pipeline that reads before it copies) is counted."""
    wrong = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(count):
            try:
                said = differences(seed, Path(folder))
            except ProgramError:
                said, refused = [], refused + 1
            except Exception as error:
                said = [f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0]}"]
            wrong += bool(said)
            for line in said:
                print(line, flush=True)
    print(f"{count} programs, {wrong} wrong, {refused} refused")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
