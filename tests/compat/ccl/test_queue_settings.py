"""What ``ccl.yaml`` says of queues changes times: credits, chunks, back-pressure."""

import pytest

import megatile as mt
from megatile.collectives import kernel_plan, load_ccl_config, plan_of_module, resolve_algorithm_config
from megatile.collectives.job import CollectiveError
from megatile.core.expr import eq, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan, PlanError

AHBM = mt.machine("ahbm")
ENGINES = ("plain", "compiled", None)


def ring(**settings):
    config = resolve_algorithm_config(load_ccl_config(), "ring_allreduce_tcm")
    return kernel_plan({**config, **settings}, AHBM, n_elem=64)


def stream_of_messages(count=4, slots=1, **channel):
    """Unit 0 sends to unit 1, which takes the messages one by one."""
    b = PlanBuilder("stream", scale="pe", units=2)
    x = b.tile("x", (64,), "f32", memory="tcm", role="inout")
    queue = b.channel("q", source=0, slot_bytes=256, memory="tcm", slots=slots, **channel)
    with b.loop(0, count):
        with b.when(eq(unit, 0)):
            b.send(queue, x, to=1)
        with b.when(eq(unit, 1)):
            b.copy(x, b.receive(queue, (64,), "f32"), engine="vector")
    return b.finish()


def times(plan, **options):
    found = {mt.simulate(plan, machine=AHBM, engine=engine, **options).time_ps for engine in ENGINES}
    assert len(found) == 1
    return found.pop()


def test_credits_of_that_size_travel_back_and_delay_a_full_sender():
    small, large = (times(stream_of_messages(credit_bytes=size)) for size in (16, 4096))
    machine = mt.simulate(stream_of_messages(), machine=AHBM).record.launched.resources
    apart = machine.message_ps(1, 0, 4096) - machine.message_ps(1, 0, 16)
    assert apart > 0
    assert large - small == 3 * apart  # every message but the first waits for a credit


def test_credits_do_not_matter_to_a_sender_that_never_waits():
    assert times(stream_of_messages(slots=4, credit_bytes=16)) == times(
        stream_of_messages(slots=4, credit_bytes=4096)
    )


def test_without_a_size_credits_are_the_machines():
    assert times(stream_of_messages()) == times(stream_of_messages(credit_bytes=16))


def crossing(chunk=None):
    """A long message and a short one that meets it on a shared link."""
    b = PlanBuilder("crossing", scale="device", units=3)
    x = b.tile("x", (1 << 18,), "f32", memory="hbm", role="inout")
    long = b.channel("long", source=0, slot_bytes=1 << 20, memory="hbm", chunk_bytes=chunk)
    short = b.channel("short", source=1, slot_bytes=256, memory="hbm")
    with b.when(eq(unit, 0)):
        b.send(long, x, to=2)
    with b.when(eq(unit, 1)):
        b.compute("fill", x, value=1)
        b.send(short, x[0:64], to=2)
    with b.when(eq(unit, 2)):
        b.copy(x[0:64], b.receive(short, (64,), "f32"), engine="vector")
        b.receive(long, (1 << 18,), "f32")
    return b.finish()


def short_arrives(plan, engine):
    result = mt.simulate(plan, machine=mt.machine("dgx-h100"), engine=engine)
    return min(e.end_ps for e in result.trace if e.operation == "copy")


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_between_chunks_others_may_go(engine):
    whole, cut = short_arrives(crossing(), engine), short_arrives(crossing(4096), engine)
    assert whole - cut > 2_000_000  # of the 2.7 us that the long one takes


def test_ccl_settings_reach_the_queues():
    (queues,) = ring(ipcq_credit_size_bytes=64, vc_chunk_size=128).channels
    assert (queues.credit_bytes, queues.chunk_bytes) == (64, 128)
    module = "megatile.collectives.kernels.ring_allreduce"
    quick, slow = (
        mt.simulate(plan_of_module(module, 8, n_slots=2, ipcq_credit_size_bytes=size), machine=AHBM).time_ps
        for size in (16, 1 << 20)
    )
    assert slow > quick


@pytest.mark.parametrize("mode", ["poll", None, 3])
def test_a_full_sender_sleeps(mode):
    with pytest.raises(CollectiveError, match=f"no backpressure {mode!r}"):
        ring(backpressure=mode)


def test_queues_survive_text_and_json():
    plan = stream_of_messages(credit_bytes=24, chunk_bytes=512)
    assert Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())


@pytest.mark.parametrize("told", [{"credit_bytes": -1}, {"chunk_bytes": 0}])
def test_impossible_queues_are_refused(told):
    with pytest.raises(PlanError, match="credits of 0 bytes or more"):
        mt.check(stream_of_messages(**told))
