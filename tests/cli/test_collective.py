from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from megatile.cli.collective import read_ranks, read_size
from megatile.cli.main import app
from megatile.collectives import choice_table, ranking
from megatile.collectives.job import read_bytes
from megatile.collectives.planner import collective, predict
from megatile.core.errors import MegatileError


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_table_like_nccl_tests():
    result = run(
        "collective", "all_reduce", "-m", "dgx-h100", "-b", 8, "-e", "32K", "-f", 64, "-a", "ring,auto"
    )
    assert result.exit_code == 0
    head, *lines = [line for line in result.stdout.splitlines() if line and line[0] not in "#-"]
    assert head.split()[:2] == ["size", "(B)"]
    assert head.split()[-1] == "#wrong"
    rows = [line.split() for line in lines]
    assert [r[0] for r in rows] == ["8", "8", "512", "512", "32768", "32768"]
    assert {r[-1] for r in rows} == {"0"}


def test_json_plot_trace_explain(tmp_path):
    plot, trace = tmp_path / "a.png", tmp_path / "t.json"
    result = run(
        "collective", "all_gather", "-m", "mi300x-8", "-b", "1MiB", "--json", "--plot", plot, "--trace", trace
    )
    assert result.exit_code == 0
    (line,) = json.loads(result.stdout)["rows"]
    assert line["size_bytes"] == 1 << 20
    assert line["wrong"] == 0
    assert plot.stat().st_size > 1000
    assert json.loads(trace.read_text())
    assert "NCCL chooses the lowest" in run("collective", "broadcast", "-b", 64, "--explain").stdout


def test_sizes_and_ranks():
    assert [read_size(t) for t in ("8", "1GiB", "128M", "4 kB")] == [8, 1 << 30, 128 << 20, 4000]
    assert {read_size(t) for t in ("64k", "64K", "64.0K", "64 KiB", "65536B", "64.0KiB")} == {65536}
    for text in ("256M", "256MB", "256 MiB", "1.5G", "3"):
        assert read_size(text) == read_bytes(text)
    for wrong in ("64kbit", "64kb", "32 Mb", "", "-8", "64 GB/s", "1e6", "K"):
        with pytest.raises(MegatileError, match="is not a size in bytes"):
            read_size(wrong)
    with pytest.raises(MegatileError, match="-b 64K -e 16M -f 16"):
        read_size("64K,16M")
    assert read_ranks("16") == 16
    assert read_ranks("0,8,16-18") == [0, 8, 16, 17, 18]
    with pytest.raises(MegatileError, match="is not a list of ranks"):
        read_ranks("a-b")


def test_plan_show_and_check(tmp_path):
    plan = collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="ring")
    text, data = tmp_path / "plan.txt", tmp_path / "plan.json"
    text.write_text(str(plan))
    data.write_text(plan.to_json())
    assert run("plan", "show", text).stdout == run("plan", "show", data).stdout == str(plan)
    assert "8 units, 1 streams, 112 messages" in run("plan", "check", data, "-m", "dgx-h100").stdout
    assert run("plan", "check", tmp_path / "none.json").exit_code == 1


def lines(*arguments):
    done = run("collective", "all_reduce", "-m", "mi300x-8", "--no-check", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["rows"]


def test_among_protocol_and_graph():
    (free,) = lines("-b", 4096)
    (bound,) = lines("-b", 4096, "--among", "ring,tree")
    assert bound["algorithm"].split("(")[0] in ("ring", "tree")
    assert bound["time_us"] >= free["time_us"]
    bulk, small = (lines("-b", 64, "-a", "ring", "--protocol", p)[0]["time_us"] for p in ("Simple", "LL"))
    assert small < bulk
    found = predict(
        "all_reduce", machine="mi300x-8", nbytes=64, algorithm="ring", launch=False, in_place=True
    )
    assert lines("-b", 64, "-a", "ring", "--graph")[0]["time_us"] == found.time_ps / 1e6


def test_a_table_file_is_used_again(tmp_path, monkeypatch):
    table = tmp_path / "t.json"
    first = lines("-b", 64, "-e", 4096, "-f", 8, "--among", "ring,direct", "--table", table)
    monkeypatch.setattr(ranking, "rank", None)
    assert lines("-b", 64, "-e", 4096, "-f", 8, "--among", "ring,direct", "--table", table) == first
    table.write_text("{}")
    done = run("collective", "all_reduce", "-m", "mi300x-8", "-b", 64, "--table", table)
    assert isinstance(done.exception, MegatileError)
    assert "not a table of choices" in str(done.exception)


def test_a_table_of_another_version_is_reported(tmp_path, megatile, monkeypatch):
    table = tmp_path / "t.json"
    monkeypatch.setattr(choice_table, "__version__", "0.0.1")
    lines("-b", 64, "-e", 128, "--among", "ring", "--table", table)
    monkeypatch.undo()
    done = megatile(
        "collective", "all_reduce", "-m", "mi300x-8", "-b", 64, "--among", "ring", "--table", table
    )
    assert done.code == 0
    assert done.err.count("note: ") == 1
    assert "made by megatile 0.0.1" in done.err


@pytest.mark.parametrize("factor", ["nan", "inf", "-inf", "1"])
def test_a_factor_that_leads_nowhere_is_refused(megatile, factor):
    done = megatile("collective", "all_reduce", "-e", "1K", "-f", factor)
    assert done.code == 1
    assert done.err.startswith("error: factor")


def test_all_to_all_needs_no_options(megatile):
    """Blocks of the default sizes are uneven, which goes out of place only: so that is what it does."""
    done = megatile("collective", "all_to_all", "-m", "dgx-h100", "-b", 8, "-e", 4096, "-f", 512)
    assert done.code == 0
    assert "out of place" in done.out
    refused = megatile("collective", "all_to_all", "-m", "dgx-h100", "-b", 8, "--in-place")
    assert refused.code == 1
    assert "equal blocks" in refused.err


def test_a_barrier_has_no_bandwidth():
    (line,) = json.loads(run("collective", "barrier", "-b", "2M", "--json").stdout)["rows"]
    assert (line["algbw_gb_per_s"], line["busbw_gb_per_s"]) == (0, 0)


def test_among_without_auto_is_refused(megatile):
    done = megatile("collective", "all_reduce", "-a", "ring", "--among", "tree")
    assert done.code == 1
    assert "auto" in done.err


def test_too_many_ranks_names_what_the_machine_has(megatile):
    done = megatile("collective", "all_reduce", "-m", "dgx-h100", "--ranks", 99)
    assert done.code == 1
    assert "gpus" in done.err
    assert "nodes=4" not in done.err


def test_a_buffer_larger_than_any_memory_is_refused(megatile):
    done = megatile("collective", "all_reduce", "-m", "dgx-h100", "-b", "1TiB", "-a", "ring")
    assert done.code == 1
    assert "80 GB" in done.err or "hbm" in done.err


def test_no_bytes_is_a_size_and_less_than_an_element_is_none(megatile):
    sizes = [
        line["size_bytes"]
        for line in json.loads(run("collective", "all_reduce", "-b", 0, "-e", 8, "--json").stdout)["rows"]
    ]
    assert sizes == [0, 4, 8]
    refused = megatile("collective", "all_reduce", "-m", "dgx-h100", "-b", 1, "-e", 3)
    assert refused.code == 1
    assert "no f32 fits into these sizes (try: let -e be at least 4)" in refused.err


def test_variables_of_nccl_and_measured_times_are_options(tmp_path):
    from megatile.timing.database import Database, Measurement

    with Database(tmp_path / "perf.sqlite") as database:
        database.add(
            [Measurement("dgx-h100", "all_reduce", "f32", "", {"ranks": 8, "bytes": 1 << 26}, 400.0, "me")]
        )
    asked = ["collective", "all_reduce", "-b", str(1 << 26), "--no-check"]
    usual = CliRunner().invoke(app, asked)
    ring = CliRunner().invoke(app, [*asked, "--env", "NCCL_ALGO=Ring"])
    measured = CliRunner().invoke(app, [*asked, "--db", str(tmp_path / "perf.sqlite")])
    assert "NVLS" in usual.stdout
    assert "NCCL ring, Simple" in ring.stdout
    assert "400" in measured.stdout
    assert "measured rows" in measured.stdout
    db = ["--db", str(tmp_path / "perf.sqlite"), "--explain"]
    explained = CliRunner().invoke(app, [*asked, *db]).stdout
    assert "400 µs: measured rows (me). Without them, by the rule:" in explained
    far = CliRunner().invoke(app, ["collective", "all_reduce", "-b", "1G", "--no-check", *db]).stdout
    assert "# by the rule: the database has no row of all_reduce, f32, 8 ranks within a factor of 2" in far
    assert "measured rows (" not in far


def test_a_collective_without_bytes_is_asked_for_them(megatile):
    refused = megatile("sweep", "all_reduce", "-o", "gpus=4,8")
    assert refused.code == 1
    assert "all_reduce needs a size in bytes (try: give -b 64MiB)" in refused.err
    assert "cannot be read" in megatile("sweep", "nothing.json", "-o", "gpus=4,8").err


def test_listed_links_say_why_fewer_units_do_not_fit(megatile):
    refused = megatile("collective", "all_reduce", "-m", "v100-8", "--set", "gpus=4", "-b", "1M")
    assert "edge [0, 4] leaves the range 0…3 of the 4 units that 'nvlink' joins" in refused.err
    assert "name ranks instead" in refused.err
    assert megatile("collective", "all_reduce", "-m", "v100-8", "--ranks", 4, "-b", "1M").code == 0
