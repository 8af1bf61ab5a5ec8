"""The built site works from a folder, without a server: pictures, links, search in a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.browser import chromium, errors, wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site in the folder ``SITE`` (set by ``make docs``), or one built here, without a warning."""
    if "SITE" in os.environ:
        return ROOT / os.environ["SITE"]
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "--site-dir", str(target)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return target


def test_search_works_from_the_file_system(site: Path) -> None:
    with chromium() as browser:
        browser.get((site / "index.html").as_uri())
        browser.find_element("css selector", "[data-md-component=search-query]").click()
        browser.find_element("css selector", "[data-md-component=search-query]").send_keys("hierarchical")
        found = "[data-md-component=search-result] .md-search-result__link"
        wait_for(browser, lambda b: b.find_elements("css selector", found))
        assert errors(browser) == []
        browser.get(browser.find_elements("css selector", found)[0].get_attribute("href"))
        assert "hierarchical" in browser.page_source.lower()


def test_links_and_pictures_of_all_pages_are_files(site: Path) -> None:
    missing = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r'<[^<>]+ (?:href|src)="?([^"\s>]+)', page.read_text(encoding="utf-8")):
            file = link.partition("#")[0].partition("?")[0]
            if file and ":" not in file and not (page.parent / file).exists():
                missing.append(f"{page.relative_to(site)}: {link}")
    assert missing == []


def test_tables_behind_the_accuracy_page_are_folded_into_it(site: Path) -> None:
    text = (site / "fidelity.html").read_text(encoding="utf-8")
    assert text.count("<details") > 10
    assert "Errors by kernel" in text
    assert "all_reduce, 8 ranks" in text


def test_no_page_asks_others_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', text)
        assert [one for one in asked if "canonical" not in one] == [], page
