"""The system's Chromium, driven by Selenium, for tests of pages; without one they skip and say so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)


@contextmanager
def chromium(width: int = 1200, height: int = 1400) -> Iterator[Any]:
    """A browser with a window of this size."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium with chromedriver on this system: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in [*_FLAGS.split(), f"--window-size={width},{height}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


def wait_for(browser: Any, condition: Any) -> None:
    """Wait until a page is as expected."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(condition)


def errors(browser: Any) -> list[str]:
    """What the page complained about."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
