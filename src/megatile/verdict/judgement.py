"""The findings of all rules in order, and the verdict that they are."""

from __future__ import annotations

from contextlib import nullcontext

from megatile.core.errors import MegatileError
from megatile.sim import Result
from megatile.verdict import communication, largest, study as study_module
from megatile.verdict.model import Finding, Kind, Verdict
from megatile.verdict.study import RULES, OutOfBudget, Rule, Study

IDEALISED = 0.65
"""How much a gain counts that no program was seen to have."""
HALF = 0.5
"""The share of the time that something must work, for a program to be called balanced."""


def _turn(one: Rule, talks: bool) -> tuple[bool, bool]:
    """Return when a rule is tried: cheap ones first, as time is bounded, and that about messages where these
    add much to the time."""
    costly = one.costly and not (talks and one.name == "communication")
    return costly, one.kind is not Kind.CAUSE


def _score(finding: Finding) -> float:
    """Return the share of the time that a finding saves, weighed by how far its remedy can be trusted."""
    return finding.saved * finding.kind.value * (IDEALISED if finding.bound else 1.0)


def ranked(found: list[Finding]) -> list[Finding]:
    """Return findings, the one to look at first before the others."""
    return sorted(found, key=_score, reverse=True)


def verdict(result: Result) -> Verdict:
    """Return what limits a simulated program, why, what to do next and what that would bring."""
    study, found, untried = Study(result), list[Finding](), list[str]()
    if result.time_ps:
        talks = communication.exposed(study)
        for one in sorted(RULES, key=lambda rule: _turn(rule, talks)):
            study.kind = one.kind
            try:
                with study.half_of_budget() if one.costly else nullcontext():
                    found += one.find(study)
            except OutOfBudget:
                untried.append(one.name)
            except (MegatileError, MemoryError):
                raise
            except Exception:
                if study_module.raise_errors:
                    raise
                untried.append(f"{one.name} (failed)")  # a verdict without one rule is better than none
        found += communication.less_to_send(study) if talks and not found else ()
    found = ranked(found)
    if not found and result.time_ps and largest.share_of_bound(study) < largest.GOOD_SHARE:
        found += [one for one in (largest.largest_loss(study),) if one is not None]
    name, share = study.busiest if result.time_ps else ("nothing", 0.0)
    said = f"busiest: {name}, {share:.0%} of the time"
    return Verdict(
        result.plan.name,
        result.machine.name,
        result.time_ps,
        tuple(found),
        said,
        study.retimed,
        tuple(untried),
        share,
        study.waits if result.time_ps and share < HALF else "",
    )
