"""``ir/program.py``: what the names of a Program refer to."""

from tests.ir.shared import program

from megatile.ir.program import base_name, bindings, part_name, placements, same_names, seen

VIEWED = """
with scale("device"):
    a = view("A", shard(0), "device")
    t = alloc((8, 8), "f16", "hbm", "device")
    r = reshape("t", (4, 16), "f16")
    with scale("block"):
        b = view("a", shard(1), "block")
"""


def test_names_lead_to_their_storage() -> None:
    table = bindings(program(VIEWED))
    assert (table["b"].base, table["b"].shape, table["b"].scale) == ("A", (16, 8), "block")
    assert [view.name for view in table["b"].views] == ["a", "b"]
    assert (table["r"].base, table["r"].shape, table["r"].views) == ("t", (4, 16), ())


def test_parts_are_named_after_their_views() -> None:
    views = bindings(program(VIEWED))["b"].views
    assert part_name("A", views) == "A.device.block"
    assert base_name("A.device.block") == "A"


def test_a_unit_sees_its_part_of_its_part() -> None:
    p = program(VIEWED)
    views = bindings(p)["b"].views
    assert seen(p.launch, views, (16, 8), (1, 3)) == ((8, 16), (6, 8))
    assert {scale: str(layout) for scale, layout in placements(p)["A"].items()}.keys() == {"device", "block"}


def test_annotations_change_no_names() -> None:
    p = program(VIEWED)
    assert same_names(p, p)
    assert not same_names(p, program(VIEWED.replace("shard(1)", "shard(0)")))
