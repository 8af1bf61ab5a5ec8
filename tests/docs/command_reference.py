"""The reference of commands, made from the command line itself."""

from __future__ import annotations

import inspect
import re
import typing
from collections import Counter
from typing import Any

from megatile.cli.main import COMMANDS, load_command

SHARED = 3
"""Options with the same help in at least so many commands are explained once."""
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
    """Markdown: what many commands share, then one section for each command."""
    found = all_commands()
    uses: dict[tuple[str, str], list[str]] = {}
    for _, command in found:
        for p in parameters(command):
            uses.setdefault(key(command, p), []).append(default(p))
    shared = {what: Counter(all_).most_common(1)[0][0] for what, all_ in uses.items() if len(all_) >= SHARED}
    lines = ["## Shared arguments and options", "", "`--help` says which of these a command takes.", ""]
    lines += [f"* {name}: {text}{usual}" for (name, text), usual in shared.items()] + ["", "## Commands"]
    for words, command in found:
        lines += ["", f"### {words}", "", *section(words, command, shared)]
    return "\n".join(lines) + "\n"


def parameters(command: Any) -> list[Any]:
    return [p for p in command.params if p.name != "help"]


def key(command: Any, parameter: Any) -> tuple[str, str]:
    """The names of a parameter and its help."""
    given = parameter.param_type_name == "argument"
    return f"`{shown_argument(parameter)}`" if given else names(command, parameter), cell(parameter.help)


def section(words: str, command: Any, shared: dict[tuple[str, str], str]) -> list[str]:
    arguments = [p for p in parameters(command) if p.param_type_name == "argument"]
    own = [p for p in parameters(command) if key(command, p) not in shared]
    also = [p for p in parameters(command) if p not in own and p not in arguments]
    text = " ".join(str(command.help).split("\n\n")[0].split())
    usage = f"`{' '.join([words, *(shown_argument(p) for p in arguments)])}`"
    lines = [text, "", *([usage, ""] if arguments else [])]
    lines += [f"* {key(command, p)[0]}: {cell(p.help)}{default(p)}" for p in own]
    other = [shown_shared(p) for p in also if default(p) != shared[key(command, p)]]
    return lines + ([f"* Other defaults: {', '.join(other)}"] if other else [])


def shown_shared(option: Any) -> str:
    """An option that is explained above, with the default that it has here."""
    value = default(option).strip().removeprefix("Default: ").rstrip(".")
    return f"`{min(option.opts, key=len)}` ({value or 'none'})"


def shown_argument(parameter: Any) -> str:
    name = parameter.name.upper()
    return f"{name}..." if parameter.nargs == -1 else name


def names(command: Any, option: Any) -> str:
    words = sorted([*option.opts, *option.secondary_opts], key=len)
    value = "" if option.is_flag else f" {option.metavar or kind(command, option)}"
    return "`" + ", ".join(words) + f"{value}`"


def kind(command: Any, option: Any) -> str:
    hint = str(typing.get_type_hints(inspect.unwrap(command.callback))[option.name])
    return next((word for name, word in WORDS.items() if name in hint), "TEXT")


def cell(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


def default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required or isinstance(value, bool):
        return " On by default." if value is True else ""
    if value in (None, [], ()) or callable(value) or "UNSET" in repr(value).upper():
        return ""
    return f" Default: `{value}`." if value != "" else ""
