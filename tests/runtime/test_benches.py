"""``runtime/benches``: how benches are found and what they print; ``cli/test_bench.py`` runs them."""

from types import ModuleType, SimpleNamespace

from megatile.runtime.benches import bench, benches_of, verdict


def test_benches_register_themselves_or_are_the_run_of_a_module() -> None:
    module = ModuleType("folder.gemm", "One product. More text.")
    module.run = lambda torch: 0
    assert {name: b.description for name, b in benches_of(module).items()} == {"gemm": "One product"}

    @bench(name="other")
    def named(torch):
        """Another one."""

    module.named = named
    assert {name: b.description for name, b in benches_of(module).items()} == {"other": "Another one"}


def test_differences_above_the_limit_fail(capsys) -> None:
    with_data = SimpleNamespace(has_data=True)
    assert verdict("sum", {0: 0.0, 1: 0.5, 2: float("nan")}, 0.1, with_data) == 2
    assert verdict("sum", {0: 0.0}, 0.1, with_data) == 0
    assert verdict("sum", {0: 9.0}, 0.1, SimpleNamespace(has_data=False)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "[FAIL] on ranks [1, 2]" in lines[0]
    assert lines[2] == " sum: times only"
