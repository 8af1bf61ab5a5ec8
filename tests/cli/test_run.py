"""``megatile run``: a tile program verified, predicted and explained; mistakes are one sentence."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatile.cli.main import app
from megatile.core.errors import MegatileError

EXAMPLES = Path(__file__).parents[2] / "examples"
GEMM = f"{EXAMPLES / '21_gemm_block.py'}:gemm"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["run", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_product_is_verified_and_predicted(tmp_path: Path) -> None:
    text = run(f"{GEMM}(128, 192, 64)", "-m", "dgx-h100", "--trace", str(tmp_path / "t.json"))
    assert "6 blocks; " in text
    assert "Plan matches the interpreter" in text
    assert "21_gemm_block.py:35" in text
    assert (tmp_path / "t.json").stat().st_size > 100


def test_reasons_name_engines_and_their_rivals() -> None:
    text = run(f"{GEMM}(128, 192, 64)", "--no-verify", "--explain")
    line = next(line for line in text.splitlines() if line.startswith("gemm "))
    assert "tensor" in line
    assert "vector" in line
    assert "21_gemm_block.py:35" in line


def test_a_program_whose_steps_depend_on_data_runs_on_random_data() -> None:
    text = run(f"{GEMM.replace('21_gemm_block.py:gemm', '39_ticket_queue.py:ragged_sums')}(8, 16)")
    assert "time on random data" in text
    assert "bit for bit" in text


def test_json_has_the_figures() -> None:
    found = json.loads(run(f"{GEMM}(128, 192, 64, stages=2)", "--json", "--no-verify"))
    assert found["flops"]["tensor"] == 2 * 128 * 192 * 64
    assert found["verified"] is None
    assert found["time_us"] > 0
    assert found["levels"][0]["instances"] == 6


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (f"{EXAMPLES / '21_gemm_block.py'}", "has 0 tile programs"),
        (f"{EXAMPLES / '21_gemm_block.py'}", "21_gemm_block.py:gemm(M=512, N=512, K=512)'"),
        (f"{EXAMPLES / '21_gem_block.py'}", "21_gemm_block.py'?"),
        ("no_such_folder/gemm.py", "there is no folder 'no_such_folder'"),
        (f"{EXAMPLES / '21_gemm_block.py'}:gem(1)", "did you mean 'gemm'"),
        (f"{GEMM}(1, 2)", "missing 1 required positional argument"),
        (f"{GEMM}(open('x'), 2, 3)", "nor a call with numbers"),
        ("nothing.py", "nothing.py"),
    ],
)
def test_mistakes(program: str, words: str) -> None:
    with pytest.raises(MegatileError) as caught:
        CliRunner().invoke(app, ["run", program], catch_exceptions=False)
    assert words in str(caught.value)


def test_both_times_are_printed_and_both_timelines_written(tmp_path: Path) -> None:
    file = tmp_path / "both.json"
    at = f"{GEMM}(64, 96, 32)", "-m", "cpu", "--compare", "--threads", "1"
    found = json.loads(run(*at, "--json"))
    assert found["schema"] == "megatile.compare/1"
    assert found["measured_s"] > 0
    assert found["ratio"] == pytest.approx(found["predicted_s"] / found["measured_s"])
    assert "predicted" in run(*at, "--trace", str(file))
    assert "predicted/" in file.read_text()
    assert '"measured"' in file.read_text()


def test_several_machines_are_one_table(megatile) -> None:  # type: ignore[no-untyped-def]
    program, both = f"{GEMM}(128, 128, 64)", ("-m", "dgx-h100", "-m", "mi300x-8")
    text = megatile("run", program, *both).out
    assert "to the fastest" in text
    assert [line.split()[0] for line in text.strip().splitlines()[-2:]] == ["dgx-h100", "mi300x-8"]
    rows = json.loads(megatile("run", program, *both, "--json").out)["rows"]
    alone = json.loads(megatile("run", program, "-m", "mi300x-8", "--json").out)
    assert rows[1]["time_us"] == alone["time_us"]
    refused = megatile("run", program, *both, "--explain")
    assert refused.code == 1
    assert "take one machine, got 2" in refused.err


def test_a_machine_that_is_too_small_is_a_refused_row(megatile, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    small = tmp_path / "small.yaml"
    small.write_text("extends: dgx-h100\nname: small\nmemory: [{name: shared, size: 4 KiB}]\n")
    program, both = f"{GEMM}(128, 192, 64)", ("-m", small, "-m", "dgx-h100")
    done = megatile("run", program, *both)
    assert done.code == 0
    row = next(line for line in done.out.splitlines() if line.startswith("small"))
    assert "refused: " in row
    fast, refused = json.loads(megatile("run", program, *both, "--json").out)["rows"]
    assert fast["machine"] == "dgx-h100"
    assert "of 'shared', but there are" in refused["refused"]
    assert megatile("run", program, "-m", small, "-m", small).code == 1


def test_what_helps(megatile) -> None:  # type: ignore[no-untyped-def]
    asked = ("run", f"{GEMM}(128, 192, 64)", "--no-verdict", "--no-verify", "--what-helps")
    assert "memory.hbm.latency" in megatile(*asked).out
    found = json.loads(megatile(*asked, "--json").out)["what_helps"]
    assert "memory.hbm.latency" in {row["figure"] for row in found}
