"""The text of three kernels: what a reader sees. ``pytest --update-golden`` writes the files anew."""

import re
from pathlib import Path

import pytest
from tests.targets.cuda.test_examples import example
from tests.targets.sixteen import fp8_block_scaled

import megatile as mt

FOLDER = Path(__file__).parent / "golden"
PROGRAMS = {
    "gemm": lambda: example("21").gemm(200, 136, 96),
    "flash_attention": lambda: example("27").flash_attention(1, 4, 2, 128, 64, dtype="f16"),
    "fp8_block_scaled": lambda: fp8_block_scaled()[0],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name: str, golden) -> None:
    source = mt.compile(PROGRAMS[name](), target="cuda").source
    kernels = source[source.index("\nKERNEL") : source.index("#ifndef __CUDACC_RTC__\n/* Launches")]
    golden(FOLDER / f"{name}.cu", re.sub(r"// \S+:\d+  ", "// ", kernels).strip() + "\n")
