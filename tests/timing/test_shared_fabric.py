"""Plans that see a machine alike use what was found out for each other, and only those."""

from __future__ import annotations

import gc
from weakref import ref

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.requests import make_job
from megatile.plan.model import Transport, with_transport
from megatile.timing.faults import Faults
from megatile.timing.resources import Resources

H100 = mt.machine("h100-cluster", nodes=2)


def seen(protocol, name="ring", hda=H100, channels=None, **more):
    job, _ = make_job("all_reduce", machine=hda, nbytes="1 KiB")
    plan = find_algorithm(name).plan(job)
    if protocol is not None:
        plan = with_transport(
            plan, Transport("kernel", "nccl", name, protocol, channels), "all_reduce", 16, 1024
        )
    return Resources(hda, plan, **more)


def test_alike_means_machine_path_and_share():
    ring, tree = seen("Simple"), seen("Simple", "tree")
    assert ring.fabric is tree.fabric
    assert ring.path(0, "hbm", 9, "hbm") is tree.path(0, "hbm", 9, "hbm")
    others = [
        seen("LL"),
        seen("Simple", channels=1),
        seen("Simple", hda=mt.machine("h100-cluster", nodes=2)),
        seen("Simple", faults=Faults(slow_link=((("gpu:0", "gpu:1"), 4.0),))),
        seen(None),
    ]
    assert len({id(r.fabric) for r in (ring, *others)}) == 6
    slow = others[3]
    assert slow.path(0, "hbm", 1, "hbm").bandwidth < ring.path(0, "hbm", 1, "hbm").bandwidth


def test_it_goes_with_the_last_plan():
    one = seen("Simple", hda=mt.machine("h100-cluster", nodes=3))
    kept = ref(one.fabric)
    del one
    gc.collect()
    assert kept() is None


def test_what_many_units_found_out_is_their_own():
    many = mt.machine("h100-cluster", nodes=40)
    ring, again = (seen("Simple", hda=many) for _ in range(2))
    assert ring.fabric is not again.fabric
