"""``megatile export``: texts on standard output or in a file; mistakes are one sentence."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatile.cli.main import app
from megatile.core.errors import MegatileError

EXAMPLES = Path(__file__).parents[2] / "examples"
GEMM = f"{EXAMPLES / '21_gemm_block.py'}:gemm(128, 64, 64)"


def export(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("to", "word"), [("tilelang", "@T.prim_func"), ("cuda", "mma_f16("), ("c", "megatile_run(")]
)
def test_each_language(to: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    assert str(file) in export(GEMM, "--to", to, "-o", str(file))
    text = file.read_text()
    assert word in text
    assert export(GEMM, "--to", to) == text


def test_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    ring = f"{EXAMPLES / '24_gemm_tensor_parallel.py'}:gemm_tensor_parallel(64, 64, 64)"
    for arguments, said in (
        ((GEMM, "--to", "metal"), "cannot be written as 'metal'"),
        ((GEMM.replace("gemm(", "gem("), "--to", "cuda"), "gem"),
        ((ring, "--to", "cuda", "-m", "dgx-h100"), "one device"),
    ):
        with pytest.raises(MegatileError, match=said):
            CliRunner().invoke(app, ["export", *arguments, "-o", str(file)], catch_exceptions=False)
        assert not file.exists()
