"""Arguments that verdicts try."""

from megatile.verdict.arguments import _moves


def test_no_remedy_gives_an_argument_the_value_that_it_has():
    given = {"M": 96, "N": 96, "K": 96, "bM": 32, "bN": 64, "bK": 48}
    for values in ({"bM": 64, "bN": 64, "bK": 64}, {"bM": 32, "bN": 32, "bK": 16}):
        moves = list(_moves(values, given))
        assert moves
        assert all(change[name] != given[name] for change in moves for name in change)
