"""megatile attention plan and bench."""

from __future__ import annotations

import importlib.util
import json

import pytest
from tests.cli.shared import run

from megatile import predict_kernel, simulate
from megatile.attention.plans import Problem, attention_plan
from megatile.attention.predict import predict
from megatile.cli.attention import read_lengths
from megatile.core.errors import MegatileError


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


def test_the_table_names_winner_and_reason():
    text = run("-m", "mi300x-8", "--seqlen", "4K", "--heads", "8", "--schedule", "ring,hamilton")
    assert "4096 tokens, 8 heads (8 KV) of 128" in text
    assert "hamilton *" in text
    assert "links instead of 8" in text


def test_json_and_picture(tmp_path):
    picture = tmp_path / "prediction.png"
    options = [
        "--seqlen",
        "2K,4K",
        "--heads",
        "8",
        "--kv-heads",
        "2",
        "--causal",
        "--schedule",
        "zigzag,hamilton",
    ]
    found = json.loads(run(*options, "--json", "--plot", str(picture)))["rows"]
    assert [entry["length"] for entry in found] == [2048, 4096]
    assert found[0]["baseline"] == "zigzag"
    row = found[0]["schedules"][1]
    assert row["schedule"] == "hamilton"
    assert row["time_us"] == pytest.approx(row["compute_us"] + row["exposed_us"])
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_lengths():
    assert read_lengths("8192, 10K,1.5M") == [8192, 10_240, 1_572_864]
    for bad in ("", "ten", "0", "-3", "1.5", "0.0001K", "nan", "inf"):
        with pytest.raises(MegatileError, match="is not a number of tokens"):
            read_lengths(bad)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seqlen", "0"], "'0' is not a number of tokens"),
        (["--seqlen", "10K,10Q"], "'10Q' is not a number of tokens"),
        (["--seqlen", "1e30"], "keys are too many to count"),
        (["--ranks", "0"], "at least one device, got ranks=0"),
        (["--ranks", "9"], "needs 9 units of 'device'"),
        (["--kv-heads", "5"], "32 query heads cannot share 5 KV heads"),
        (["--schedule", "hamiltn"], "hamilton"),
        (["--schedule", ","], "no schedule is named"),
        (["--schedule", ""], "no schedule is named"),
        (["--dtype", "bf17"], "did you mean 'bf16'"),
        (["--machine", "hgx-a100", "--dtype", "f8e4m3"], "no throughput for f8e4m3"),
        (["--plot", "prediction.txt"], "is not the name of a picture"),
        (["--cu-seqlens", "0,4K,2K"], "--cu-seqlens 0,4K,2K must begin with 0 and rise"),
        (["--cu-seqlens", "8K"], "must begin with 0 and rise"),
    ],
)
def test_one_clear_error(options, told):
    with pytest.raises(MegatileError) as caught:
        run(*([] if "--seqlen" in options else ["--seqlen", "1K"]), *options)
    assert told in str(caught.value)


def test_odd_problems():
    assert "one device has nothing to exchange" in run("--ranks", "1", "--seqlen", "7")
    cpu = run("--machine", "cpu", "--seqlen", "64", "--heads", "2", "--head-dim", "16", "--dtype", "f32")
    assert "on 1 device of cpu" in cpu
    few = json.loads(run("--seqlen", "7", "--heads", "4", "--kv-heads", "2", "--json"))["rows"]
    names = {row["schedule"] for row in few[0]["schedules"]}
    assert {"ring", "hamilton", "direct"} <= names
    assert "ulysses" not in names
    long = json.loads(run("-m", "mi300x-8", "--seqlen", "10M", "--schedule", "ring,hamilton", "--json"))[
        "rows"
    ]
    assert long[0]["winner"] == "hamilton"
    assert all(row["exposed_us"] >= 0 for row in long[0]["schedules"])


def test_packs():
    options = ("--schedule", "ring,hamilton", "--cu-seqlens", "0,4K,6K,8K")
    assert "attention of 8192 tokens in 3 sequences, 32 heads" in run(*options)


def test_kernels_are_chosen_by_name():
    options = ("--seqlen", "64K", "--schedule", "zigzag", "--causal", "--json", "-m")
    times = {
        k: json.loads(run(*options, "dgx-h100", *k))["rows"][0]
        for k in ((), ("--kernel", "fa2"), ("--kernel", "fa3"))
    }
    first, second, third = (x["schedules"][0]["time_us"] for x in times.values())
    assert first == second > 1.3 * third
    for machine, kernel, told in (
        ("dgx-h100", "ck", "no figures of the kernel 'ck' (try: use fa2 or fa3,"),
        ("mi300x-8", "fa3", "use ck, or describe it as 'prefill'"),
        ("dgx-h100", "cudnn", "or describe it as 'cudnn.prefill'"),
        ("dgx-h100", "fa4", "there is no kernel 'fa4'"),
    ):
        with pytest.raises(MegatileError) as caught:
            run(*options, machine, "--kernel", kernel)
        assert told in str(caught.value)


def test_times_of_attention_name_their_kernel():
    options = ("-m", "dgx-h100", "--ranks", "1", "--heads", "1", "--seqlen", "128K", "--causal")
    assert "local attention: flash-attn 2 (kernel fa2; others: fa3)" in run(*options)
    found = json.loads(run(*options, "--kernel", "fa3", "--json"))["rows"][0]
    assert found["kernel"] == "FlashAttention 3 (kernel fa3; others: fa2)"
    shape = {"batch": 1, "queries": 131072, "context": 0, "heads": 1, "kv_heads": 1}
    alone = predict_kernel("attention", machine="dgx-h100", **shape)
    assert found["schedules"][0]["time_us"] == pytest.approx(alone.time_us, rel=0.05)
    plain = simulate(attention_plan("ring", Problem(16384, 1, causal=True), ranks=1), machine="dgx-h100")
    assert plain.model == "no communication; attention by the peak rate of its engine, no kernel's"
    named = predict("dgx-h100", Problem(16384, 1, causal=True), schedules=["ring"], ranks=1).winner.result
    assert "attention by flash-attn 2" in named.model
