"""What the fidelity page of attention varies exists in the model."""


def test_every_assumption_can_be_made():
    import fidelity_attention_parts as parts

    for _, change, batch in parts.ASSUMPTIONS:
        with parts.assumed(**change):
            found = parts.predict(
                "mi300x-8", parts.Problem(10_000, batch=batch), schedules=["ring"]
            ).predictions
        assert found[0].time_ps > 0
