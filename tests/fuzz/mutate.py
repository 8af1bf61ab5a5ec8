"""Seeded changes of texts, bytes, JSON values and argument lists."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

NUMBERS = ("0", "-1", "1", "2", "3", "7", "64", "255", "65536", "1000000", "2147483648", "9223372036854775807",
           "18446744073709551616", "1" + "0" * 40, "1e308", "1e999", "-0", "0.5", "nan", "inf", "-inf", "Infinity",
           "NaN", "0x10", "1_000", "07", "1e-9", "true", "null", "~", "''", "[]", "{}")  # fmt: skip
WORDS = ("", "a", "x" * 300, "é", "\u2028", "\0", "${1}", "${nodes * 9999999}", "*a", "&a", "!!python/name:os.system x",
         "---", "<<: *a", "..", "../a", "None", "[[[[", "{{", "%d", "{}", "\t", "- - -", "\ufeff", "#", "'", '"', "\\",
         "true", "GB/s", "1 GB/s", "1 ns", "5 %", "1 QB/s", "-3 ns")  # fmt: skip
VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 2, 3, 10**6, 2**31, 2**63, 10**40, 0.5, 1e308, "", "a", "x" * 300,
                           [], {}, [[]], {"a": 1}, [None], "\0", float("nan"), float("inf"), [1, 2], ["a", "a"])  # fmt: skip
_TOKEN = re.compile(r"[A-Za-z_][\w.]*|\d+(?:\.\d+)?|[^\w\s]")


def text(rng: random.Random, seed: str, others: list[str]) -> str:
    """One to four changes of a text."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        seed = rng.choice(_TEXT)(rng, seed, others)
    return seed


def _number(rng: random.Random, seed: str, _: list[str]) -> str:
    found = list(re.finditer(r"-?\d+(?:\.\d+)?", seed))
    if not found:
        return seed
    at = rng.choice(found)
    return seed[: at.start()] + rng.choice(NUMBERS) + seed[at.end() :]


def _token(rng: random.Random, seed: str, others: list[str]) -> str:
    """A token becomes another one of the same or of another text."""
    found = list(_TOKEN.finditer(seed))
    if not found:
        return seed
    at = rng.choice(found)
    source = _TOKEN.findall(rng.choice(others)) if rng.random() < 0.3 else [m.group() for m in found]
    new = rng.choice(source or [""]) if rng.random() < 0.8 else rng.choice(WORDS)
    return seed[: at.start()] + new + seed[at.end() :]


def _lines(rng: random.Random, seed: str, others: list[str]) -> str:
    lines = seed.split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        del lines[a]
    elif kind == 1:
        lines.insert(a, lines[b])
    elif kind == 2:
        lines[a], lines[b] = lines[b], lines[a]
    elif kind == 3:
        lines[a] = " " * rng.randrange(6) + lines[a].lstrip()
    elif kind == 4:
        other = rng.choice(others).split("\n")
        start = rng.randrange(len(other))
        lines[a:a] = other[start : start + rng.randrange(1, 5)]
    else:
        lines[a] = lines[a] * rng.choice((2, 3, 50))
    return "\n".join(lines)


def _cut(rng: random.Random, seed: str, _: list[str]) -> str:
    a, b = sorted((rng.randrange(len(seed) + 1), rng.randrange(len(seed) + 1)))
    kind = rng.randrange(3)
    if kind == 0:
        return seed[:a]
    return seed[:a] + seed[min(b, a + 30) :] if kind == 1 else seed[:b] + seed[a:b][:200] + seed[b:]


def _insert(rng: random.Random, seed: str, _: list[str]) -> str:
    at = rng.randrange(len(seed) + 1)
    return seed[:at] + rng.choice(WORDS) + seed[at:]


_TEXT = (_number, _number, _token, _token, _token, _lines, _lines, _cut, _insert)


def tokens(rng: random.Random, seed: str, others: list[str]) -> str:
    """Changes that leave most of a program a program: numbers, tokens, whole lines."""
    for _ in range(rng.choice((1, 1, 2))):
        seed = rng.choice((_number, _token, _token, _lines))(rng, seed, others)
    return seed


def data(rng: random.Random, seed: bytes) -> bytes:
    """Bytes flipped, cut out, doubled."""
    out = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 1:
            del out[at : at + rng.choice((1, 4, 100))]
        elif kind == 2:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4))))
        else:
            out[at:] = out[at : at + rng.randrange(200)]
    return bytes(out)


def tree(rng: random.Random, seed: Any) -> Any:
    """A JSON value with members replaced, left out, doubled, or moved."""
    value = copy.deepcopy(seed)
    for _ in range(rng.choice((1, 1, 2, 3))):
        inside = [v for v in _walk(value) if isinstance(v, (dict, list)) and v]
        if not inside:
            break
        here = rng.choice(inside)
        key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        kind = rng.randrange(8)
        if kind == 0:
            del here[key]
        elif kind == 1:
            here[key] = copy.deepcopy(rng.choice(list(_walk(value))))
        elif kind == 2 and isinstance(here, list):
            here.insert(key, copy.deepcopy(here[rng.randrange(len(here))]))
        elif kind == 3 and isinstance(here, dict):
            here[rng.choice(("a", "kind", "name", *here))] = here.pop(key)
        elif kind == 4 and isinstance(here[key], int):
            here[key] += rng.choice((-1, 1, 2, 1000, 10**12))
        else:
            here[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def _walk(value: Any) -> Any:
    yield value
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _walk(member)


def json_text(rng: random.Random, seed: str, others: list[str]) -> str:
    """A JSON text changed as a tree, or now and then as a text."""
    if rng.random() < 0.2:
        return text(rng, seed, others)
    return json.dumps(tree(rng, json.loads(seed)))


def arguments(rng: random.Random, seed: list[str], vocabulary: list[str]) -> list[str]:
    """An argument list with members changed, left out, doubled, or strange ones put in."""
    line = list(seed)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(line) + 1)
        kind = rng.randrange(5)
        if kind == 0 and line:
            del line[at % len(line)]
        elif kind == 1 and line:
            line[at % len(line)] = rng.choice(vocabulary)
        elif kind == 2:
            line.insert(at, rng.choice(vocabulary))
        elif kind == 3 and line:
            line[at % len(line)] = rng.choice((*NUMBERS, *WORDS))
        elif line:
            line[at % len(line)] = text(rng, line[at % len(line)] or "a", [" ".join(seed)])
    return [part.replace("/", "_") for part in line]
