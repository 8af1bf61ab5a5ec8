"""Tests of verdicts: a remedy that is written wrongly fails them."""

import pytest


@pytest.fixture(autouse=True)
def _errors_of_remedies_are_raised(monkeypatch):
    monkeypatch.setattr("megatile.verdict.study.raise_errors", True)
