"""The findings of all rules in order, and the verdict that they are."""

from __future__ import annotations

from contextlib import nullcontext

from megatile.sim import Result
from megatile.verdict import communication, largest
from megatile.verdict.model import Finding, Verdict
from megatile.verdict.study import RULES, SEARCHES, OutOfBudget, Rule, Study

WEIGHTS = {
    "block order": 1.5, "repeated loads": 1.5, "round trip": 1.5, "bank conflicts": 1.5,
    "uncoalesced access": 2.0,
    "contended atomics": 2.0, "wrong engine": 1.5, "wide operands": 1.5, "barriers": 2.0,
    "split reduction": 1.5, "block balance": 1.5, "tile size": 0.8, "argument": 0.8, "launch": 0.25,
    "exposed latency": 0.5, "short steps": 0.5, "serial loop": 1.5, "unused bytes": 1.5, "whole result": 1.5,
    "unread parts": 1.5, "masked work": 1.5, "repeated work": 1.5, "duplicate work": 1.5, "far tile": 1.5,
    "small copies": 1.5, "collective by hand": 1.5, "wider than read": 1.5, "unit balance": 2.0,
    "units take turns": 2.0, "devices take turns": 2.0, "hot unit": 1.5, "dependent loads": 2.5,
    "chain of blocks": 2.0, "incast": 1.5, "nested sums": 1.5,
    "padding": 1.5, "repeated stores": 1.5, "collective in a loop": 1.5, "few blocks in a phase": 2.0,
    "wide tensors": 0.4, "repeated atomics": 1.5, "transposed by hand": 1.5, "late messages": 1.5,
    "wide arithmetic": 1.5,
}  # fmt: skip
"""How much a saved second counts where findings are ranked: a defect of a line more than what a search over
arguments finds, and than a launch that is short."""
LESS_EXACT = frozenset({"wide tensors", "wide operands", "wide messages"})
"""Remedies that change results: they come after those that do not (but for general advice),"""
MUCH_FASTER = 2.0
"""unless they gain so many times more,"""
SAVES_MORE = 4.0
"""or save so many times the time, without another type for tensors in memory."""
GENERAL = frozenset({
    "exposed communication", "exposed latency", "occupancy", "vector work", "launch", "short steps",
    "small messages",
})  # fmt: skip
"""Advice that any program could get, where no changed program was timed:"""
GENERAL_WEIGHT = 0.4
"""how much its gain counts against advice for a line."""
FIRST = (
    "unit balance", "late messages", "short loads", "few blocks in a phase", "steps through memory",
    "intermediate tensor", "serial loop of phases", "devices take turns", "chain of blocks",
)  # fmt: skip
"""Rules whose remedy is one changed Plan for the statement in question: they are tried before all others,"""
LAST = ("communication", "collective by hand", "tile size")
"""and these, which time many programs, after the others of their kind; of the searches the first one."""
HALF = 0.5
"""The share of the time that something must work, for a program to be called balanced."""
IDEALISED = 0.65
"""How much a gain counts that no program was seen to have."""
SEARCHED = frozenset({"tile size", "argument"})
"""What a search over arguments finds: it says that other values are faster, not why,"""
AS_GOOD = 0.9
"""and comes after a cause in a line whose gain is at least this part of its own (all of it, for a bound)."""


def _turn(item: tuple[Rule, str], talks: bool) -> tuple[bool, bool, bool]:
    """Return when a rule is tried: cheap ones first, as time is bounded, and that about messages where these
    add much to the time."""
    one, name = item
    search = one in SEARCHES
    first = name in FIRST or (talks and name == "communication")
    return search, not first, (name in LAST) != search


def _score(finding: Finding) -> float:
    """Return the share of the time that a finding saves, weighed by how far its remedy can be trusted."""
    general = finding.name in GENERAL and (finding.bound or finding.name == "launch")
    return (
        finding.saved * WEIGHTS.get(finding.name, 1.0) * (IDEALISED if finding.bound else 1.0)
        * (GENERAL_WEIGHT if general else 1.0)
    )  # fmt: skip


def _explains(cause: Finding, searched: Finding) -> bool:
    """Return whether a finding names a cause, with as much to gain as other arguments bring."""
    if not cause.source or cause.name in GENERAL | SEARCHED | LESS_EXACT:
        return False
    return cause.gain >= searched.gain * (1.0 if cause.bound else AS_GOOD)


def ranked(found: list[Finding]) -> list[Finding]:
    """Return findings, the one to look at first before the others."""

    def order(one: Finding) -> tuple[float, bool, str]:
        searched, score = one.name in SEARCHED, _score(one)
        causes = [_score(f) for f in found if _explains(f, one)] if searched else []
        return -min(score, max(causes, default=score)), searched, one.name

    exact = [f for f in found if f.name not in LESS_EXACT and not f.bound]
    best = max((f.gain for f in exact), default=0.0)
    certain = max((f.gain for f in exact if f.name not in GENERAL), default=0.0)
    saved = max((f.saved for f in exact if f.name not in GENERAL), default=0.0)

    def comes_last(one: Finding) -> bool:
        if one.name == "wide tensors":
            return one.gain < MUCH_FASTER * best
        return one.name in LESS_EXACT and one.gain < MUCH_FASTER * certain and one.saved < SAVES_MORE * saved

    return sorted(sorted(found, key=order), key=comes_last)


def verdict(result: Result) -> Verdict:
    """Return what limits a simulated program, why, what to do next and what that would bring."""
    study, found, untried = Study(result), list[Finding](), list[str]()
    if result.time_ps:
        talks = communication.exposed(study)
        for one, name in sorted(RULES.items(), key=lambda item: _turn(item, talks)):
            try:
                with study.half_of_budget() if one in SEARCHES or name in LAST else nullcontext():
                    found += one(study)
            except OutOfBudget:
                untried.append(name)
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
