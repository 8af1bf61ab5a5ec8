"""``texts.txt`` (`conftest`): it has the tests that there are, and a changed text is a failure."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.targets import conftest

FOLDER = Path(__file__).parent


def test_every_line_has_a_test() -> None:
    for name in conftest.known():
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (FOLDER / file).read_text(encoding="utf-8"), name


def test_places_and_digits_do_not_matter() -> None:
    text = "at /some/where/kernel.py:12, lines 3, 4:\n    x = 1\n    ^\nis 0.12345678"
    assert conftest.steady(text) == "at kernel.py:, lines :\n    x = 1\nis 0.12345678"
    assert conftest.rounded("1.23456e-05, 0.125") == "1.235e-05, 0.125"


def test_another_text_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    item = SimpleNamespace(nodeid="tests/targets/one", config=SimpleNamespace(getoption=lambda _: False))
    monkeypatch.setattr(conftest, "known", lambda: {"one": "c:0"})
    monkeypatch.setattr(conftest, "FOUND", {})
    monkeypatch.setattr(conftest, "SEEN", {})
    hook = conftest.pytest_runtest_call(item)
    next(hook)
    conftest.note("c", "int x;")
    with pytest.raises(pytest.fail.Exception, match=r"--update-golden takes them as right:\nint x;"):
        hook.send(None)
