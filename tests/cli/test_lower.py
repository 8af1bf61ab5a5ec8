"""``megatile lower``: a program after each pass."""

from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
GEMM = f"{EXAMPLES / '24_gemm_tensor_parallel.py'}:gemm_tensor_parallel(128, 128, 256)"


def test_every_step_and_the_plan(megatile: Any) -> None:
    found = megatile("lower", GEMM)
    names = [line.removeprefix("--- ") for line in found.out.splitlines() if line.startswith("--- ")]
    assert names[:3] == ["source", "normalise", "resolve_views"]
    assert names[-1] == "plan"
    assert 'plan("gemm", scale="device"' in found.out


def test_one_step(megatile: Any) -> None:
    found = megatile("lower", GEMM, "--after", "resolve_views", "-m", "h100-cluster")
    assert found.out.startswith('def gemm(A: f32[128, 256] @ part("device", shard(1))')
    assert 'machine("h100-cluster")' in found.out
    assert "view(" not in found.out
    assert megatile("lower", GEMM, "--after", "plan").out.startswith('plan("gemm"')


def test_what_a_pass_changes(megatile: Any) -> None:
    found = megatile("lower", GEMM, "--diff")
    assert '-        A_global = view("A", shard(1), "device")' in found.out
    assert "--- remove_jumps\nno change\n" in found.out
    assert megatile("lower", GEMM, "--diff", "--after", "normalise").out == "no change\n"


def test_unknown_passes(megatile: Any) -> None:
    found = megatile("lower", GEMM, "--after", "resolve_view")
    assert found.code == 1
    assert "there is no pass 'resolve_view' (try: did you mean 'resolve_views'?)" in found.err
