"""``runtime/host/launches.py``: work on devices."""

from __future__ import annotations

from tests.runtime.host.shared import double


def test_launches_on_different_devices_overlap(torch) -> None:
    tensors = []
    for device in (0, 1):
        torch.accelerator.set_device_index(device)
        tensors.append(torch.zeros(8))
    one, two = (torch.launch("double", double, x, 8, _defer_wait=True) for x in tensors)
    assert one.submit_ps == two.submit_ps
    again = torch.launch("double", double, tensors[0], 8)
    assert again.submit_ps == one.end_ps
    assert torch.clock_ps == again.end_ps
