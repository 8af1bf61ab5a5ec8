"""The page of commands says what the command line says (``pytest --update-golden`` writes it anew)."""

from __future__ import annotations

from pathlib import Path

from tests.docs.command_reference import all_commands, reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "command-line.md"
MARK = "<!-- made by tests/docs/command_reference.py: change the help of the commands instead -->\n\n"


def test_the_page_is_made_from_the_commands(golden) -> None:
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark
    golden(PAGE, before + MARK + reference())


def test_every_option_has_a_help() -> None:
    silent = [
        f"{words} {parameter.name}"
        for words, command in all_commands()
        for parameter in command.params
        if not parameter.help and parameter.name != "help"
    ]
    assert silent == []


def test_the_page_of_questions_names_every_command() -> None:
    page = (ROOT / "docs" / "how-to" / "README.md").read_text(encoding="utf-8")
    missing = [words for words, _ in all_commands() if f"`{words}" not in page]
    assert missing == []
