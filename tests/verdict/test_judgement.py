"""The verdict of all rules together."""

import pytest
from tests.verdict import between_devices, flawed

import megatile as mt
from megatile.verdict.exchange import ring_of
from megatile.verdict.study import RULES


def test_a_rule_that_fails_is_named_and_the_others_are_tried(monkeypatch):
    def fails(study):
        raise ValueError("a mistake")
        yield

    result = mt.simulate(flawed.serial_total(n=1 << 18), machine="dgx-h100")
    failing = [RULES[0]._replace(find=fails), *RULES[1:]]
    monkeypatch.setattr("megatile.verdict.judgement.RULES", failing)
    with pytest.raises(ValueError, match="a mistake"):
        result.verdict()
    monkeypatch.setattr("megatile.verdict.study.raise_errors", False)
    verdict = mt.simulate(flawed.serial_total(n=1 << 18), machine="dgx-h100").verdict()
    assert f"{RULES[0].name} (failed)" in str(verdict)
    assert verdict.findings[0].name == "too few blocks"


def test_messages_between_other_tiles_are_no_ring():
    program = between_devices.gathered_rows(True, M=256, K=64, N=128, devices=4)
    assert ring_of(mt.lower(program, machine="mi300x-8").plan) is not None
    for made in (between_devices.shift(4), between_devices.stencil(), between_devices.exchange()):
        assert ring_of(mt.lower(made, machine="dgx-h100").plan) is None
