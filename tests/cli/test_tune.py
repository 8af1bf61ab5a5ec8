"""``megatile tune`` and ``megatile sweep``."""

import json
import re
from pathlib import Path

import megatile as mt

FACTORIES = Path(__file__).parents[1] / "tuning" / "factories.py"


def test_tune_a_program(megatile, tmp_path):
    store = tmp_path / "s.sqlite"
    asked = ("tune", f"{FACTORIES}:gemm(128, 128, K=64)", "-c", "bM=16,64", "-c", "bN=16,64", "--workers", 1)
    done = megatile(*asked, "--store", store)
    assert done.code == 0, done.err
    assert "times as fast as the default" in done.out
    found = json.loads(megatile(*asked, "--store", store, "--json").out)
    assert found["best"] == {"bM": 64, "bN": 64} or found["speedup"] >= 1
    assert len(found["rows"]) == 4
    assert found["verified"].startswith("results match")


def test_refused_choices_say_why_and_have_no_bound(megatile):
    asked = (
        "tune",
        f"{FACTORIES}:gemm(1024, 8192, K=1024)",
        "-c",
        "bM=128,2048",
        "-c",
        "bN=128",
        "--workers",
        1,
    )
    done = megatile(*asked)
    row = next(line for line in done.out.splitlines() if line.startswith("2048"))
    assert row.split() == ["2048", "128", "refused", "(1)"]
    assert "(1) refused 1: " in done.out
    assert "'registers'" in done.out
    assert "tune a smaller shape to verify them" in done.out
    assert json.loads(megatile(*asked, "--json").out)["rows"][-1]["bound_us"] is None


def test_sweep_a_plan_a_program_and_a_collective(megatile, tmp_path):
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1 << 22, algorithm="ring")
    file, picture = tmp_path / "p.json", tmp_path / "p.png"
    file.write_text(plan.to_json(), encoding="utf-8")
    over = ("-o", "networks.nvlink.bandwidth=45 GB/s,450 GB/s", "--workers", 1)
    rows = json.loads(megatile("sweep", file, *over, "--plot", picture, "--json").out)["rows"]
    assert rows[0]["time_us"] > rows[1]["time_us"] == mt.simulate(plan, machine="dgx-h100").time_ps / 1e6
    assert picture.stat().st_size > 1000
    done = megatile("sweep", f"{FACTORIES}:gemm", *over[:2], "--workers", 1)
    assert done.code == 0, done.err
    done = megatile("sweep", f"{FACTORIES}:gemm", "-o", "memory.shared.size=2 KiB,64 KiB", "--workers", 1)
    head, small, *_ = done.out.splitlines()
    assert head.split()[-2:] == ["model", "note"]
    assert "refused: " in small
    done = megatile("sweep", "all_reduce", "-b", "4KiB", "-o", "gpus=2,4", "--workers", 1, "--set", "gpus=8")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 3


def test_a_tuned_sweep_says_why_most_choices_are_refused(megatile):
    over = ("-o", "memory.shared.size=2 KiB,64 KiB", "-t", "bM=32,64", "--workers", 1)
    done = megatile("sweep", f"{FACTORIES}:gemm", *over)
    assert done.code == 0, done.err
    assert re.search(
        r"^most frequent reason of refusal \(\d of \d\): .*'shared', but there are 1 KiB",
        done.out,
        re.MULTILINE,
    )


def test_mistakes_are_one_line(megatile):
    for arguments, message in (
        (("tune", FACTORIES, "-c", "bM=1"), "is not a function"),
        (("tune", f"{FACTORIES}:gem", "-c", "bM=1"), "did you mean 'gemm'"),
        (("tune", f"{FACTORIES}:gemm", "-c", "bM"), "has no values"),
        (("tune", f"{FACTORIES}:gemm", "-c", "b=1"), "no parameter 'b'"),
        (("tune", f"{FACTORIES}:needy", "-c", "b=1"), "the factory needs size too"),
        (("tune", f"{FACTORIES}:CHOICES", "-c", "b=1"), "does not make Plans"),
        (("sweep", "none.json", "-o", "gpus=2"), "cannot be read"),
        (("sweep", "all_reduce", "-b", "4KiB", "-o", "gpu=2"), "no parameter 'gpu'"),
        (("sweep", "all_think", "-b", "4KiB", "-o", "gpus=2,4"), ""),
    ):
        done = megatile(*arguments)
        assert message in done.err + done.out
        assert len(done.err.splitlines()) <= 1
