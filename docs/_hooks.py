"""Show ``>>>`` examples of docstrings as Python sessions on the site."""

import re

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig

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
