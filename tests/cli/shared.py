"""What several files of tests/cli share."""

from __future__ import annotations

from typer.testing import CliRunner

from megatile.cli.main import app


def run(*arguments):
    result = CliRunner().invoke(app, ["attention", "predict", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout
