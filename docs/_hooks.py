"""Show ``>>>`` examples as Python sessions on the site, and linked CSV files as folded tables."""

import csv
import re
from pathlib import Path

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

TABLE = re.compile(r"^\[([^\]]+)\]\(([\w./-]+\.csv)\)$", re.MULTILINE)
"""A paragraph that is only a link to a CSV file."""
PROMPT = re.compile(r"^\s*(>>>|\.\.\.)( |$)")


class FenceSessions(Preprocessor):
    """Put a fence around every run of lines that starts with a prompt and ends with a blank line."""

    def run(self, lines: list[str]) -> list[str]:
        out, fenced, session = [], False, False
        for line in lines:
            fenced ^= line.lstrip().startswith("```") and not session
            if not session and not fenced and line.lstrip().startswith(">>> "):
                out += ["", "```pycon"]
                session = True
            elif session and not line.strip():
                out.append("```")
                session = False
            out.append(line.strip() if session and PROMPT.match(line) else line)
        return [*out, "```"] if session else out


class Sessions(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(FenceSessions(md), "sessions", 40)  # before fenced code


def on_config(config: MkDocsConfig) -> None:
    config.markdown_extensions.append(Sessions())


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    def folded(link: re.Match[str]) -> str:
        path = Path(page.file.abs_src_path or "").parent / link[2]
        with path.open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        right = [
            all(re.match(r"[-+]?[\d.]+[%xKM/s]*$", row[i]) for row in rows if row[i])
            for i in range(len(head))
        ]
        lines = [head, ["---:" if r else "---" for r in right], *rows]
        table = "\n".join("    | " + " | ".join(line) + " |" for line in lines)
        return f'??? abstract "{link[1]} ({len(rows)} rows)"\n\n    [Download CSV]({link[2]})\n\n{table}\n'

    return TABLE.sub(folded, markdown)
