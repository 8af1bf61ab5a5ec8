"""``runtime/host/joint_launch.py``: launches of one kernel on every device, whose PEs send each other
messages."""

from __future__ import annotations

from tests.runtime.host.overlap_cases import busy

import megatile as mt


def test_launches_of_one_device_take_turns() -> None:
    with mt.host("ahbm") as torch:
        x, y = torch.zeros(4096), torch.zeros(4096)
        made = torch.clock_ps
        assert made == 2 * torch.engine.control_ps(), "page tables learn of both by a message"
        one = torch.launch("busy", busy, x, 4096, 5, _defer_wait=True)
        two = torch.launch("busy", busy, y, 4096, 5, _defer_wait=True)
        assert torch.clock_ps == made
        assert [one.state, two.state] == ["submitted", "submitted"]
        torch.accelerator.synchronize()
        assert two.submit_ps == one.end_ps
        assert torch.clock_ps == two.end_ps
