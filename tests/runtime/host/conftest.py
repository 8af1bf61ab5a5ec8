"""A simulated machine of four devices for tests of the host."""

from collections.abc import Iterator
from typing import Any

import pytest

import megatile as mt


@pytest.fixture
def torch() -> Iterator[Any]:
    with mt.host("ahbm", sips=4) as namespace:
        yield namespace
