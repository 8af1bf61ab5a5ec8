"""What collectives do between nodes: who is addressed when, what goes far, what a network card loses."""

import megatile as mt


def test_a_summary_says_that_messages_were_scaled() -> None:
    plan, why = mt.collective("broadcast", machine="dgx-h100", nbytes=1 << 20, explain=True)
    pace = f"{plan.transports[0].pace:.3g}"
    assert f"message times are multiplied by {pace} to" in str(why)
    assert f"message times are multiplied by {pace} to" in mt.simulate(plan, machine="dgx-h100").summary()
