"""``megatile plan show|check|simulate``."""

import json

import pytest

import megatile as mt
from megatile.collectives.planner import predict
from megatile.core.errors import Place
from megatile.plan.build import PlanBuilder


def saved(tmp_path, form="txt"):
    plan = mt.collective("all_reduce", machine="mi300x-8", nbytes=4096, algorithm="ring")
    path = tmp_path / f"plan.{form}"
    path.write_text(plan.to_json() if form == "json" else str(plan), encoding="utf-8")
    return path


def test_simulate_says_what_collective_says(megatile, tmp_path):
    wanted = predict("all_reduce", machine="mi300x-8", nbytes=4096, algorithm="ring")
    for form in ("txt", "json"):
        done = megatile("plan", "simulate", saved(tmp_path, form), "-m", "mi300x-8", "--json")
        found = json.loads(done.out)
        assert (found["time_ps"], found["model"]) == (wanted.time_ps, wanted.model)
    lines = json.loads(
        megatile(
            "collective", "all_reduce", "-m", "mi300x-8", "-b", 4096, "-a", "ring", "--out-of-place", "--json"
        ).out
    )
    assert lines["rows"][0]["time_us"] == wanted.time_ps / 1e6


def test_simulate_by_a_library_captured_and_traced(megatile, tmp_path):
    file, trace = saved(tmp_path), tmp_path / "t.jsonl"
    done = megatile("plan", "simulate", file, "-m", "mi300x-8", "--trace", trace)
    assert done.code == 0
    assert "link xgmi" in done.out
    assert trace.stat().st_size > 1000
    times = [
        json.loads(megatile("plan", "simulate", file, "-m", "mi300x-8", "--json", *flags).out)["time_ps"]
        for flags in ((), ("--graph",))
    ]
    plan = mt.Plan.from_text(file.read_text(encoding="utf-8"))
    assert times == [
        mt.simulate(plan, machine="mi300x-8", **options).time_ps for options in ({}, {"launch": False})
    ]


def test_what_check_refuses_gets_no_time(megatile, tmp_path):
    file = tmp_path / "p.txt"
    head = 'plan("p", scale="gpu", grid=(4,))\nx = tile(f32, (8,), memory="hbm", role="inout")\n'
    for line in ("x[unit:+6] <- fill(value=0.0)", "x <- copy(x[0:+3], bytes=12)"):
        file.write_text(f"{head}with units((0, 4, 1)):\n    {line}\n", encoding="utf-8")
        said = [megatile("plan", *words, "-m", "dgx-h100") for words in (("check", file), ("simulate", file))]
        assert [done.code for done in said] == [1, 1]
        assert said[0].err == said[1].err


def test_mistakes_are_one_clear_line(megatile, tmp_path):
    file = saved(tmp_path)
    for arguments, words in (
        (("simulate", file, "-m", "nobody"), "nobody"),
        (("simulate", file, "-m", "dgx-h100", "--trace", tmp_path / "t.doc"), "t.doc"),
        (("simulate", tmp_path / "none", "-m", "dgx-h100"), "cannot be read"),
    ):
        done = megatile("plan", *arguments)
        assert done.code == 1
        assert done.err.startswith("error: ")
        assert words in done.err


def test_files_that_are_not_plans_are_one_clear_line(megatile, tmp_path):
    file = saved(tmp_path, "json")
    plan = json.loads(file.read_text(encoding="utf-8"))
    broken = {"binary": bytes(range(256)), "half": file.read_bytes()[:999], "empty": b"", "list": b"[]"}
    region = plan["streams"][0]["body"][1]["read"]
    for field in ("start", "shape"):
        kept = region[field]
        for value in ([], 7, None):
            region[field] = value
            broken[f"{field} {value}"] = json.dumps(plan).encode()
        region[field] = kept
    for name, content in broken.items():
        path = tmp_path / name
        path.write_bytes(content)
        for command in ("show", "check"):
            done = megatile("plan", command, path)
            assert (done.code, done.err[:7]) == (1, "error: "), (name, command)


@pytest.mark.parametrize("text", ["", "x = 1", "{}", '{"name": 3}'])
def test_a_broken_plan_is_named_with_what_to_do(megatile, tmp_path, text):
    file = tmp_path / "broken.json"
    file.write_text(text)
    done = megatile("plan", "check", file)
    assert done.code == 1
    assert done.err.startswith(f"error: {file}")
    assert "(try: " in done.err


@pytest.mark.parametrize("name", ["p.json", "p.txt"])
def test_a_plan_is_saved_and_read_again(megatile, tmp_path, name):
    line = (
        "plan",
        "save",
        "all_reduce",
        tmp_path / name,
        "-m",
        "dgx-h100",
        "-b",
        "1MiB",
        "-a",
        "ring",
        "--ranks",
        4,
    )
    saved = megatile(*line)
    assert saved.code == 0
    assert "of 4 units written to" in saved.out
    wanted = mt.collective("all_reduce", machine="dgx-h100", nbytes=1 << 20, algorithm="ring", ranks=4)
    assert megatile("plan", "show", tmp_path / name).out == str(wanted)
    assert megatile("plan", "save", "all_reduce", tmp_path / "p.doc", "-m", "cpu", "-b", 64).code == 1


@pytest.mark.parametrize("form", ["json", "txt"])
@pytest.mark.parametrize(
    ("name", "folder", "shown"),
    [
        ("secret.py", None, False),
        ("secret.py", "src", False),
        ("src/k.py", None, False),
        ("src/k.py", "src", True),
    ],
)
def test_a_report_shows_source_lines_of_the_folder_that_was_named_only(
    megatile, tmp_path, form, name, folder, shown
) -> None:
    for file in ("secret.py", "src/k.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("the content\n")
    b = PlanBuilder("mine", scale="core", units=1)
    b.place = Place(str(tmp_path / name), 1)
    x, y = (b.tile(name, (64,), "f32", memory="l1") for name in "xy")
    b.compute("add", x, [y, y])
    (tmp_path / f"p.{form}").write_text(b.finish().to_json() if form == "json" else str(b.finish()))
    options = ("--sources", tmp_path / folder) if folder else ()
    done = megatile(
        "plan", "simulate", tmp_path / f"p.{form}", "-m", "cpu", "--report", tmp_path / "o.html", *options
    )
    assert done.code == 0, done
    assert ("the content" in (tmp_path / "o.html").read_text()) is shown
