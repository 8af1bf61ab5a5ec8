"""The page of a run: what stands in it, and that it works in a browser."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.browser import SCREENSHOTS, chromium, errors, wait_for
from tests.sim.toys import toy
from tests.tuning.factories import gemm

import megatile as mt
from megatile.collectives import predict
from megatile.core.errors import MegatileError
from megatile.hda import machine
from megatile.hda.parameters import figures, scaled
from megatile.plan.build import PlanBuilder
from megatile.report import page as pages
from megatile.report.page import LinkUse, page
from megatile.sim import simulate
from megatile.sim.page import link_use, result_page
from megatile.sim.repeat import recorded
from megatile.trace import TraceBuilder


@pytest.fixture(scope="module")
def result() -> Any:
    found = predict("all_reduce", machine="dgx-h100", nbytes=1 << 20, algorithm="ring")
    return simulate(found.plan, machine="dgx-h100")


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def column(data: dict[str, Any], name: str, kind: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(data["timeline"]["columns"][name])), kind)


def test_every_event_is_on_the_page(result: Any, tmp_path: Path) -> None:
    data = data_of(result.report(tmp_path / "r.html", retime=False).read_text("utf-8"))
    trace = result.trace
    assert data["time_ps"] == trace.end_ps
    start, length = column(data, "start", "<f8"), column(data, "length", "<f8")
    assert sorted(zip(start, length, strict=True)) == sorted(
        zip(trace.columns["start_ps"], trace.columns["end_ps"] - trace.columns["start_ps"], strict=True)
    )
    row = column(data, "row", "<i4")
    assert (np.diff(row) >= 0).all()
    same = np.diff(row) == 0
    assert (start[1:][same] >= start[:-1][same] + length[:-1][same]).all()  # lanes do not overlap
    assert sum(map(len, [data["critical"]])) > 0
    assert column(data, "critical", "u1").sum() == len(result.critical_path)


def test_a_page_survives_any_name() -> None:
    b = TraceBuilder("</script><!--")
    b.add(unit="<b>u</b>", engine="dma", operation="</script>", start_ps=0, end_ps=5, source="no/such.py:3")
    data = data_of(page(b.build(), title="<!--<script></script>"))
    assert data["title"] == "<!--<script></script>"
    assert data["timeline"]["operations"] == ["</script>"]


def test_an_empty_trace_has_a_page() -> None:
    assert data_of(page(TraceBuilder("toy").build(), title="nothing"))["time_ps"] == 0


def test_too_many_events_are_left_out_with_a_word(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_EVENTS", 30)
    data = data_of(page(result.trace, title="short"))
    assert 0 < len(column(data, "start", "<f8")) <= 30
    assert f"of {len(result.trace)} events" in data["timeline"]["left_out"]
    assert column(data, "cause", "<i4").max() < 30


def test_link_use_adds_up_to_what_the_links_carry(result: Any) -> None:
    uses = {f"{u.network} {u.link}": float(np.mean(u.use)) for u in link_use(result)}
    network = result.machine.network("nvlink")
    for link in range(network.topology.link_count):
        start, stop = network.topology.ends(link)
        known = result.links.get(f"nvlink {start}->{stop}", 0.0)
        assert uses.get(f"nvlink {link}", 0.0) == pytest.approx(known, rel=0.02, abs=1e-4)


@pytest.mark.parametrize("name", ["ahbm", "cerebras-wse2", "h100-cluster", "mi300x-8"])
def test_networks_of_shipped_machines_can_be_drawn(name: str) -> None:
    hda = machine(name)
    uses = [LinkUse(n.name, 0, 0, [0.5, 1.0]) for n in hda.networks]
    for drawn in pages._networks(hda, uses):
        assert all(
            0 <= a < len(drawn["nodes"]) and 0 <= b < len(drawn["nodes"]) for a, b, *_ in drawn["links"]
        )
        assert all(0 <= x <= 400 and 0 <= y <= 300 for x, y, _ in drawn["nodes"])


def test_bytes_of_memories_are_counted_by_layer() -> None:
    """Bytes of a copy or of work count for each operand: twice for what is read and written in one memory."""
    b = PlanBuilder("counted", scale="core", units=2)
    x = b.tile("x", (8, 16), "f32", memory="common", role="inout")
    t = b.tile("t", (1, 16), "f32", memory="local")
    for row in range(3):
        b.copy(t, x[row : row + 1, 0:16])
    b.compute("exp", t, [t])
    b.copy(x[7:8, 0:16], t)
    found = recorded(simulate(b.finish(), machine=toy(2)).launch, operands=True).memory_bytes()
    assert found == {"local": 2 * (3 * 64 + 2 * 128 + 64), "common": 2 * (3 * 64 + 64)}


def test_a_page_ends_in_html(result: Any, tmp_path: Path) -> None:
    with pytest.raises(MegatileError, match=r"does not end in \.html"):
        result.report(tmp_path / "out.pdf")
    assert not list(tmp_path.iterdir())


# re-timing


def test_figures_can_be_multiplied() -> None:
    hda = machine("dgx-h100")
    twice = scaled(hda, {"networks.nvlink.bandwidth": 2, "engines.tensor_core.throughput": 0.5})
    assert twice.network("nvlink").bandwidth == 2 * hda.network("nvlink").bandwidth
    assert twice.throughput("gpu", "f16") == pytest.approx(hda.throughput("gpu", "f16") / 2)
    assert all(scaled(hda, {name: 1.0}).to_dict() for name in figures(hda))
    with pytest.raises(MegatileError, match="did you mean"):
        scaled(hda, {"networks.nvlink.bandwith": 2})


def test_a_ring_of_large_messages_follows_its_links(result: Any) -> None:
    found = predict("all_reduce", machine="dgx-h100", nbytes=1 << 28, algorithm="ring")
    large = simulate(found.plan, machine="dgx-h100", record=False)
    ranked = large.sensitivities()
    assert ranked[0].figure == "networks.nvlink.bandwidth"
    assert -1.02 < ranked[0].elasticity < -0.7
    assert (
        large.retime({"networks.nvlink.bandwidth": 2})
        < large.time_ps
        < large.retime({"networks.nvlink.bandwidth": 0.5})
    )
    assert large.retime({}) == large.time_ps
    assert "networks.nvlink.bandwidth" in large.what_helps()
    with pytest.raises(MegatileError, match="cannot be multiplied"):
        large.retime({"networks.nvlink.bandwidth": 0})


# in a browser

OVERLAPPING_LABELS = """
D.roofline.points = D.roofline.peaks.map(p => ({intensity: 400, rate: 1.5 * p.rate, name: p.name}));
$("roof").replaceChildren(); roofline();  // dots just above the names of the peaks
const found = [], texts = [...document.querySelectorAll("#roof text:not([transform])")];
const boxes = texts.map(t => t.getBoundingClientRect());
boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
  const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  if (wide > 1 && high > 0.3 * a.height) found.push([texts[i].textContent, texts[j].textContent]);
}));
return found
"""


def test_the_page_works_in_a_browser(result: Any, tmp_path: Path) -> None:
    file = result.report(tmp_path / "r.html")
    with chromium() as browser:
        browser.get(file.as_uri())
        wait_for(browser, lambda b: b.execute_script("return document.body.dataset.ready"))
        assert not errors(browser)
        assert browser.find_element("id", "error").text == ""
        spans = lambda: browser.execute_script(  # noqa: E731
            "const c = document.getElementById('timeline'); return [+c.dataset.begin, +c.dataset.end]"
        )
        assert spans() == [0, result.trace.end_ps]
        browser.find_element("id", "in").click()
        begin, end = spans()
        assert end - begin == pytest.approx(0.6 * result.trace.end_ps)
        canvas = browser.find_element("id", "timeline")
        canvas.send_keys("+")
        narrower = spans()
        assert narrower[1] - narrower[0] < end - begin
        canvas.send_keys("0")
        assert spans() == [0, result.trace.end_ps]
        browser.find_element("id", "search").send_keys("send")
        sends = len(result.trace.select(operation="send"))
        assert browser.find_element("id", "found").text == f"{sends} events"
        canvas.send_keys("nn")
        said = browser.find_element("id", "picked").text
        assert said.startswith("send on ")
        canvas.send_keys("p")
        assert browser.find_element("id", "picked").text != said
        retimed = lambda: float(browser.find_element("id", "retimed").get_attribute("data-ps"))  # noqa: E731
        assert retimed() == pytest.approx(result.time_ps)
        slider = "const s = document.getElementById('s0'); s.value = %s; s.dispatchEvent(new Event('input'))"
        figure = browser.execute_script("return D.sensitivity.parameters[0].name")
        browser.execute_script(slider % 1)
        assert retimed() == pytest.approx(result.retime({figure: 2.0}), rel=1e-6)
        browser.execute_script("document.getElementById('when').value = 3; machine()")
        assert not errors(browser)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        assert browser.save_screenshot(str(SCREENSHOTS / "report.png"))
        browser.set_window_size(420, 900)
        timed = mt.simulate(gemm(1024, 1024, 64, 128, 128, 64), machine="dgx-h100")
        program = timed.report(tmp_path / "program.html")
        for one in (file, program):
            browser.get(one.as_uri())
            wait_for(browser, lambda b: b.execute_script("return document.body.dataset.ready"))
            fits = browser.execute_script("return document.documentElement.scrollWidth <= innerWidth + 1")
            assert fits, "the page is wider than a narrow window"
            assert not errors(browser)
        assert browser.execute_script(OVERLAPPING_LABELS) == []
        assert timed.time_ps > timed.trace.end_ps  # the last stores end after the last command
        assert retimed() == pytest.approx(timed.time_ps)  # by sliders that nobody has moved


def test_many_blocks_share_the_rows_of_their_unit() -> None:
    low = mt.lower(gemm(256, 256, 64, bM=16, bN=16, bK=32), machine="dgx-h100")
    data = data_of(result_page(mt.simulate(low), retime=False))
    timeline = data["timeline"]
    assert len(timeline["instances"]) > 256  # the device, its blocks
    assert len(timeline["units"]) <= 1 + 132
    assert all("block" not in name for name in timeline["units"])
    row, start, length = (
        column(data, n, k) for n, k in (("row", "<i4"), ("start", "<f8"), ("length", "<f8"))
    )
    same = np.diff(row) == 0
    assert (start[1:][same] >= start[:-1][same] + length[:-1][same]).all()
    control = [r for r in timeline["rows"] if r["kind"] == "control"]
    assert {r["name"] for r in control} == {"control"}  # launches of blocks that start together are one
    for i, unit in zip(column(data, "instance", "<i4"), row, strict=True):
        name = timeline["units"][timeline["rows"][unit]["unit"]]
        assert timeline["instances"][i].startswith(name)


def test_the_roofline_is_that_of_the_units_in_use() -> None:
    hda = mt.machine("dgx-h100")
    data = data_of(result_page(mt.simulate(gemm(2048, 2048, 256, bM=64, bN=64), machine=hda), retime=False))
    (hbm,) = (m["rate"] for m in data["roofline"]["memories"] if m["name"] == "hbm")
    assert hbm == pytest.approx(hda.memory("hbm").effective_bandwidth)  # of one device of eight
    (point,) = (p for p in data["roofline"]["points"] if p["name"].endswith(" of hbm"))
    assert point["rate"] <= hbm * point["intensity"]  # what caches give counts as theirs


def test_more_than_eight_units_that_do_the_same_are_folded(tmp_path: Path) -> None:
    from megatile.core.expr import unit
    from megatile.plan.build import PlanBuilder

    b = PlanBuilder("rows", scale="device", units=1)
    block = b.level("block", scale="block", grid=12, parent="device", slots=1)
    rows = b.tile("rows", (12, 64), "f16", memory="hbm", role="input")
    row = b.tile("row", (1, 64), "f16", memory="shared", level=block)
    with b.stream(level=block):
        b.copy(row, rows[unit, 0:64])
    run = simulate(b.finish(), machine="dgx-h100")
    data = data_of(run.report(tmp_path / "r.html", retime=False).read_text("utf-8"))
    shown, units = data["timeline"]["shown"], data["timeline"]["units"]
    folded = {tuple(s) for s, name in zip(shown, units, strict=True) if "block" in name}
    assert [number for _, number in folded] == [12]
    assert [s for s, name in zip(shown, units, strict=True) if "block" not in name] == [[0, 1]]
