"""Messages that nothing hides: looked at before what takes long, and what hiding them brings."""

import pytest
from tests.verdict import between_devices, flawed

import megatile as mt
import megatile.language as T
from megatile.verdict import communication, judgement, overlap
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


def layers(at_once, in_place=False, carried=False, count=8, n=1 << 13, devices=8):
    """A sum for each layer: of a tile of its own, in a loop, or of all at once."""

    @T.program
    def made(X: T.Tensor((devices, count * n), "f32"), Y: T.Tensor((devices, count * n), "f32")):
        with T.Kernel(device=devices), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            t = T.alloc((1, count * n if at_once else n), "f32", level="l2")
            if at_once:
                T.copy(t, x)
                T.allreduce(t)
                T.copy(y, t)
                return
            for i in T.serial(count):
                part = slice(i * n, i * n + n)
                T.copy(t, y[:, 0:n] if carried else x[:, part])
                T.allreduce(t)
                T.copy((x if in_place else y)[:, 0:n] if carried else (x if in_place else y)[:, part], t)

    return made


@pytest.mark.parametrize("in_place", [False, True])
def test_collectives_of_independent_rounds_could_be_one(in_place):
    slow, fast = (mt.simulate(layers(one, in_place), machine="hgx-a100") for one in (False, True))
    ((_, count),) = overlap.independent(slow.lowered.source)
    assert count == 8
    (found,) = communication._batches(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.25)
    assert not list(overlap.independent(mt.lower(layers(False, carried=True), machine="hgx-a100").source))
