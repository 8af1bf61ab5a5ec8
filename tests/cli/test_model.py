"""``megatile model``: each command prints for people and as JSON, and says in a sentence what is wrong."""

import json
import os

import pytest

from megatile.tuning.executors import begin_worker


def test_list_and_memory(megatile):
    rows = json.loads(megatile("model", "list", "--json").out)["rows"]
    assert {"Llama-3.1-70B", "DeepSeek-R1"} <= {row["model"] for row in rows}
    assert "70.55 B" in megatile("model", "list").out
    refused = megatile("model", "memory", "Llama-3.1-70B")
    assert "does not fit (try: tp 2)" in refused.out
    assert refused.code == 1
    many = megatile("model", "memory", "Llama-3.1-70B", "-m", "b200-8", "--requests", 64, "--context", 8192)
    assert "(try: tp 2, or at most 10 requests)" in many.out
    found = json.loads(megatile("model", "memory", "Llama-3.1-70B", "--tp", 4, "--json").out)
    assert found["fits"]
    most = found["most_requests"]
    fits = [
        json.loads(megatile("model", "memory", "Llama-3.1-70B", "--tp", 4, "--requests", n, "--json").out)[
            "fits"
        ]
        for n in (most - 1, most + 2)
    ]
    assert fits == [True, False]


def test_predict(megatile, tmp_path):
    asked = ("model", "predict", "Llama-3.1-8B", "--tp", 2, "--batch", 4, "--isl", 128, "--osl", 64)
    page, table = tmp_path / "p.html", tmp_path / "p.csv"
    found = json.loads(megatile(*asked, "--json", "--csv", table).out)
    decode = [row for row in found["rows"] if row["step"] == "decode"]
    assert sum(row["time_us"] for row in decode) / 1e3 == pytest.approx(found["decode_ms"], rel=1e-6)
    assert table.read_text().count("\n") == len(found["rows"]) + 1
    text = megatile(*asked, "--report", page, "--trace", tmp_path / "t.json.gz").out
    assert "decode attention" in text
    assert "<html" in page.read_text()
    faster = megatile(*asked, "--json", "--set", "memory.hbm.bandwidth='6700 GB/s'").out
    assert json.loads(faster)["decode_ms"] < found["decode_ms"]


def test_serve_and_search(megatile, tmp_path):
    serve = ("model", "serve", "Llama-3.1-8B", "--isl", 64, "--osl", 16, "--concurrency", 4)
    found = json.loads(megatile(*serve, "--json", "--csv", tmp_path / "s.csv").out)
    assert [row["measure"] for row in found["rows"]] == ["ttft_ms", "tpot_ms", "itl_ms", "latency_ms"]
    assert "token_budget 512" in megatile(*serve, "--token-budget", 512).out
    search = ("model", "search", "Llama-3.1-8B", "--isl", 64, "--osl", 16, "--concurrency", "1,8")
    text = megatile(*search, "--tpot", "6ms", "--csv", tmp_path / "f.csv").out
    assert "TPOT ≤ 6 ms" in text
    rows = json.loads(megatile(*search, "--tpot", "6", "--json").out)["pareto"]
    assert rows
    assert all(row["tpot_ms"] <= 6 for row in rows)


def test_train(megatile, tmp_path):
    asked = ("model", "train", "Llama-3.1-8B", "--tp", 8, "--pp", 2, "--seq", 1024, "--global-batch", 4)
    found = json.loads(megatile(*asked, "--json").out)
    assert 0 < found["bubble"] < 0.5
    page = tmp_path / "p.html"
    assert "bubble" in megatile(*asked, "--schedule", "zero_bubble", "--report", page).out
    assert "weight gradients" in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "Llama-9"), "there is no model or config file 'Llama-9'"),
        (("predict", "Llama-3.1-8B", "--tp", 5), "tp 5 does not divide 32 heads"),
        (("predict", "Llama-3.1-8B", "--isl", 0), "--isl must be at least 1"),
        (("serve", "Llama-3.1-8B", "--rate", 0), "rate must be positive"),
        (("serve", "Llama-3.1-8B", "--requests", "none.jsonl"), "none.jsonl: cannot be read"),
        (("search", "Llama-3.1-8B", "--ttft", "5kg"), "--ttft must be a time above 0, got '5kg'"),
        (("search", "Llama-3.1-8B", "--concurrency", "many"), "'many' is not a list of numbers"),
    ],
)
def test_mistakes_are_one_sentence(megatile, words, said):
    done = megatile("model", *words)
    assert done.code == 1
    assert said in done.err
    assert done.err.count("\n") == 1


def test_workers_of_a_search_end_with_it(megatile, monkeypatch):
    asked = {}

    def refuse(workers, **how):
        asked.update(how, workers=workers)
        raise OSError("no process left")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refuse)
    said = megatile("model", "search", "Llama-3.1-8B", "--workers", 2).err
    assert "processes cannot be started: no process left" in said
    assert asked == {"workers": 2, "initializer": begin_worker, "initargs": (os.getpid(),)}
