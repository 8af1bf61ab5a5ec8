"""Every measured row in the repository is one of the open rows: data files are those that were published.

Each file is known by the digest of its open table; a row that is added, changed or taken from elsewhere, and
a new file of measurements, fails here until somebody has checked that it is open.
"""

from __future__ import annotations

import gzip
import hashlib
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "data"
OPEN = {
    "aiconfigurator_open.csv": "c52eb1cf8d9f886a",
    "collectives.csv": "b0c399dff998dd01",
    "kernels/attention_decode_h100.csv.gz": "f0ef412d4d980aa1",
    "kernels/attention_decode_more_h100.csv.gz": "6114c1830b2c9a6b",
    "kernels/attention_prefill_h100.csv.gz": "132abf3d49a1d943",
    "kernels/attention_prefill_more_h100.csv.gz": "b5c0bc8067ae50e2",
    "kernels/custom_allreduce_h100.csv.gz": "e9601225040c1fb0",
    "kernels/custom_allreduce_trtllm_h100.csv.gz": "dfabe1306285489a",
    "kernels/deepep_h100.csv.gz": "a112864d77e73c48",
    "kernels/deepep_low_latency_h100.csv.gz": "aaa47ebd00d9f828",
    "kernels/gemm_a100.csv.gz": "6f61f483bbe90cfe",
    "kernels/gemm_elsewhere.csv": "1973c36eae6b3d0c",
    "kernels/gemm_h100.csv.gz": "aa935001c910ace4",
    "kernels/gemm_more_h100.csv.gz": "cdf3aab4bfb2f26f",
    "kernels/mla_decode_h100.csv.gz": "bd637207138cd1a2",
    "kernels/moe_h100.csv.gz": "cf5e93964ecc41e8",
    "kernels/nccl_a100.csv.gz": "a8a1ff1214fed1f4",
    "kernels/nccl_h100.csv.gz": "5192eb8030396243",
    "serving.csv": "67e77e9a7a4c0ebd",
    "tilelang_gemm.csv": "d9a367b98da13547",
    "training.csv": "eb515fc2a26fd0ac",
    "validation.csv": "0f1dc00d1f755d22",
}
"""Files of measurements with the first digits of the SHA-256 of their (unpacked) open table."""
TABLES = (".csv", ".csv.gz", ".parquet", ".sqlite", ".npz", ".jsonl", ".feather", ".pkl")


@pytest.mark.parametrize("name", OPEN)
def test_a_file_of_measurements_is_the_open_one(name: str) -> None:
    content = (DATA / name).read_bytes()
    content = gzip.decompress(content) if name.endswith(".gz") else content
    assert hashlib.sha256(content).hexdigest()[:16] == OPEN[name]


def test_there_are_no_other_measurements() -> None:
    """Tables of the documents are made from these by benchmarks (`docs/tables`)."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.splitlines() if name.endswith(TABLES)]
    other = {name for name in names if not name.startswith("docs/tables/")}
    assert other == {f"benchmarks/data/{name}" for name in OPEN}
