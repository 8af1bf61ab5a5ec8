"""Every mistake in a ``ccl.yaml`` is said with its file and line."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.collectives.job import CollectiveError

TEXT = """\
defaults:
  algorithm: mine
  n_slots: 4
algorithms:
  mine:
    module: megatile.collectives.kernels.ring_allreduce
    topology: ring_1d
    buffer_kind: tcm
"""


@pytest.mark.parametrize(
    ("line", "wrong", "said"),
    [
        (2, "algorithm: min", "unknown algorithm 'min'; there are mine .*did you mean 'mine'"),
        (3, "n_slots: 0", "n_slots cannot be 0"),
        (3, "slots: 4", "unknown key 'slots'"),
        (3, "backpressure: spin", "there is no backpressure 'spin'"),
        (6, "module: megatile.collectives.kernels.rings", "cannot be imported"),
        (6, "module: os", "importing the module 'os' would run its code"),
        (6, "module: 7", "module cannot be 7"),
        (6, "n_elem: 8", "declares no module"),
        (7, "topology: ring_2d", "unknown topology 'ring_2d'"),
        (7, "topology: torus_2d", "runs on topology ring_1d"),
        (8, "buffer_kind: l9", "has no memory 'l9'"),
        (8, "mapper: everyone", "unknown mapper 'everyone'"),
        (8, "validator: none", "unknown validator 'none'"),
        (8, "root_cube: 99", "root_cube 99 does not exist"),
        (8, "world_size: 1000", "world_size 1000 does not fit 2 SIPs"),
        (8, "reduce_op: mean", "does not reduce by 'mean'"),
    ],
)
def test_errors_have_lines(tmp_path, monkeypatch, line, wrong, said) -> None:
    monkeypatch.chdir(tmp_path)
    lines = TEXT.splitlines()
    indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
    lines[line - 1] = indent + wrong
    (tmp_path / "ccl.yaml").write_text("\n".join(lines) + "\n")
    at = 5 if "declares no module" in said else line
    with mt.host("ahbm") as torch, pytest.raises(CollectiveError, match=said) as caught:
        torch.distributed.init_process_group()
    assert str(caught.value).startswith(f"ccl.yaml:{at}: ")


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "algorithms: {}", "algorithms: []", "defaults: {n_slots: 4}", "a: {"]
)
def test_files_without_algorithms(tmp_path, monkeypatch, text) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ccl.yaml").write_text(text)
    with pytest.raises(CollectiveError, match=r"ccl\.yaml") as caught:
        mt.host("ahbm").distributed.get_world_size()
    assert "hw_spec" not in str(caught.value)
