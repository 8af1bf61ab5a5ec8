"""``timing/transports.py``: what a message and the start of a collective cost on a transport."""

import pytest

from megatile.attention.plans import Problem
from megatile.attention.predict import predict as predict_attention
from megatile.collectives.planner import predict
from megatile.hda import HDA, machine
from megatile.plan.model import Transport
from megatile.timing.transports import Asked, kernel_view


@pytest.fixture
def renamed(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nextends: dgx-h100\n", encoding="utf-8")
    return HDA.from_yaml(file)


def test_attention_under_a_new_name(renamed):
    asked = {"problem": Problem(16384, causal=True), "schedules": ["ring"]}
    (mine,) = predict_attention(renamed, **asked).predictions
    (theirs,) = predict_attention("dgx-h100", **asked).predictions
    assert mine.time_ps == theirs.time_ps


@pytest.mark.parametrize("nbytes", [64, 1 << 18, 1 << 24])
def test_collectives_under_a_new_name(renamed, nbytes):
    asked = {"nbytes": nbytes, "algorithm": "nccl"}
    mine, theirs = (predict("all_reduce", machine=hda, **asked) for hda in (renamed, machine("dgx-h100")))
    assert (mine.time_ps, mine.plan.transports) == (theirs.time_ps, theirs.plan.transports)


def test_a_library_figure_can_be_changed(renamed):
    slow = machine("dgx-h100", **{"transports.device.nccl.protocols.LL128.step": "3.02 us"})
    line, asked = Transport("kernel", "nccl", "ring", "LL128"), Asked("all_reduce", 8)
    view, base = (kernel_view(hda, "device", line, 1024, asked) for hda in (slow, renamed))
    assert view.networks["nvlink"].latency_ps == 2 * base.networks["nvlink"].latency_ps


def test_figures_round_trip():
    hda = machine("dgx-h100")
    again = HDA.from_dict(hda.to_dict())
    assert (again.transports, again.kernel("attention")) == (hda.transports, hda.kernel("attention"))
