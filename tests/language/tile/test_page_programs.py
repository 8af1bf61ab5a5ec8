"""A sample of the random programs that are written from the reference page alone."""

import pytest
from tests.language.tile.page_programs import Writer, differences


@pytest.mark.parametrize("seed", [0, 5, 11, 17])
def test_plan_c_and_cuda_give_what_the_interpreter_gives(seed, tmp_path):
    assert differences(seed, tmp_path) == []


def test_a_seed_gives_one_program():
    assert Writer(7).text() == Writer(7).text() != Writer(8).text()
