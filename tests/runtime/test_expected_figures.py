"""Figures of a computer that is imitated, line by line (`tests.expected`)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.expected import digest, line

import megatile as mt
from megatile.ir.printer import show
from megatile.runtime.benches import probe
from megatile.runtime.measure import Measured, figures, probes, samples

Check = Callable[[str, dict[str, Any]], None]


class Code:
    """A compiled program whose times are given by its arguments."""

    calls: ClassVar[list[str]] = []

    def __init__(self, program: Any, threads: int):
        self.program, self.threads = program.build("dgx-h100"), threads
        self.shapes = [tuple(map(int, p.shape)) for p in self.program.params]

    def code_for(self, _: Any) -> Code:
        return self

    def profile(self, *arrays: np.ndarray, repeat: int) -> Any:
        sizes = [array.nbytes for array in arrays]
        Code.calls.append(
            f"{self.program.name} {self.threads} {repeat} {sizes} {[a.flat[0] for a in arrays]}"
        )
        far = sum(sizes) / (1 + 3e-7 * sum(sizes)) if sum(sizes) > 1 << 21 else 0
        seconds = 1e-6 * (2 + len(sizes)) + 1e-11 * sum(sizes) + 1e-7 * len(Code.calls) % 7e-7
        return SimpleNamespace(seconds=seconds + 2e-10 * far + 4e-7 * (self.threads - 1))


@pytest.mark.parametrize(("cores", "quick"), [(4, False), (3, True), (1, True)])
def test_figures_of_an_imitated_computer(
    cores: int, quick: bool, expected: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    hda = mt.machine(
        "cpu", cores=cores, l1="32 KiB", l2="512 KiB", l3="16 MiB", vector_bits=256, clock="3 GHz"
    )
    told: list[str] = []
    monkeypatch.setattr(probes, "machine", lambda _: hda)
    monkeypatch.setattr(probes, "compile_program", Code)
    monkeypatch.setattr(probes, "MAX_ARRAY_BYTES", 4 << 20)
    monkeypatch.setattr(probes, "vector_bits", lambda: 256)
    monkeypatch.setattr(Code, "calls", [])

    def native(name: str) -> Callable[..., int]:
        def call(*numbers: Any) -> int:
            told.append(f"{name} {[n.value for n in numbers if abs(n.value or 0) < 1 << 32]}")
            return 64

        return call

    names = ("follow", "read_all", "chains_f32", "chains_f64")
    monkeypatch.setattr(probes, "_native", lambda: SimpleNamespace(**{name: native(name) for name in names}))

    def timed(call: Callable[[], object], runs: int) -> list[float]:
        call()
        return [1e-6 * (3 + len(told) % 5 + run) for run in range(runs)]

    monkeypatch.setattr(probes, "timed", timed)
    monkeypatch.setattr(
        probes,
        "run",
        lambda work, count, args=(): told.append(f"{work.__name__} {count} {args}") or [3e-6, 1e-6],
    )
    monkeypatch.setattr(probes, "_seconds", lambda call: 0.004 + 0.001 * bool(call()))
    host, found = probes.Host(quick), []
    for turn in range(3):
        host.turn = turn
        found = [figure for _, probe in probes.PROBES for figure in probe(host)]
    case = f"{cores} cores{' quick' * quick}"
    rows = {f"{case}, {f.name}": line(**{k: str(v) for k, v in f.json().items()}, text=f.text) for f in found}
    rows[f"{case}, calls"] = line(count=len(Code.calls), calls=digest(Code.calls), native=digest(told))
    measured = Measured("imitated", tuple(found))
    rows[f"{case}, rows"] = line(rows=[str(row) for row in measured.rows()], table=str(measured))
    expected("figures", rows)


def test_lines_of_memory_are_one_circle(expected: Check) -> None:
    chain = probes._chain(64 * 37)
    steps, at = [], 0
    for _ in range(37):
        at = (int(chain[at, 0]) - chain.ctypes.data) // 64
        steps.append(at)
    assert sorted(steps) == list(range(37))
    expected("circle", {"37 lines": line(steps=steps)})


@pytest.mark.parametrize("each", [1e-9, 4e-6, 3e-5, 1.0])
def test_short_calls_are_repeated(each: float, expected: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], [0]

    def call() -> None:
        now[0] += each * (1 + calls[0] % 3)
        calls[0] += 1

    monkeypatch.setattr(figures, "time", SimpleNamespace(thread_time=lambda: now[0]))
    found = figures.timed(call, 3)
    expected("repeated", {f"{each}": line(found=found, calls=calls[0])})


def test_samples_and_figures(expected: Check) -> None:
    found: dict[str, Any] = {}
    for values in ([3.0, 1.0, 2.0], [0.0], [1e-15, 5.0], [2.0, 2.0], [1.0, 4.0]):
        sample = figures.sampled(values)
        for seconds, parts in ((0.0, 1), (0.5, 2), (5.0, 4)):
            found[f"{values} less {seconds} of {parts}"] = line(
                one=str(sample), less=str(sample.less(seconds, parts))
            )
    for unit, value in (("s", 2.5e-7), ("B", 3000.0), ("B", 100.0), ("B/s", 3.21e9), ("FLOP/s", 7.5e11)):
        figure = figures.Figure("x.y.z", value, unit, 0.0123, 4, "by hand")
        found[f"{value} {unit}"] = line(text=figure.text, shown=figure.shown, source=figure.source)
    expected("samples", found)


def test_programs_that_are_timed(expected: Check) -> None:
    made = {
        "scaling": samples.scaling(4, 6, 3), "polynomial": samples.polynomial(4, 6, 3, "f64"),
        "exponentials": samples.exponentials(4, 6, 3), "products": samples.products(4, 6, 8, 3),
        "products of f64": samples.products(4, 6, 8, 3, "f64"), "copies": samples.copies(10, 4),
        "nothing": samples.nothing(3), "reducing": samples.reducing(5, 3), "moving": samples.moving(7),
    }  # fmt: skip
    texts = {name: show(program.build("dgx-h100")) for name, program in made.items()}
    expected("programs", {name: line(text=text) for name, text in texts.items()})


@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 4, 2), (3, 2, 1), (700, 2, 2)])
def test_loads_of_the_probe(shape: tuple[int, int, int], expected: Check, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    pes, cubes, devices = shape
    torch = SimpleNamespace(shape=SimpleNamespace(pes=pes, cubes=cubes, devices=devices))
    took = lambda _, loads, nbytes: 5.0 + loads.offset % 7 + loads.issuers + nbytes / 64  # noqa: E731
    monkeypatch.setattr(probe, "transfer_ns", took)
    assert probe.run(torch) == 0
    cases = [f"{name} {loads}" for name, loads in probe.cases(torch)]
    expected("probe", {f"{shape}": line(cases=cases, printed=capsys.readouterr().out, n=len(cases))})


@pytest.mark.parametrize(
    "loads", [probe.Loads(2), probe.Loads(1, offset=1), probe.Loads(2, 2, 1, 1)], ids=str
)
def test_times_of_the_probe(loads: Any, expected: Check) -> None:
    with mt.host("ahbm", sips=1) as torch:
        expected("probe", {f"{loads}": line(ns=[probe.transfer_ns(torch, loads, n) for n in (64, 512)])})
