"""``tuning/machines.py``: ``sweep(plan, {"networks.nvlink.bandwidth"."""

from dataclasses import replace

import pytest
from tests.tuning.factories import adding, gemm
from tests.tuning.shared import FAST, PRODUCT, SIZES

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.tuning import TuneError


def test_a_plan_on_many_machines(tmp_path):
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1 << 20, algorithm="ring")
    over = {"networks.nvlink.bandwidth": ["225 GB/s", "450 GB/s"], "gpus": [8, 4, 16]}
    found = mt.sweep(plan, over, store=tmp_path / "s.sqlite", **FAST)
    rows = found.rows()
    assert [(r["networks.nvlink.bandwidth"], r["gpus"]) for r in rows][:2] == [
        ("225 GB/s", 8),
        ("225 GB/s", 4),
    ]
    for row in rows:
        setting = {"networks.nvlink.bandwidth": row["networks.nvlink.bandwidth"], "gpus": row["gpus"]}
        if row["gpus"] == 4:
            assert "machine 'dgx-h100' has 4" in row["why"]
            assert row["time_us"] is None
        else:
            assert (
                row["time_us"] == mt.simulate(plan, machine=mt.machine("dgx-h100", **setting)).time_ps / 1e6
            )
    assert rows[0]["time_us"] > rows[3]["time_us"]
    assert "6 machines like dgx-h100" in repr(found)


def test_what_a_function_makes_for_each_machine():
    def made(hda):
        return mt.collective("all_reduce", machine=hda, nbytes=1 << 16, algorithm="ring")

    found = mt.sweep(made, {"gpus": [2, 4, 8]}, workers=1, **FAST)
    times = [row["time_us"] for row in found.rows()]
    assert times == sorted(times)
    assert len(set(times)) == 3


def test_a_tile_program():
    found = mt.sweep(gemm(), {"clocks.gpu": ["1 GHz", "2 GHz"]}, workers=1, **FAST)
    slow, fast = (row["time_us"] for row in found.rows())
    assert slow > fast


def test_mistakes():
    for target, over, message in (
        (3, {"gpus": [1]}, "not a plan"),
        (adding(), {"gpu": [1]}, "no parameter 'gpu'"),
        (adding(), {"networks.nvlink.bandwith": ["1 GB/s"]}, "bandwith"),
        (adding(), {}, "nothing to choose from"),
    ):
        with pytest.raises(MegatileError, match=message):
            mt.sweep(target, over, **FAST)
    with pytest.raises(TuneError, match="not a machine"):
        mt.sweep(adding(), {"gpus": [1]}, machine=None)


def test_every_row_names_the_model_of_its_time() -> None:
    found = mt.sweep(
        lambda hda: mt.collective("all_reduce", machine=hda, nbytes="64 MiB"),
        {"gpus": [4, 8]},
        machine="dgx-h100",
    )
    assert [row["model"] for row in found.rows()] == ["NCCL ring, Simple", "NCCL NVLS"]


def test_rows_say_where_stages_shrank():
    found = mt.sweep(PRODUCT(stages=4), {"memory.shared.size": SIZES}, **FAST)
    notes = [row["note"] for row in found.rows()]
    assert notes[0] == "stages 4 -> 2: shared"
    assert notes[-1] == ""
    tuned = mt.tune(
        PRODUCT,
        {"stages": [4, 2]},
        machine=mt.machine("dgx-h100", **{"memory.shared.size": SIZES[0]}),
        progress=False,
        verify=False,
    )
    assert {row["stages"]: row["note"] for row in tuned.rows()} == {4: "stages 4 -> 2: shared", 2: ""}
    assert tuned.best == {"stages": 2}  # of equals, the one that is what it says
    assert "stages 4 -> 2" in repr(replace(tuned, best={"stages": 4}))
