"""Measured rows in the repository are open ones: each file holds exactly what was published for it."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
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
"""The first 16 digits of each file's SHA-256, unpacked. A new file, or a row that is added or changed, must
be compared with its published source before its digest is written here."""


def digest(path: Path) -> str:
    packed = path.read_bytes()
    return hashlib.sha256(gzip.decompress(packed) if path.suffix == ".gz" else packed).hexdigest()[:16]


def test_every_measured_row_is_an_open_one() -> None:
    found = {path.relative_to(DATA).as_posix(): digest(path) for path in DATA.rglob("*") if path.is_file()}
    assert found == OPEN
