"""YAML files as data with places; whatever a file holds, the answer is data or one error with its line."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from megatile.core.errors import MachineError, MegatileError
from megatile.hda.document import MAX_FILE_CHARS, MAX_NESTING_LEVELS, parse_document, read_document

TEXT = "name: a\nnetworks:\n  - name: nvlink\n    bandwidth: 450 GB/s\n  - {latency: 1 ns}\n"


def test_every_value_has_its_line() -> None:
    document = parse_document(TEXT, "a.yaml")
    assert document.data["networks"][0] == {"name": "nvlink", "bandwidth": "450 GB/s"}
    assert str(document.place(("networks", 0, "bandwidth"))) == "a.yaml:4: networks.nvlink.bandwidth"
    assert str(document.place(("networks", 1, "latency"))) == "a.yaml:5: networks.1.latency"
    assert str(document.place(("name",))) == "a.yaml:1: name"


def test_what_is_not_there_has_the_place_around_it() -> None:
    document = parse_document(TEXT, "a.yaml")
    assert str(document.place(("networks", 0, "latency"))) == "a.yaml:3: networks.nvlink.latency"
    assert str(document.place(("memory", 3))) == "a.yaml: memory.3"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "key 'a' appears twice"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, "key 'c' appears twice"),
        ("a: [1, 2\n", 2, "not valid YAML"),
        ("a: {b: 1\n", 2, "not valid YAML"),
        ("a: 'x\n", 2, "not valid YAML"),
        ("a: 1\n b: 2\n", 2, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
        ("a: *gone\n", 1, "not valid YAML"),
        ("", 1, "the description is empty"),
        ("- 1\n- 2\n", 1, "holds a sequence, not keys and values"),
        ("just text", 1, "holds a scalar"),
        ("a: 1\n? [x, y]\n: 2\n", 2, "a key must be a plain name"),
        ("a: 1\nb${1}: 2\n", 2, "a key must be a plain name"),
        ("a: 1\nb: !!python/name:os.system x\n", 2, "not a plain value"),
        ("a: !custom 3\n", 1, "not a plain value"),
        ("a: !!int x\n", 1, "not a plain value"),
        ("---\na: 1\n---\nb: 1\n", 3, "not valid YAML"),
    ],
)
def test_mistakes_have_their_line(text: str, line: int, message: str) -> None:
    with pytest.raises(MachineError, match=message) as caught:
        parse_document(text, "a.yaml")
    assert caught.value.place is not None
    assert (caught.value.place.file, caught.value.place.line) == ("a.yaml", line)


def test_nothing_is_constructed() -> None:
    with pytest.raises(MegatileError):
        parse_document("a: !!python/object/apply:os.getcwd []\nb: !!python/object/apply:os.getcwd x\n")


def test_alias_bombs_are_defused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(MachineError, match="too large: more than 50000 values"):
        parse_document("\n".join(lines))


def test_a_value_inside_itself_is_refused() -> None:
    with pytest.raises(MachineError, match="nested too deeply"):
        parse_document("a: &a [*a]\n")


@pytest.mark.parametrize("depth", [MAX_NESTING_LEVELS + 1, 2000, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(MachineError):
        parse_document("a: " + "[" * depth + "]" * depth)


def test_aliases_work() -> None:
    assert parse_document("a: &x {b: 1}\nc: *x\n").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path, tmp_path / "a\0b.yaml"):
        with pytest.raises(MachineError, match="cannot be read") as caught:
            read_document(path)
        assert str(path) in str(caught.value)


def test_binary_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"a: \xff\xfe")
    with pytest.raises(MachineError, match=r"not a text file \(byte 3 is not UTF-8\)"):
        read_document(file)
    file.write_bytes(b"a: \x00\x01")
    with pytest.raises(MachineError, match="not valid YAML"):
        read_document(file)


def test_large_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"#" * (MAX_FILE_CHARS + 1))
    with pytest.raises(MachineError, match="larger than 4 MiB"):
        read_document(file)


@given(st.one_of(st.text(max_size=60), st.text("abc:-[]{}&*!'\"\n \t#?|>%", max_size=60)))
def test_any_text_is_data_or_one_error(text: str) -> None:
    try:
        document = parse_document(text, "a.yaml")
    except MegatileError:
        return
    assert isinstance(document.data, dict)
