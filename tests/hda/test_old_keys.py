"""Machine files that still say ``protocol`` and ``library`` are read as ``transports``."""

import pytest

from megatile.core.errors import MachineError
from megatile.hda import HDA, machine
from toy_machines import chips


def test_figures_go_over_those_of_the_base():
    hda = machine(
        "dgx-h100", **{"protocol.start": "7 us", "protocol.switch_share": "50 %", "protocol.launch": "9 us"}
    )
    mine, base = (m.transports["device"]["nccl"] for m in (hda, machine("dgx-h100")))
    assert [mine.protocols[name].start_ps for name in ("LL", "Simple")] == [7 * 10**6] * 2
    assert mine.protocols["LL"].step_ps == base.protocols["LL"].step_ps
    assert mine.protocols["NVLS"].share == 0.5
    assert mine.launch_ps == 9 * 10**6
    assert set(mine.protocols) == set(base.protocols)


def test_a_file_of_its_own_gets_a_library():
    protocol = {"start": "5 us", "small_step": "1 us", "small_share": "25 %", "source": "mine"}
    library = {"small_channel": "4 KiB", "filling": 12}
    for topology, name in (("switch", "nccl"), ("full_mesh", "rccl")):
        hda = HDA.from_dict({**chips(topology, 4).to_dict(), "protocol": protocol, "library": library})
        found = hda.transports["device"][name]
        assert found.protocols["LL"].share == 0.5
        assert found.protocols["LL"].step_ps == 10**6
        assert found.small_channel == 4096
        assert hda.spec.transports["device"][name].protocols["LL"].source == "mine"
        assert HDA.from_dict(hda.to_dict()).transports == hda.transports


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"protocol": {"strat": "5 us"}}, "protocol.strat: unknown key 'strat'.*did you mean 'start'"),
        ({"protocol": 5}, "protocol: keys and values are needed, not 5"),
        ({"protocol": {"small_share": "x"}}, "protocol.small_share"),
        ({"library": {"fillin": 1}}, "library.fillin: unknown key"),
        ({"protocol": {}, "transports": 3}, "keys and values are needed, not 3"),
        ({"protocol": {"start": "5 GB"}}, "'5 GB' is a size, but a time is needed"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(section, message):
    with pytest.raises(MachineError, match=message):
        HDA.from_dict({**chips("switch", 4).to_dict(), **section})
