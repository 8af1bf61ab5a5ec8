"""Kernels of the accelerator machine: configuration and wiring. Results: ``test_kernbench_matrix.py``."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from megatile.collectives.job import CollectiveError
from megatile.collectives.kernels import hello_send
from megatile.compat.ccl.config import load_ccl_config, resolve_algorithm_config
from megatile.compat.ccl.install import (
    NeighborTableEntry,
    PeInstallSpec,
    build_install_plans,
    check_disjoint,
    configure_sfr_intercube_multisip,
)
from megatile.compat.ccl.kernel_plans import kernel_plan, plan_of_module
from megatile.compat.ccl.spec import spec_of
from megatile.compat.ccl.topologies import (
    Floor,
    floor_of,
    resolve_mapper,
    resolve_topology,
    resolve_validator,
)
from megatile.core.errors import MegatileError
from megatile.hda import machine, machine_names
from megatile.plan.execute import execute
from megatile.sim import simulate

CONFIG = load_ccl_config()


def test_hello_send_shifts():
    plan = plan_of_module(hello_send, 4, n_elem=2)
    values = np.arange(8, dtype="f2").reshape(4, 2)
    assert np.array_equal(execute(plan, {"t": values})["t"], np.roll(values, 1, axis=0))


def test_defaults_give_way_to_the_entry():
    chosen = resolve_algorithm_config(CONFIG)
    assert (chosen["algorithm"], chosen["buffer_kind"]) == ("intercube_allreduce", "tcm")
    assert resolve_algorithm_config(CONFIG, "ring_allreduce_hbm")["buffer_kind"] == "hbm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: {}", "declares no algorithms"),
        ("algorithms: {a: {modul: x}}", "unknown key 'modul'.*'module'"),
        ("algorithms: [", r"ccl\.yaml:2: not valid YAML"),
        ("algorithms: {1: {2: x}}", "unknown key '2'"),
        ("algorithms: {[a]: {module: x}}", "a key must be a plain name"),
        ("algorithms: {a: {n_slots: !!python/name:os.system x}}", "is not a plain value"),
        ("algorithms: " + "[" * 5000, "nested too deeply"),
    ],
)
def test_bad_configurations(tmp_path, text, message):
    file = tmp_path / "ccl.yaml"
    file.write_text(text)
    with pytest.raises(CollectiveError, match=message):
        load_ccl_config(file)


def test_keys_that_are_not_names():
    for wrong in ({"algorithms": {1: {}}}, {None: 1, "algorithms": {}}):
        with pytest.raises(CollectiveError, match="is not a name"):
            resolve_algorithm_config(wrong)


ENTRY = "algorithms: {a: {module: megatile.collectives.kernels.ring_allreduce, topology: ring_1d%s}}"


@pytest.mark.parametrize(
    ("extra", "options", "message"),
    [
        (", buffer_kind: l3", {}, "no memory 'l3'"),
        (", n_slots: 0", {}, "a.n_slots: n_slots cannot be 0"),
        (", slot_size: many", {}, "slot_size cannot be 'many'"),
        (", slot_size: 1", {}, "not even one element"),
        (", validator: any", {}, "multi_pe_sip_local"),
        (", module: os.path", {}, "has no function 'kernel'"),
        (", module: no.where", {}, "module 'no.where' cannot be imported"),
        (", root_cube: 99", {}, "root_cube 99 does not exist"),
        ("", {"world_size": 0}, "world_size 0 does not fit"),
        ("", {"n_elem": 0}, "n_elem cannot be 0"),
    ],
)
def test_entries_that_cannot_be_installed(tmp_path, extra, options, message):
    file = tmp_path / "ccl.yaml"
    if "module" in extra:
        file.write_text(f"algorithms: {{a: {{topology: ring_1d{extra}}}}}")
    else:
        file.write_text(ENTRY % extra)
    with pytest.raises(MegatileError, match=message):
        kernel_plan(resolve_algorithm_config(load_ccl_config(file)), machine("ahbm"), trust=True, **options)


def test_an_entry_needs_only_a_module_and_a_topology(tmp_path):
    file = tmp_path / "ccl.yaml"
    file.write_text(ENTRY % "")
    config = resolve_algorithm_config(load_ccl_config(file), "a")
    assert kernel_plan(config, machine("ahbm")).units == 2
    assert build_install_plans(2, "a", config, "ahbm") == build_install_plans(2, "a", config, machine("ahbm"))


def test_modules_without_a_kernel_are_refused():
    with pytest.raises(CollectiveError, match="has no function 'kernel_args'"):
        plan_of_module(SimpleNamespace(kernel=print), 4)


def test_unknown_names_list_what_exists():
    with pytest.raises(CollectiveError, match=r"there are .*ring_allreduce_tcm"):
        resolve_algorithm_config(CONFIG, "rng")
    with pytest.raises(CollectiveError, match="there are all_pes, cube_leaders, leader_only"):
        resolve_mapper("everyone")
    with pytest.raises(CollectiveError, match="multi_pe_sip_local, shard_per_cube, single_shard_per_rank"):
        resolve_validator("any")
    with pytest.raises(CollectiveError, match="did you mean 'ring_1d'"):
        resolve_topology("ring1d")
    with pytest.raises(CollectiveError, match="cannot be imported"):
        resolve_mapper("no.such.module", trust=True)


@pytest.mark.parametrize("key", ["module", "mapper", "validator", "topology"])
def test_code_that_a_file_names_is_not_run_without_the_users_word(tmp_path, monkeypatch, key):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"stranger_{key}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nf = print\n")
    named = f"stranger_{key}" if key == "module" else f"stranger_{key}.f"
    (tmp_path / "ccl.yaml").write_text(
        "algorithms: {a: {module: megatile.collectives.kernels.ring_allreduce, topology: ring_1d}}"
    )
    config = resolve_algorithm_config(load_ccl_config(tmp_path / "ccl.yaml")) | {key: named}
    with pytest.raises(CollectiveError, match=r"(would run its code|is an import path).*trust=True"):
        kernel_plan(config, machine("ahbm"))
    assert not (tmp_path / "ran").exists()
    with contextlib.suppress(Exception):
        kernel_plan(config, machine("ahbm"), trust=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [".", "", "..a", "os.system\0"])
def test_names_that_no_module_has(name):
    config = resolve_algorithm_config(CONFIG, "hello_send") | {"module": name}
    for trust in (False, True):
        with pytest.raises(CollectiveError, match=r"would run its code|cannot be imported"):
            kernel_plan(config, machine("ahbm"), trust=trust)


def test_import_paths():
    assert resolve_mapper("megatile.compat.ccl.topologies.all_pes", trust=True) is resolve_mapper("all_pes")
    assert resolve_validator("megatile.compat.ccl.topologies:multi_pe_sip_local", trust=True)


def test_install_plans_are_printable_and_point_back():
    hda = machine("ahbm")
    first, second = configure_sfr_intercube_multisip(
        None, hda, resolve_algorithm_config(CONFIG, "intercube_allreduce")
    ).plans
    assert first.participating_pes == tuple((cube, 0) for cube in range(16))
    corner = first.pe_installs[0]
    assert {n.direction: (n.peer_sip, n.peer_cube, n.peer_direction) for n in corner.neighbors} == {
        "E": (0, 1, "W"),
        "S": (0, 4, "N"),
        "global_E": (1, 0, "global_W"),
        "global_W": (1, 0, "global_E"),
    }
    assert "cube 0 pe 0: E -> 0/1/0 (W)" in str(first)
    assert second.rank == 1


def test_overlapping_receive_ranges_are_refused():
    hda = machine("ahbm")
    (plan,) = build_install_plans(1, "r", resolve_algorithm_config(CONFIG, "intercube_allreduce"), hda)
    entry = NeighborTableEntry("E", "W", 0, 1, 0, 0, 64)
    clash = PeInstallSpec(0, 0, (entry, NeighborTableEntry("W", "E", 0, 1, 0, 32, 64)))
    with pytest.raises(CollectiveError, match="ranges of E and W overlap"):
        check_disjoint([type(plan)(**{**vars(plan), "pe_installs": (clash,)})])


def test_validators_look_at_shards():
    assert floor_of(machine("ahbm")) == Floor((2, 1), (4, 4), 8)
    spec = spec_of(machine("ahbm"))
    one_each = SimpleNamespace(shards=[SimpleNamespace(sip=s) for s in (0, 1)])
    resolve_validator("single_shard_per_rank")(one_each, 2, spec)
    with pytest.raises(CollectiveError, match="SIP 0: 1, SIP 1: 1"):
        resolve_validator("multi_pe_sip_local")(one_each, 2, spec)
    every_pe = SimpleNamespace(shards=[SimpleNamespace(sip=s) for s in (0, 1) for _ in range(128)])
    resolve_validator("multi_pe_sip_local")(every_pe, 2, spec)


def test_machines_without_cubes_are_refused():
    with pytest.raises(CollectiveError, match="has no sip, cube and pe"):
        floor_of(machine("dgx-h100"))


def along_a_line(t_ptr, n_elem, world_size, tl):
    here = t_ptr + tl.rank * n_elem * 2
    total = tl.load(here, shape=(n_elem,), dtype="f16")
    if tl.rank < world_size - 1:
        total = total + tl.recv(dir="E", shape=(n_elem,), dtype="f16")
    if tl.rank > 0:
        tl.send(dir="W", src=total)
        total = tl.recv(dir="W", shape=(n_elem,), dtype="f16")
    if tl.rank < world_size - 1:
        tl.send(dir="E", src=total)
    tl.store(here, total)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_kernel_on_its_own_needs_no_neighbours(n):
    """Alone, no branch that sends is taken, and there is no direction to send in."""

    def neighbors(rank, world_size):
        return {k: p for k, p in {"W": rank - 1, "E": rank + 1}.items() if 0 <= p < world_size}

    module = SimpleNamespace(
        __name__="along_a_line",
        kernel=along_a_line,
        kernel_args=lambda *, n_elem, world_size, **_: (n_elem, world_size),
        neighbors=neighbors,
    )
    x = np.arange(n * 4, dtype="f2").reshape(n, 4)
    assert (execute(plan_of_module(module, n, n_elem=4), {"t": x})["t"] == x.sum(axis=0)).all()


@pytest.mark.parametrize("name", machine_names())
def test_a_kernel_of_your_own_runs_on_every_machine(name: str) -> None:
    hda = machine(name)
    plan = plan_of_module(hello_send, 1, n_elem=2, machine=hda)
    ranks = min(4, hda.count(plan.scale))
    plan = plan_of_module(hello_send, ranks, n_elem=2, machine=hda)
    assert simulate(plan, machine=hda).time_ps > 0
