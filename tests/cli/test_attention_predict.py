"""``megatile attention predict``."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from megatile.cli.attention_predict import read_lengths
from megatile.cli.main import app
from megatile.core.errors import MegatileError


def run(*arguments):
    result = CliRunner().invoke(app, ["attention", "predict", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_the_table_names_winner_and_reason():
    text = run("-m", "mi300x-8", "--seqlen", "4K", "--heads", "8", "--schedule", "ring,hamilton")
    assert "4000 tokens, 8 heads (8 KV) of 128" in text
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
    found = json.loads(run(*options, "--json", "--plot", str(picture)))
    assert [entry["length"] for entry in found] == [2000, 4000]
    assert found[0]["baseline"] == "zigzag"
    row = found[0]["schedules"][1]
    assert row["schedule"] == "hamilton"
    assert row["time_us"] == pytest.approx(row["compute_us"] + row["exposed_us"])
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_lengths():
    assert read_lengths("8192, 10K,1.5M") == [8192, 10_000, 1_500_000]
    for bad in ("", "ten", "0", "-3"):
        with pytest.raises(MegatileError, match="is no number of tokens"):
            read_lengths(bad)
