"""``timing/library.py``: what kernels that move data see of a machine."""

import pytest
from tests.collectives.shared import NIC

import megatile as mt
from megatile.plan.model import Transport
from megatile.timing.transports import Asked, kernel_view


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_the_share_of_nvlink_is_not_that_of_network_cards(protocol):
    near, far = (
        f"transports.device.nccl.protocols.{protocol}.share",
        f"transports.device.nccl.protocols.{protocol}.far_share",
    )
    hda = mt.machine("h100-cluster", **{near: "50 %", far: "80 %"})
    transport, asked = Transport("kernel", "nccl", "tree", protocol), Asked("all_reduce", 16)
    view = kernel_view(hda, "device", transport, 1 << 20, asked)
    wire = 0.5 if protocol == "LL" else 1.0
    assert view.networks["infiniband"].effective_bandwidth == pytest.approx(0.8 * wire * NIC)
    assert view.networks["nvlink"].efficiency == pytest.approx(0.5 * wire * hda.network("nvlink").efficiency)
