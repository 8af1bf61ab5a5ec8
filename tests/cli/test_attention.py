"""megatile attention plan and bench."""

from __future__ import annotations

import importlib.util
import json

import pytest


def test_plan_shows_cycles_and_even_links(megatile, tmp_path):
    picture = tmp_path / "cycles.png"
    shown = megatile("attention", "plan", "--ranks", 8, "--png", picture)
    assert shown.code == 0
    assert "chunk   6: 0 →" in shown.out
    assert ["0", "56", "2"] in [line.split()[:3] for line in shown.out.splitlines()]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plan_as_json(megatile):
    shown = megatile("attention", "plan", "--ranks", 6, "--schedule", "hamilton:3x2", "--causal", "--json")
    plan = json.loads(shown.out)
    assert plan["layout"] == "zigzag"
    assert len(plan["cycles"]) == plan["chunks_of_KV"] == 6
    assert [step["step"] for step in plan["steps"]] == list(range(6))


def test_mistakes(megatile, tmp_path):
    assert "did you mean 'hamilton'" in megatile("attention", "plan", "--schedule", "hamiltonn").err
    wrong = megatile("attention", "plan", "--schedule", "direct", "--png", tmp_path / "a.png")
    assert "no cycles" in wrong.err
    assert wrong.code == 1
    for command in (["plan", "--png"], ["predict", "--seqlen", "1K", "--plot"]):
        assert "there is no folder" in megatile("attention", *command, tmp_path / "none" / "a.png").err
        assert "is not the name of a picture" in megatile("attention", *command, tmp_path / "a.xyz").err


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_bench_runs_checks_and_prints(megatile):
    small = [
        "--nproc",
        2,
        "--seqlen",
        66,
        "--heads",
        2,
        "--head-dim",
        8,
        "--repeats",
        1,
        "--causal",
        "--backward",
    ]
    shown = megatile("attention", "bench", "--schedule", "zigzag,hamilton", *small, "--json")
    rows = json.loads(shown.out)["rows"]
    assert [row["schedule"] for row in rows] == ["zigzag", "hamilton"]
    assert all(row["correct"] and row["error"] < 1e-5 and row["time_s"] > 0 for row in rows)
    (heads,) = json.loads(megatile("attention", "bench", "--schedule", "ulysses", *small, "--json").out)[
        "rows"
    ]
    assert heads["correct"]
    assert heads["communication_s"] > 0
    twice = megatile("attention", "bench", "--schedule", "ring,ring", *small)
    assert twice.code == 0
    assert twice.err.splitlines()[:2] == ["1/2 ring …", "2/2 ring …"]
    assert "no schedule is named" in megatile("attention", "bench", *small, "--schedule", ",").err
    assert "dtype must be one of" in megatile("attention", "bench", *small, "--dtype", "f99").err


def test_lengths_are_read_like_those_of_predict(megatile):
    shown = megatile("attention", "plan", "--ranks", 4, "--seqlen", "10K", "--json")
    assert shown.out == megatile("attention", "plan", "--ranks", 4, "--seqlen", 10240, "--json").out
    for wrong in ("-4", "many"):
        refused = megatile("attention", "plan", f"--seqlen={wrong}")
        assert refused.code != 0
        assert f"'{wrong}' is not a number of tokens" in refused.err
