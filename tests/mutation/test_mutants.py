"""``mutants.py`` and ``warm.py``: which changes there are, and that they reach functions already imported."""

from __future__ import annotations

import ast
import sys
import types

from tests.mutation import warm
from tests.mutation.mutants import mutants_of
from tests.mutation.run import ordered

TEXT = """
def near(a, b=1):
    if not a < b:
        raise ValueError(f"{a + 1} is too large")
    return a + b if a else [a * k for k in range(b)]
"""
OTHER = "def other(x):\n    return x == 3\n\n"


def test_every_change_is_valid_and_has_a_name_of_its_own():
    found = list(mutants_of("plan/text.py", TEXT))
    assert len({m.key for m in found}) == len(found) == 5
    assert {(m.function, m.first_line) for m in found} == {("near", 2)}
    for mutant in found:
        lines = TEXT.splitlines(keepends=True)
        assert lines[mutant.line - 1] == mutant.before != mutant.after
        ast.parse("".join([*lines[: mutant.line - 1], mutant.after, *lines[mutant.line :]]))
    assert not any("raise" in m.before for m in found)  # the text of a message is no behaviour
    assert not list(mutants_of("plan/text.py", "def f(a, b):\n    return zip(a, b, strict=True)\n"))


def test_edits_elsewhere_leave_names_alone():
    before, after = (list(mutants_of("plan/text.py", text)) for text in (TEXT, OTHER + TEXT))
    assert [m.key for m in after if m.function == "near"] == [m.key for m in before]
    assert [m.line for m in after if m.function == "near"] == [m.line + 3 for m in before]


def test_code_of_imported_functions_is_replaced(monkeypatch):
    module = types.ModuleType("megatile.plan.imagined")
    module.__file__ = "/x/megatile/plan/imagined.py"
    exec(compile(TEXT, module.__file__, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    near, imported_elsewhere = module.near, [module.near]
    assert near(0, 2) == [0, 0]
    assert warm.replace_code("plan/imagined.py", TEXT.replace("a * k", "a + k"))
    assert imported_elsewhere[0](0, 2) == [0, 1]
    assert warm.replace_code("plan/nobody_has_imported_it.py", TEXT)


def test_tests_that_call_the_function_come_first():
    mutant = next(iter(mutants_of("plan/symmetry.py", TEXT)))
    names = [
        f"tests/plan/test_{name}" for name in ("symmetry.py::own", "text.py::a", "text.py::b", "text.py::c")
    ]
    known = {names[1]: (0.1, []), names[2]: (9.0, [mutant.code]), names[3]: (1.0, [mutant.code, "x.py:1"])}
    assert ordered(mutant, names, known) == [names[3], names[2], names[0], names[1]]
