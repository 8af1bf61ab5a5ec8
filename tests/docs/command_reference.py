"""The reference of commands, made from the command line itself."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

from megatile.cli.main import COMMANDS, load_command

WORDS = {"int": "NUMBER", "float": "NUMBER", "Path": "FILE"}


def all_commands() -> list[tuple[str, Any]]:
    """Every command with its words, in the order of the help."""
    found = {name: load_command(name) for name in COMMANDS}
    return [
        (f"megatile {name} {inner}".strip(), command)
        for name, group in found.items()
        for inner, command in getattr(group, "commands", {"": group}).items()
    ]


def reference() -> str:
    """Markdown: a table of all commands, then one section for each."""
    lines = ["| command | does |", "|---|---|"]
    found = all_commands()
    for words, command in found:
        lines.append(f"| [`{words}`](#{words.replace(' ', '-')}) | {first_sentence(command)} |")
    for words, command in found:
        lines += ["", f"### {words}", "", *section(words, command)]
    return "\n".join(lines) + "\n"


def first_sentence(command: Any) -> str:
    return str(command.help).strip().split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".")


def section(words: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([words, *(shown_argument(p) for p in arguments), "[OPTIONS]" if options else ""]).strip()
    text = " ".join(str(command.help).split("\n\n")[0].split())
    lines = [text, "", "```text", usage, "```", "", "| argument | means | unless given |", "|---|---|---|"]
    lines += [f"| `{shown_argument(p)}` | {cell(p.help)} | {default(p)} |" for p in arguments]
    lines += [f"| {names(command, p)} | {cell(p.help)} | {default(p)} |" for p in options]
    return lines


def shown_argument(parameter: Any) -> str:
    name = parameter.name.upper()
    return f"{name}..." if parameter.nargs == -1 else name


def names(command: Any, option: Any) -> str:
    words = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag else f" {option.metavar or kind(command, option)}"
    return ", ".join(f"`{word}`" for word in sorted(words, key=len)) + (
        f" `{value.strip()}`" if value else ""
    )


def kind(command: Any, option: Any) -> str:
    hint = str(typing.get_type_hints(inspect.unwrap(command.callback))[option.name])
    return next((word for name, word in WORDS.items() if name in hint), "TEXT")


def cell(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").strip() or "–"


def default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "needed"
    if value in (None, False, [], ()) or callable(value) or "UNSET" in repr(value).upper():
        return ""
    return f"`{value}`" if not isinstance(value, bool) else "yes"
