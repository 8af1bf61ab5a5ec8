"""``megatile machine fit`` reads logs of nccl-tests and writes a machine file."""

import json
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="needs scipy")

from megatile.hda import HDA, machine
from megatile.timing.collective_choice import rule_of, times_ps

LOG = """# nThread 1 nGpus 8 minBytes 8 maxBytes 64 graph: 0
{ranks}
# Collective test starting: all_reduce_perf
{rows}
"""


def write_log(path: Path, factor: float = 1.3) -> Path:
    """The times of dgx-h100, all longer by a factor."""
    rule = rule_of(machine("dgx-h100"))
    ranks = "\n".join(f"#  Rank  {i} Group  0 Pid 1 on host device  {i} [0x07] H100" for i in range(8))
    times = {
        s: factor * float(times_ps(rule, "all_reduce", 8, s)) / 1e6 for s in (2**i for i in range(9, 31))
    }
    rows = "\n".join(f"{s} {s // 2} half sum -1 {t:.2f} 0 0 0 {t:.2f} 0 0 0" for s, t in times.items())
    path.write_text(LOG.format(ranks=ranks, rows=rows), encoding="utf-8")
    return path


def test_a_log_becomes_a_machine_file(tmp_path, megatile):
    log, out = write_log(tmp_path / "a.log"), tmp_path / "mine.yaml"
    result = megatile("machine", "fit", log, "-m", "dgx-h100", "-o", out)
    assert result.code == 0, result.err
    before, after = (line for line in result.out.splitlines() if line.startswith("held-out"))
    assert float(before.split()[-3].rstrip("%")) > 20 > 5 > float(after.split()[-3].rstrip("%"))
    figures = HDA.from_yaml(out).transports["device"]["nccl"].protocols
    assert (
        figures["LL"].step_ps > 1.2 * machine("dgx-h100").transports["device"]["nccl"].protocols["LL"].step_ps
    )
    shown = json.loads(megatile("machine", "fit", log, "--json").out)["constants"]["LL.step"]
    assert shown["unit"] == "us"
    assert shown["value"] > 0.9
    again, other = tmp_path / "again.yaml", tmp_path / "b"
    other.mkdir()
    assert megatile("machine", "fit", log, "-m", out, "-o", again).code == 0
    assert HDA.from_yaml(again).name == "again"
    assert megatile("machine", "fit", log, "-m", out, "-o", other / "c.yaml").code == 0
    assert HDA.from_yaml(other / "c.yaml", trust=True).name == "c"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace("half", "hulf"),
            "a.log:11: not a line of nccl-tests: dtype 'hulf' is unknown",
        ),
        (lambda text: text.replace("#  Rank", "#  Rang"), "a.log:11: the log lists no ranks"),
        (lambda text: text[:400], "a.log: has no line with a time"),
        (lambda text: "\0" * 100, "has no rows"),
        (lambda text: text.replace("all_reduce", "some"), "which collective"),
    ],
)
def test_a_log_that_makes_no_sense_is_one_sentence(tmp_path, megatile, change, message):
    log = write_log(tmp_path / "a.log")
    log.write_text(change(log.read_text(encoding="utf-8")), encoding="utf-8")
    result = megatile("machine", "fit", log)
    assert result.code != 0
    assert message in result.err
    assert "Traceback" not in result.err


def test_variables_change_what_is_fitted(tmp_path, megatile):
    log = write_log(tmp_path / "a.log")
    result = megatile("machine", "fit", log, "--env", "NCCL_NVLS_ENABLE=0", "--json")
    assert "NVLS" not in result.out
    assert "is not KEY=VALUE" in megatile("machine", "fit", log, "--env", "NCCL_ALGO").err


def test_constants_that_no_machine_may_have_are_not_written(tmp_path, megatile):
    log, out = write_log(tmp_path / "a.log", 1e10), tmp_path / "mine.yaml"
    result = megatile("machine", "fit", log, "-m", "dgx-h100", "-o", out)
    assert result.code == 1
    assert (
        "the times of the log are 1e+10 times those of machine 'dgx-h100' (try: name the machine"
        in result.err
    )
    assert not out.exists()


def test_a_log_of_another_machine_is_reported(tmp_path, megatile):
    log = write_log(tmp_path / "a.log", 3.0)
    log.write_text(log.read_text(encoding="utf-8").replace("H100", "NVIDIA L20"), encoding="utf-8")
    result = megatile("machine", "fit", log, "-m", "dgx-h100")
    assert result.code == 0
    assert result.err.splitlines() == [
        "note: the log is of 'NVIDIA L20', machine 'dgx-h100' has h100",
        "note: the times of the log are 3 times those of machine 'dgx-h100': "
        "was it measured on another machine?",
    ]
    assert megatile("machine", "fit", write_log(tmp_path / "b.log"), "-m", "dgx-h100").err == ""
