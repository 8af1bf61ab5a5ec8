"""``trace/exposure.py``: communication that nothing hides."""

from __future__ import annotations

from tests.report.shared import two_units

from megatile.trace import busy_ps, exposed_ps


def test_busy_and_exposed_time() -> None:
    assert busy_ps(two_units()) == {"dma": 250, "vector": 250}
    # pe0 is covered 0-300, of which 200 compute; pe1 is covered 0-450, of which 50 compute.
    assert exposed_ps(two_units()) == {"pe0": 100, "pe1": 400}
