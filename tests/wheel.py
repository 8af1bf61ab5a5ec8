"""Try an installed megatile from an empty folder: ``python wheel.py`` by the Python of a bare environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

COMMANDS = [
    "--version",
    "machines",
    "machine show dgx-h100 --png m.png",
    "machine route dgx-h100 gpu:0 gpu:7",
    "collective all_reduce -m dgx-h100 -b 1K -a ring",
    "plan save all_reduce p.json -m mi300x-8 -b 4K -a ring",
    "plan check p.json -m mi300x-8",
    "plan simulate p.json -m mi300x-8 --trace t.json.gz",
    "trace show t.json.gz --png t.png",
    "bench tp_mlp -m dgx-h100",
    "run program.py:add -m dgx-h100",
    "model predict Llama-3.1-8B -m dgx-h100 --report step.html",
    "attention predict -m mi300x-8 --seqlen 1K --schedule ring,hamilton",
]
PYTHON = """
import importlib.metadata, re, numpy as np, megatile as mt
described = importlib.metadata.metadata("megatile")
assert described.get_all("Project-URL")
assert not re.findall(r"\\]\\((?!https://)", described.get_payload()), "a relative link in the description"
from megatile.collectives import kernel_plan, load_ccl_config, resolve_algorithm_config
torch = ("hamilton_attention", "shard_sequence", "unshard_sequence")
assert all(getattr(mt, name) is not None for name in mt.__all__ if name not in torch)
plan = kernel_plan(resolve_algorithm_config(load_ccl_config(), "ring_allreduce_tcm"), mt.machine("ahbm"))
x = np.ones((plan.units, 8), "f2")
assert (mt.execute(plan, {"t": x})["t"] == plan.units).all()
assert mt.simulate(plan, {"t": x}, machine="ahbm").time_ps > 0
"""

PROGRAM = """
import megatile.language as T

@T.program
def add(x: T.Tensor((1000,), "f32"), y: T.Tensor((1000,), "f32")):
    with T.Kernel(block=8, threads=128) as b:
        with T.Scale("block"):
            for i in T.Parallel(125):
                y[b * 125 + i] = x[b * 125 + i] + 1.0
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(PROGRAM)
        for line in COMMANDS:
            command = [sys.executable, "-I", "-m", "megatile", *line.split()]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"megatile {line} left with {done.returncode}:\n{done.stdout}{done.stderr}")
        subprocess.run([sys.executable, "-I", "-c", PYTHON], cwd=folder, check=True)
        Path(folder, "kernel.py").write_text("import tilelang.language as T\nprint(T.float16.bits)\n")
        command = [sys.executable, "-m", "megatile.tilelang", "kernel.py"]
        taken = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        assert taken.stdout == "16\n"
        assert not list(Path(sysconfig.get_path("purelib")).glob("*megatile*.pth"))
        assert '"measured_us"' in Path(folder, "step.html").read_text(encoding="utf-8")
        assert {"m.png", "t.png"} <= {path.name for path in Path(folder).iterdir()}
    print(f"the wheel works with Python {sys.version.split()[0]}: {len(COMMANDS)} commands, Python")


if __name__ == "__main__":
    main()
