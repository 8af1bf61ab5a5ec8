"""``runtime/benches``: how benches are found and what they print; ``cli/test_bench.py`` runs them."""

from types import ModuleType, SimpleNamespace

import pytest

from megatile.core.expr import unit
from megatile.hda import machine
from megatile.hda.addresses import DeviceShape
from megatile.language.kernel.to_plan import read_kernel
from megatile.language.kernel.values import Tensor
from megatile.plan import model as pm
from megatile.runtime.benches import bench, benches_of, verdict
from megatile.runtime.benches.probe import Loads, fetch


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


@pytest.mark.parametrize(
    ("loads", "owners"),
    [
        (Loads(2, factor=1, offset=3), [3, 4]),
        (Loads(2, step=8, offset=7), [7, 7]),
        (Loads(9, factor=1), [*range(9)]),
    ],
)
def test_loads_of_the_probe_go_to_the_units_that_they_name(loads, owners):
    shape = DeviceShape.of(machine("ahbm"))
    plan = read_kernel(
        fetch, [Tensor("t", (128,), memory=shape.hbm), loads, 128], topology="none", scale=shape.pe_scale,
        grid=(shape.pes, shape.cubes, shape.devices), scratch=shape.l1,
    )  # fmt: skip
    (copy,) = (s for body in plan.bodies for s in body if isinstance(s, pm.Compute))
    at = unit if copy.reads[0].at is None else copy.reads[0].at
    assert [int(at.evaluate({"unit": n * loads.step})) for n in range(loads.issuers)] == owners
