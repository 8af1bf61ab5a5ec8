"""The built site (``make docs``) works from a folder, without a server: pictures, links, search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.report.browser import chromium, errors, wait_for

SITE = Path(__file__).parents[2] / "out" / "site"


@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: make docs")
def test_search_works_from_the_file_system() -> None:
    with chromium() as browser:
        browser.get((SITE / "index.html").as_uri())
        browser.find_element("css selector", "[data-md-component=search-query]").click()
        browser.find_element("css selector", "[data-md-component=search-query]").send_keys("hierarchical")
        found = "[data-md-component=search-result] .md-search-result__link"
        wait_for(browser, lambda b: b.find_elements("css selector", found))
        assert errors(browser) == []
        browser.get(browser.find_elements("css selector", found)[0].get_attribute("href"))
        assert "hierarchical" in browser.page_source.lower()


@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: make docs")
def test_no_page_asks_others_for_anything() -> None:
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', text)
        assert [one for one in asked if "canonical" not in one] == [], page
