"""Models beside measured rows: a sample keeps its bars, and all training steps do."""

from __future__ import annotations


def test_a_sample_of_serving_rows_keeps_its_bars():
    import fidelity_models as fidelity

    rows = fidelity.measured()
    assert len(rows) == 269
    sample = tuple(r for r in rows[::3] if r.concurrency <= 16 and r.osl <= 1024)
    found = fidelity.answers(sample)
    assert len(found) == len(sample) > 20
    dense = fidelity.Errors.of([a.tpot_error for a in found if a.row.dense])
    experts = fidelity.Errors.of([a.tpot_error for a in found if not a.row.dense])
    assert dense.median <= 0.07
    assert experts.median <= 0.15


def test_training_steps_keep_their_bar():
    import fidelity_models as fidelity

    lines = {line.name: line.errors for line in fidelity.training_lines()}
    assert lines["all training steps"].rows == 58
    assert lines["all training steps"].median <= 0.12
    assert lines["Megatron-LM, A100"].median <= 0.06


def test_constants_that_are_left_out_are_chosen_without_the_row():
    import fidelity_models as fidelity

    row = fidelity.measured()[101]
    slow = fidelity.Answer(row, 100.0, row.tpot_ms - 1.2, 0.1)
    host, request = fidelity.chosen([slow])
    assert abs(fidelity._with(slow, host, request) / row.tpot_ms - 1) < 0.02
    (found,) = fidelity.left_out([slow], lambda a: a.row.model)
    assert found[1] == slow.tpot_error  # nothing is left to choose from
