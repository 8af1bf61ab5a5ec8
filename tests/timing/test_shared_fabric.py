"""Plans that see a machine alike use what was found out for each other, and only those."""

from __future__ import annotations

import gc
from weakref import ref

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.planner import make_job
from megatile.timing.faults import Faults
from megatile.timing.library import Library
from megatile.timing.resources import Resources

H100 = mt.machine("h100-cluster", nodes=2)


def seen(timing, name="ring", hda=H100, **more):
    job, _ = make_job("all_reduce", machine=hda, nbytes="1 KiB")
    return Resources(hda, find_algorithm(name).plan(job), timing=timing, **more)


def test_alike_means_machine_path_and_share():
    ring, tree = seen(Library("bulk", "ring")), seen(Library("bulk", "tree", steps_saved=2.0), "tree")
    assert ring.fabric is tree.fabric
    assert ring.path(0, "hbm", 9, "hbm") is tree.path(0, "hbm", 9, "hbm")
    others = [
        seen(Library("small", "ring")),
        seen(Library("bulk", "ring", channels=1)),
        seen(Library("bulk", "ring"), hda=mt.machine("h100-cluster", nodes=2)),
        seen(Library("bulk", "ring"), faults=Faults(slow_link=((("gpu:0", "gpu:1"), 4.0),))),
        seen(None),
    ]
    assert len({id(r.fabric) for r in (ring, *others)}) == 6
    slow = others[3]
    assert slow.path(0, "hbm", 1, "hbm").bandwidth < ring.path(0, "hbm", 1, "hbm").bandwidth


def test_it_goes_with_the_last_plan():
    one = seen(Library("bulk", "ring"), hda=mt.machine("h100-cluster", nodes=3))
    kept = ref(one.fabric)
    del one
    gc.collect()
    assert kept() is None


def test_what_many_units_found_out_is_their_own():
    many = mt.machine("h100-cluster", nodes=40)
    ring, again = (seen(Library("bulk", "ring"), hda=many) for _ in range(2))
    assert ring.fabric is not again.fabric
