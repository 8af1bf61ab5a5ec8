"""Files and names that nobody should give to a command line, and an output that cannot take more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatile.collectives.planner import collective
from megatile.trace import TraceBuilder, write_trace

LONG = "a" * 300
NO_DISK = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def one_error(done) -> str:
    assert done.code in (1, 2), done
    said = done.err + done.out
    assert said.count("\n") == 1 or done.code == 2, said
    assert "Traceback" not in said
    return str(said)


READERS = {
    "machine show": ("machine", "show", "{}.yaml"),
    "machine check": ("machine", "check", "{}.yaml"),
    "machine diff": ("machine", "diff", "cpu", "{}.yaml"),
    "plan show": ("plan", "show", "{}.json"),
    "plan check": ("plan", "check", "{}.json"),
    "plan simulate": ("plan", "simulate", "{}.json", "-m", "cpu"),
    "trace show": ("trace", "show", "{}.json"),
    "trace convert": ("trace", "convert", "{}.jsonl", "x.json"),
    "table": ("collective", "all_reduce", "-m", "dgx-h100", "-b", "64", "--table", "{}.json"),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_a_regular_file_is_refused(megatile, tmp_path, monkeypatch, reader) -> None:
    monkeypatch.chdir(tmp_path)
    for suffix in ("yaml", "json", "jsonl"):
        os.mkfifo(f"pipe.{suffix}")
        os.symlink("/dev/zero", f"zero.{suffix}")
        os.mkdir(f"folder.{suffix}")
    for name in ("pipe", "zero", "folder", LONG):
        done = megatile(*(part.format(name) for part in READERS[reader]))
        assert one_error(done)


@pytest.mark.parametrize(
    "arguments",
    [
        ("machine", "show", LONG),
        ("machine", "show", "cpu", "--png", f"{LONG}.png"),
        ("machine", "show", "cpu", "--set", f"{LONG}=1"),
        ("attention", "plan", "--png", f"{LONG}.png"),
        ("attention", "plan", "--schedule", LONG),
        ("attention", "predict", "--seqlen", "1K", "--plot", f"{LONG}.png"),
        ("collective", LONG),
        ("collective", "all_reduce", "-a", LONG),
        ("collective", "all_reduce", "-b", "64", "--plot", f"{LONG}.png"),
        ("collective", "all_reduce", "-b", "64", "--trace", f"{LONG}.json"),
        ("collective", "all_reduce", "--scale", LONG),
        ("collective", "all_reduce", "-b", "9" * 5000),
        ("collective", "all_reduce", "--ranks", "9" * 5000),
        ("collective", "all_reduce", "--ranks", "0-99999999999"),
    ],
)
def test_names_of_300_letters(megatile, tmp_path, monkeypatch, arguments) -> None:
    monkeypatch.chdir(tmp_path)
    assert one_error(megatile(*arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["b" * 5000, "b" * 5000 + ".yaml", "a\\0b.yaml", "../" * 2000 + "a.yaml"])
def test_extends_of_a_name_that_cannot_be(megatile, tmp_path, name) -> None:
    (tmp_path / "m.yaml").write_text(f'extends: "{name}"\nname: x\n')
    for command in ("show", "check"):
        assert "m.yaml:1" in one_error(megatile("machine", command, tmp_path / "m.yaml"))


def test_a_chain_of_extends_and_a_circle(megatile, tmp_path) -> None:
    for number in range(20):
        (tmp_path / f"m{number}.yaml").write_text(f"extends: m{(number + 1) % 20}.yaml\nname: x\n")
    assert "circular or nested more than 8 deep" in one_error(
        megatile("machine", "show", tmp_path / "m0.yaml")
    )


@NO_DISK
def test_pictures_and_files_on_a_full_disk(megatile, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    builder = TraceBuilder("toy")
    builder.add(unit="a", engine="dma", operation="x", start_ps=0, end_ps=1)
    write_trace(builder.build(), "run.json")
    for suffix in ("png", "json", "jsonl"):
        os.symlink("/dev/full", f"full.{suffix}")
    for arguments in (
        ("attention", "plan", "-n", 4, "--png", "full.png"),
        ("trace", "show", "run.json", "--png", "full.png"),
        ("trace", "convert", "run.json", "full.jsonl"),
        ("collective", "all_reduce", "-b", 64, "-a", "ring", "--no-check", "--plot", "full.png"),
        ("collective", "all_reduce", "-b", 64, "-a", "ring", "--no-check", "--trace", "full.json"),
    ):
        done = megatile(*arguments)
        assert done.code == 1
        assert "No space left on device" in done.err
        assert "Traceback" not in done.err
    assert Path("/dev/full").exists()


@NO_DISK
@pytest.mark.parametrize("arguments", [["machines"], ["machine", "show", "cpu", "--json"]])
def test_an_output_that_is_full_is_one_sentence(arguments) -> None:
    command = [sys.executable, "-m", "megatile", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_a_plan_in_a_file_is_still_read(megatile, tmp_path) -> None:
    (tmp_path / "p.json").write_text(collective("all_reduce", machine="dgx-h100", nbytes=64).to_json())
    assert megatile("plan", "check", tmp_path / "p.json").code == 0


def test_what_would_take_for_ever_says_what_is_too_large(megatile) -> None:
    sizes = megatile("collective", "all_reduce", "-b", 1, "-e", "1G", "-f", 1.001)
    assert "more than 1000 sizes from 1 bytes on" in one_error(sizes)
    ranks = megatile("attention", "plan", "--ranks", 1000)
    assert "hamilton over 1000 ranks sends 998001000 chunks" in one_error(ranks)
    pairs = megatile("collective", "all_to_all", "-m", "h100-cluster", "--set", "nodes=64", "-a", "fastest")
    assert "direct: too large: about 27.2 million commands to simulate" in one_error(pairs)


def test_ctrl_c_while_the_command_line_is_loaded_is_not_a_traceback() -> None:
    stopped = """
import sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "megatile.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop())
from megatile.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", stopped], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
