"""Messages that nothing hides: looked at before what takes long, and what hiding them brings."""

import pytest
from tests.verdict import between_devices, flawed

import megatile as mt
from megatile.verdict import communication, judgement
from megatile.verdict.study import RULES, Study


@pytest.fixture(scope="module")
def gathered():
    return mt.simulate(between_devices.gathered(rows_of_all=True), machine="dgx-h100")


def test_exposed_messages_are_looked_at_before_searches(gathered):
    study = Study(gathered)
    assert communication.exposed(study)
    names = [one.name for one in sorted(RULES, key=lambda one: judgement._turn(one, True))]
    assert names.index("communication") < names.index("block order") < names.index("tile size")
    assert not communication.exposed(Study(mt.simulate(flawed.transpose(n=512), machine="dgx-h100")))


def test_all_but_a_part_of_the_shorter_is_hidden(gathered, monkeypatch):
    study = Study(gathered)
    free = communication.without_messages(study)
    (found,) = communication._hidden(study, free, communication._line(study))
    shorter = min(study.base_ps - free, free - study.launch_ps)
    alone = study.plan_ps(communication._rewritten(study.plan, communication._idle))
    assert found.time_ps == pytest.approx(max(alone, study.base_ps - shorter * 3 / 4))
    assert free < found.time_ps < study.base_ps
    monkeypatch.setattr(communication, "LARGE", 0)
    assert communication._line(Study(gathered)) == found.source


def test_a_verdict_without_findings_names_exposed_messages(gathered, monkeypatch):
    monkeypatch.setattr(judgement, "RULES", [])
    (found,) = gathered.verdict().findings
    assert found.name == "exposed communication"
    assert found.bound
