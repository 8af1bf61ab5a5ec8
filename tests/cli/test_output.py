"""``cli/output.py``: printing for all commands."""

import json

import pytest

from megatile.hda import machine


@pytest.mark.parametrize("command", [("collective", "all_reduce"), ("plan", "simulate", "none.json")])
def test_an_option_given_twice_is_refused(megatile, command) -> None:  # type: ignore[no-untyped-def]
    result = megatile(*command, "-m", "dgx-h100", "--machine", "mi300x-8")
    assert result.code == 1
    assert "--machine is given 2 times" in result.err


def test_a_route_is_shown_leg_by_leg(megatile):
    shown = megatile("machine", "route", "dgx-h100", "gpu:0", "gpu:7")
    assert shown.code == 0
    assert "1 along up, 1 along down" in shown.out
    found = machine("h100-cluster", nodes=4).route("gpu:0", "gpu:31")
    line = ("machine", "route", "h100-cluster", "gpu:0", "gpu:31", "--set", "nodes=4", "--json")
    data = json.loads(megatile(*line).out)
    assert data["schema"] == "megatile.machine.route/1"
    assert (data["hops"], data["latency_ps"]) == (found.hop_count, found.latency_ps)
    assert sum(leg["latency_ps"] for leg in data["legs"]) == found.latency_ps
    assert "are one unit" in megatile("machine", "route", "cpu", "core:0", "core:0").out
    assert megatile("machine", "route", "dgx-h100", "gpu:0", "gpu:99").code == 1
