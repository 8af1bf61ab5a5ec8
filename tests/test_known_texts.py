"""``known_texts.py``: what tests make besides what they assert."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests import known_texts
from tests.known_texts import Known

FILES = sorted(Path(__file__).parent.rglob("texts.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_line_has_a_test(file: Path) -> None:
    assert not Known(file).without_tests()


def test_places_and_digits_do_not_matter() -> None:
    text = "at /some/where/kernel.py:12, lines 3, 4:\n    x = 1\n    ^\nis 0.12345678"
    assert known_texts.steady(text) == "at kernel.py:, lines :\n    x = 1\nis 0.12345678"
    assert known_texts.rounded("1.23456e-05, 0.125") == "1.235e-05, 0.125"


def test_another_text_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_texts, "SEEN", {})
    monkeypatch.setattr(known_texts, "FOUND", {})
    item = SimpleNamespace(nodeid="one", config=SimpleNamespace(getoption=lambda _: False))
    (tmp_path / "texts.txt").write_text("one | c:0\n", encoding="utf-8")
    hook = Known(tmp_path / "texts.txt", "c").run(item)
    next(hook)
    known_texts.note("c", "int x;")
    known_texts.note("cuda", "of another folder")
    with pytest.raises(pytest.fail.Exception, match=r"--update-golden takes them as right:\nint x;"):
        hook.send(None)
