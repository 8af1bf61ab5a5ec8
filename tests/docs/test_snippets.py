"""Every snippet of README.md and docs/ runs.

```python blocks of one file share a namespace and run in order, in a temporary folder.
```console blocks run their ``$ megatile ...`` lines through the command line's `main`; other ``$`` lines are
only shown. An HTML comment on the line before a block changes what is expected of it:

    <!-- no-test -->             the block is not run
    <!-- raises: SomeError -->   the python block must raise it
    <!-- exit: 2 -->             every command of the console block must leave with this code
    <!-- output -->              the text block shows what the block before it prints
                                 (``pytest tests/docs/test_snippets.py --update-golden`` writes it anew)
"""

import contextlib
import importlib
import importlib.util
import io
import re
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^(?P<indent>[ \t]*)```(?P<language>\w*)[ \t]*$")
MARK = re.compile(
    r"^[ \t]*<!--[ \t]*(?P<word>no-test|raises|exit|output)(?::[ \t]*(?P<value>[\w.]+))?[ \t]*-->[ \t]*$"
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the number of its first line in the page, its lines, its mark."""

    language: str
    line: int
    lines: tuple[str, ...]
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The text, moved down to its place in the page, so that line numbers are those of the page."""
        return "\n" * (self.line - 1) + "\n".join(self.lines) + "\n"


@pytest.fixture(autouse=True)
def what_pages_register_ends_with_them() -> Iterator[None]:
    from megatile.cost.implementations import CANDIDATES

    before = {kind: dict(known) for kind, known in CANDIDATES.items()}
    yield
    CANDIDATES.update(before)


def blocks_of(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order. A block that does not end is an error."""
    lines = text.splitlines()
    position = 0
    while position < len(lines):
        fence = FENCE.match(lines[position])
        if fence is None:
            position += 1
            continue
        closing = fence["indent"] + "```"
        end = position + 1
        while end < len(lines) and lines[end].rstrip() != closing:
            end += 1
        assert end < len(lines), f"line {position + 1}: this block does not end"
        body = tuple(line.removeprefix(fence["indent"]) for line in lines[position + 1 : end])
        yield Block(fence["language"], position + 2, body, marks_before(lines, position))
        position = end + 1


def marks_before(lines: list[str], position: int) -> dict[str, str]:
    """The mark in the line before the fence at `position`, blank lines aside."""
    before = position - 1
    while before >= 0 and not lines[before].strip():
        before -= 1
    mark = MARK.match(lines[before]) if before >= 0 else None
    return {mark["word"]: mark["value"] or ""} if mark else {}


def commands_of(block: Block) -> list[list[str]]:
    """The arguments of each ``$ megatile ...`` line; a backslash at the end continues a line."""
    joined = re.sub(r"\\\n\s*>?\s*", " ", "\n".join(block.lines))
    prompts = [line[2:] for line in joined.splitlines() if line.startswith("$ megatile")]
    return [shlex.split(line, comments=True)[1:] for line in prompts]


class Page:
    """Runs the blocks of one page. The module is a real script on disk: kernels are read from there."""

    def __init__(self, text: str, script: Path, monkeypatch: pytest.MonkeyPatch):
        self.blocks = [b for b in blocks_of(text) if "no-test" not in b.marks]
        self.script = script
        self.monkeypatch = monkeypatch
        self.module = types.ModuleType("__main__")
        self.module.__file__ = str(script)
        self.lines = text.splitlines()

    def run(self) -> str:
        """Run all blocks; return the page with what they print in its blocks of output."""
        python = [block for block in self.blocks if block.language == "python"]
        self.script.write_text(script_of(python), encoding="utf-8")
        self.monkeypatch.chdir(self.script.parent)
        self.monkeypatch.setitem(sys.modules, "__main__", self.module)
        printed, moved = "", 0
        for block in self.blocks:
            if block.language in ("python", "console"):
                run = self.run_python if block.language == "python" else self.run_console
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    run(block)
                printed = out.getvalue()
            elif "output" in block.marks:
                shown = [line.rstrip() for line in printed.rstrip().splitlines()]
                first = block.line - 1 + moved
                self.lines[first : first + len(block.lines)] = shown
                moved += len(shown) - len(block.lines)
        return "\n".join(self.lines) + "\n"

    def run_python(self, block: Block) -> None:
        expected = block.marks.get("raises")
        code = compile(block.source, str(self.script), "exec")
        try:
            exec(code, self.module.__dict__)
        except Exception as error:
            if type(error).__name__ != expected:
                raise
        else:
            assert expected is None, f"line {block.line}: {expected} was not raised"

    def run_console(self, block: Block) -> None:
        expected = int(block.marks.get("exit", 0))
        for arguments in commands_of(block):
            code = run_command(arguments, self.monkeypatch)
            shown = shlex.join(["megatile", *arguments])
            assert code == expected, f"line {block.line}: `{shown}` left with {code}, not {expected}"


def script_of(blocks: list[Block]) -> str:
    """All blocks in one script, each on the lines where it stands in the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.lines
    return "\n".join(lines) + "\n"


def run_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command line with these arguments, run in this process."""
    monkeypatch.setattr(sys, "argv", ["megatile", *arguments])
    main = importlib.import_module("megatile.cli.main").main
    try:
        code = main()
    except SystemExit as leaving:
        code = leaving.code
    return code if isinstance(code, int) else int(code is not None)


def run_page(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Run a page; returns the namespace its python blocks leave."""
    page = Page(text, folder / "page.py", monkeypatch)
    page.run()
    return page.module.__dict__


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("COLUMNS", "110")
    script = tmp_path / f"{page.stem.replace('-', '_')}.py"
    try:
        golden(page, Page(page.read_text(encoding="utf-8"), script, monkeypatch).run())
    except Exception as error:
        if lacks_torch(error):
            pytest.skip("needs torch, which is not installed")
        raise


def lacks_torch(error: BaseException | None) -> bool:
    """Whether `error`, or the error it comes from, is that torch is not installed."""
    if importlib.util.find_spec("torch") is not None:
        return False
    while error is not None and getattr(error, "name", None) != "torch":
        error = error.__cause__ or error.__context__
    return error is not None


# -- the reader of pages itself ---------------------------------------------------------------------


def test_blocks_share_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = run_page("```python\na = 1\n```\ntext\n```python\nb = a + 1\n```\n", tmp_path, monkeypatch)
    assert left["b"] == 2


def test_blocks_in_lists_lose_their_indentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = run_page("* so:\n\n  ```python\n  if True:\n      a = 1\n  ```\n", tmp_path, monkeypatch)
    assert left["a"] == 1


def test_a_snippet_runs_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page("```python\nopen('made', 'w').close()\n```\n", tmp_path, monkeypatch)
    assert (tmp_path / "made").exists()


def test_an_error_has_the_line_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("# title\n\n```python\na = 1\n1 / 0\n```\n", tmp_path, monkeypatch)
    assert caught.traceback[-1].lineno + 1 == 5


def test_source_of_functions_and_classes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "```python\ndef f():\n    return 1\n```\n"
        "```python\nimport inspect\n\nclass A:\n    x = 2\n\n"
        "shown = inspect.getsource(f) + inspect.getsource(A)\n```\n"
    )
    assert run_page(text, tmp_path, monkeypatch)["shown"] == "def f():\n    return 1\nclass A:\n    x = 2\n"


@pytest.mark.parametrize("time", ["first", "second"])
def test_what_a_page_registers_is_gone_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time: str
) -> None:
    """The second time its name would be taken."""
    text = (
        "```python\nfrom megatile.collectives.algorithms import algorithms\n"
        "from megatile.collectives.registry import algorithm\n\n"
        "@algorithm('left_behind', 'send_recv')\ndef left_behind(w):\n    pass\n\n"
        "known = list(algorithms())\n```\n"
    )
    known = run_page(text, tmp_path, monkeypatch)["known"]
    assert {"left_behind", "ring"} <= set(known)  # type: ignore[call-overload]


def test_output_is_what_the_block_before_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "```python\nprint('a\\nb')\n```\n\n<!-- output -->\n```text\n{}\n```\nend\n"
    assert Page(page.format("old"), tmp_path / "p.py", monkeypatch).run() == page.format("a\nb")


def test_no_test_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page("<!-- no-test -->\n```python\n1 / 0\n```\n", tmp_path, monkeypatch)


def test_other_languages_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page("```yaml\na: 1\n```\n```\n1 / 0\n```\n", tmp_path, monkeypatch)


def test_raises_accepts_that_error_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = "<!-- raises: ZeroDivisionError -->\n```python\n{}\n```\n"
    run_page(mark.format("1 / 0"), tmp_path, monkeypatch)
    with pytest.raises(KeyError):
        run_page(mark.format("{}[1]"), tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match="was not raised"):
        run_page(mark.format("1"), tmp_path, monkeypatch)


def test_an_unfinished_block_is_refused() -> None:
    with pytest.raises(AssertionError, match="line 2: this block does not end"):
        list(blocks_of("text\n```python\na = 1\n"))


def test_commands_are_read_from_console_blocks() -> None:
    text = (
        "```console\n$ megatile machine show 'a b' \\\n    --json\nsome output\n"
        "$ make demo\n$ megatile machines # all\n```"
    )
    (block,) = blocks_of(text)
    assert commands_of(block) == [["machine", "show", "a b", "--json"], ["machines"]]


@pytest.mark.parametrize(
    ("result", "mark", "passes"),
    [
        (0, "", True),
        (None, "", True),
        (2, "", False),
        (2, "<!-- exit: 2 -->", True),
        (SystemExit(1), "", False),
    ],
)
def test_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: object, mark: str, passes: bool
) -> None:
    def main() -> object:
        seen.append(sys.argv)
        if isinstance(result, SystemExit):
            raise result
        return result

    seen: list[list[str]] = []
    command_line = types.ModuleType("megatile.cli.main")
    command_line.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatile.cli", types.ModuleType("megatile.cli"))
    monkeypatch.setitem(sys.modules, "megatile.cli.main", command_line)
    text = f"{mark}\n```console\n$ megatile machines\n```\n"
    if passes:
        run_page(text, tmp_path, monkeypatch)
    else:
        with pytest.raises(AssertionError, match="`megatile machines` left with"):
            run_page(text, tmp_path, monkeypatch)
    assert seen == [["megatile", "machines"]]
