"""``report/sketch_networks.py``: sketches of units joined by a network, one function per kind of wiring."""

from megatile.hda import machine


def test_links_of_a_small_mesh_are_all_drawn() -> None:
    from megatile.report.sketch import Inside
    from megatile.report.sketch_networks import sketch_network

    mesh = machine("ahbm").network("cubes").topology
    sketch = sketch_network(Inside(16, "cube"), mesh, 400)
    assert len(sketch.wires) == 24
    assert len(sketch.shapes) == 16
    xgmi = machine("mi300x-8").network("xgmi").topology
    assert len(sketch_network(Inside(8, "gpu"), xgmi, 400).wires) == 28
