"""``sim/sensitivity.py``: what would help most."""

from __future__ import annotations

from megatile.sim.sensitivity import Sensitivity, table


def test_what_helps_names_anomalies_and_leaves_out_what_changes_nothing():
    rows = [
        ("memory.l2.bandwidth", 1.1, 1003),
        ("memory.l2.latency", 1 / 1.1, 990),
        ("memory.l2.latency", 1.1, 1003),
    ]
    found = [Sensitivity(name, "1", by, took * 100, 100_000) for name, by, took in rows]
    text = table([*found, Sensitivity("memory.hbm.bandwidth", "1", 1.1, 99_999, 100_000)])
    assert [line.split()[-2] for line in text.splitlines()[1:4]] == ["+0.30%*", "-1.00%", "+0.30%"]
    assert "scheduling anomaly" in text
    assert text.endswith("1 other parameters have no effect")
    assert "anomaly" not in table(found[1:])
