"""Run a public test suite from a checkout: ``run.py SUITE CHECKOUT [--ranks N]`` (see README.md here)."""

from __future__ import annotations

import argparse
import os
import re
import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
LIMIT = 1e-4
"""Largest difference that a test may print, in f32."""
Run = tuple[str, list[str], int | None]  # file, its arguments, ranks (None: those asked for)


def ring_flash_attention(checkout: Path) -> list[Run]:
    files = sorted((checkout / "test").glob("test_*.py"))
    plain = [(str(f), [], 1 if "prepare" in f.name or "triton" in f.name else None) for f in files]
    compiled = [(f, ["compile"], ranks) for f, _, ranks in plain if "triton" not in f]
    return [*plain, *compiled]


def yunchang(checkout: Path) -> list[Run]:
    runs: list[Run] = [(str(checkout / "test" / "test_ulysses_attn.py"), [], None)]
    runs.append((str(checkout / "test" / "test_hybrid_qkvpacked_attn.py"), [], None))
    hybrid = str(checkout / "test" / "test_hybrid_attn.py")
    for ring in ("basic", "zigzag"):
        for degree in ("1", "2", "4"):
            for causal in ([], ["--causal"]):
                options = ["--ring_impl_type", ring, "--sp_ulysses_degree", degree, "--use_bwd", *causal]
                if ring == "basic" or causal:
                    runs.append((hybrid, options, None))
    return runs


SUITES = {"ring-flash-attention": ring_flash_attention, "yunchang": yunchang}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    given = parser.parse_args()
    failed = 0
    for file, arguments, ranks in SUITES[given.suite](given.checkout):
        start = time.monotonic()
        worst, problem = run(file, arguments, ranks or given.ranks)
        failed += problem is not None
        what = " ".join([Path(file).name, *arguments])
        told = (
            f"FAILED: {problem}" if problem else f"worst difference {worst:.1e}" if worst else "asserts hold"
        )
        print(f"{what}: {told} ({time.monotonic() - start:.0f} s)", flush=True)
    return failed > 0


def run(file: str, arguments: list[str], ranks: int) -> tuple[float, str | None]:
    """One test file on so many processes: the largest difference it printed, and what went wrong."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, str(HERE), "--rank", file, *arguments]
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    outputs = [process.communicate(timeout=1200) for process in processes]
    for rank, (process, (_, errors)) in enumerate(zip(processes, outputs, strict=True)):
        if process.returncode:
            return 0.0, f"rank {rank}: {(errors.strip().splitlines() or ['ended'])[-1][:300]}"
    return differences([out for out, _ in outputs])


def differences(outputs: list[str]) -> tuple[float, str | None]:
    """The tests print a name on rank 0, then "[rank] max …" on every rank."""
    names = re.findall(r"^([^\n\[#]*):\n\[(?:Rank#)?0\] max", outputs[0], re.M)
    worst = 0.0
    for rank, text in enumerate(outputs):
        found = re.findall(rf"^\[(?:Rank#)?{rank}\] max ([^,]*),", text, re.M)
        if len(found) != len(names):
            return 0.0, f"rank {rank} printed {len(found)} of {len(names)} values"
        for name, value in zip(names, map(float, found), strict=True):
            if "diff" in name:
                worst = max(worst, value)
                if not value <= LIMIT:
                    return value, f"rank {rank}: {name} {value:.1e}"
    return worst, None


def as_rank() -> None:
    from stand_ins import install

    file = sys.argv[2]
    sys.argv = [file, *sys.argv[3:]]
    sys.path.insert(0, str(Path(file).parent))
    install(compiled="compile" in sys.argv)
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        as_rank()
    else:
        sys.exit(main())
