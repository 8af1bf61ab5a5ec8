"""The kind of command lines of ``megatile``."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz import mutate
from tests.fuzz.kinds import folder, kind

import megatile as mt

LINES = [
    "machines", "machines --json", "machine show dgx-h100", "machine show h100-cluster --set nodes=4 --json",
    "machine show cpu --yaml", "machine check m.yaml", "machine diff dgx-h100 hgx-a100 --sources",
    "machine route dgx-h100 gpu:0 gpu:7",
    "collective all_reduce -m dgx-h100 -b 8 -e 1K -f 8 -a ring --no-check", "collective all_gather -b 64 --json -a ring",
    "collective broadcast -m mi300x-8 -b 4K -a tree --ranks 0,2,4-6 -d bf16 -o max -r 1",
    "plan show p.json", "plan show p.txt --json", "plan check p.json -m dgx-h100", "plan simulate p.json -m dgx-h100 --json",
    "trace show t.json --limit 3", "trace show t.json --json", "trace convert t.json u.jsonl",
    "attention plan -n 6 --schedule hamilton --causal --json", "attention plan -n 4 --seqlen 1K",
    "attention predict -m mi300x-8 --seqlen 1K --schedule ring,hamilton --json", "--version", "--help",
    "model list", "model memory Llama-3.2-1B -m dgx-h100 --tp 2 --requests 8 --context 4096 --json",
    "model predict Llama-3.2-1B -m dgx-h100 --tp 2 --batch 4 --isl 512 --osl 8 -d fp8 --csv u.csv",
    "model replay Llama-3.2-1B --batches s.jsonl -m h200-8 --table u.csv", "perfdb import r.csv -m dgx-h100 --db p.sqlite",
    "perfdb list --db p.sqlite --json", "perfdb export u.csv --db p.sqlite -d bf16",
]  # fmt: skip


@cache
def folder_of_files() -> Path:
    """A folder with the files that the lines name."""
    here = folder() / "lines"
    here.mkdir()
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=64, algorithm="ring")
    (here / "p.json").write_text(plan.to_json())
    (here / "p.txt").write_text(str(plan))
    (here / "m.yaml").write_text(mt.machine("cpu").to_yaml())
    (here / "s.jsonl").write_text("[[128, 0], [1, 4096]]\n[[1, 17]]\n")
    (here / "r.csv").write_text("gemm_dtype,m,n,k,us\nbfloat16,128,128,128,5.5\n")
    mt.simulate(plan, machine="dgx-h100").write_trace(here / "t.json")
    return here


def _line(rng: random.Random, _: int) -> list[str]:
    words = sorted({word for line in LINES for word in line.split()})
    words += [
        "--png",
        "a.png",
        "--plot",
        "--table",
        "c.json",
        "--explain",
        "--check",
        "--units",
        "all",
        "auto",
    ]
    line = mutate.arguments(rng, rng.choice(LINES).split(), words)
    return [part for part in line if part not in ("bench", "--install-completion", "--show-completion")]


@cache
def build_once() -> None:
    """Typer makes its commands anew at every call; here they are made once."""
    import typer.main

    from megatile.cli import main as commands

    typer.main.get_command = cache(typer.main.get_command)
    commands.load_command = cache(commands.load_command)


@kind("command_line", _line)
def run_line(line: list[str]) -> None:
    from megatile.cli.main import main

    build_once()
    before, argv = Path.cwd(), sys.argv
    said = io.StringIO()
    sys.argv = ["megatile", *line]
    os.chdir(folder_of_files())
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
        code: Any = 0
    except SystemExit as stopped:
        code = stopped.code or 0
    finally:
        os.chdir(before)
        sys.argv = argv
    assert code in (0, 1, 2, 130), (code, said.getvalue()[-2000:])
    assert "Traceback" not in said.getvalue(), said.getvalue()[-2000:]
    assert code == 0 or said.getvalue().strip(), "a failure says nothing"
