"""``verdict/model.py``: what a verdict says, as text and data."""

from megatile.verdict.model import Finding, Verdict

HALF = Finding("pipeline stages", "exposed latency", "1 stage", "k.py:3", "2 stages", 100, 50, "timed again")


def test_a_finding_has_its_gain_and_four_lines() -> None:
    assert (HALF.gain, HALF.saved) == (2.0, 0.5)
    assert HALF.lines() == [
        "exposed latency (k.py:3)",
        "  why: 1 stage",
        "  next: 2 stages",
        "  estimated gain: 2.00×, 100 ps -> 50 ps (timed again)",
    ]
    assert HALF.as_dict()["next_step"] == "2 stages"


def test_a_verdict_lists_the_first_findings_and_names_the_rest() -> None:
    text = str(Verdict("p", "m", 100, (HALF,) * 6, "busiest: hbm, 60% of the time", 1, untried=("launch",)))
    assert text.startswith("verdict: exposed latency")
    assert text.count("also: ") == 3
    assert "with smaller gains: pipeline stages, pipeline stages" in text
    assert "not tried, to save time: launch" in text
