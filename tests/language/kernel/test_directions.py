"""``language/kernel/directions.py``: directions (``E W N S parent ...``)."""

from __future__ import annotations

import pytest
from tests.language.kernel import kernels
from tests.language.kernel.reader_cases import both, run

from megatile.language import tl
from megatile.language.kernel.directions import TopologyError


def test_unknown_direction():
    def kernel(t_ptr, tl):
        tl.send(dir="N", src=tl.load(t_ptr, (4,)))

    error = both(kernel, tl.IpcqInvalidDirection)
    assert "there is no direction 'N'" in str(error)
    assert "test_directions.py" in str(error)
    assert "E, W" in str(error)


@pytest.mark.parametrize("sending", [True, False])
def test_a_direction_over_the_edge(sending):
    def sends(t_ptr, tl):
        tl.send(dir="E", src=tl.load(t_ptr + tl.rank * 8, (4,)))
        tl.recv(dir="W", shape=(4,))

    def receives(t_ptr, tl):
        tl.recv(dir="N", shape=(4,))

    kernel = sends if sending else receives
    error = both(kernel, tl.IpcqInvalidDirection, topology="mesh_2d_no_wrap")
    words = "unit 1 sends in direction E" if sending else "unit 0 receives in direction N"
    assert f"{words} on channel 'ipcq', where it has no neighbour" in str(error)


def test_neighbours_that_do_not_exist():
    with pytest.raises(TopologyError, match="neighbour 9 in direction E, but there are 3 units"):
        run(kernels.hello_send, extra=(4,), topology=lambda rank, size: {"E": 9})
