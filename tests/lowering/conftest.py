"""What tests of this folder make besides what they assert is what is known (`tests.known_calls`)."""

from collections.abc import Iterator

import pytest
from tests.known_calls import known

KNOWN = known(__file__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from KNOWN.run(item))


def pytest_sessionfinish(session: pytest.Session) -> None:
    KNOWN.finish(session)
