"""The performance database: measured, interpolated, left out; tables and logs in and out; fits."""

import math
import sqlite3

import numpy as np
import pytest
from tests.timing.shared import grid, put

import megatile as mt
from megatile.hda import HDA, machine
from megatile.timing.database import Database, DatabaseError, Measurement


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "p.sqlite") as opened:
        yield opened


def ask(database, **extents):
    return mt.predict_kernel("gemm", machine="dgx-h100", database=database, **extents)


def test_measured_interpolated_and_by_rule(database):
    database.add(grid(1.5, step=2))
    exact = ask(database, m=128, n=128, k=128)
    assert exact.origin == ("measured", "grid")
    assert exact.error == 0
    between = ask(database, m=200, n=300, k=400)
    assert between.origin.kind == "interpolated"
    rule = ask(None, m=200, n=300, k=400)
    assert between.time_us == pytest.approx(1.5 * rule.time_us)
    assert between.error == pytest.approx(0, abs=1e-9)
    far = ask(database, m=1 << 20, n=1 << 20, k=1 << 20)
    assert far == ask(None, m=1 << 20, n=1 << 20, k=1 << 20)
    assert ask(database, m=128, n=128, k=128, dtype="f16").origin.kind == "rule"


def test_the_error_bar_is_that_of_leaving_one_out(database):
    generator = np.random.default_rng(1)
    database.add(m._replace(time_us=m.time_us * math.exp(0.1 * generator.standard_normal())) for m in grid())
    errors = np.abs(database.leave_one_out("gemm", machine("dgx-h100"), "bf16"))
    assert 0.05 < np.median(errors) < 0.12  # noise of 10 % has a median of 6.7 %
    assert 0.01 < ask(database, m=200, n=300, k=400).error < 0.3


def test_times_of_a_machine_serve_one_with_the_same_devices(database, tmp_path):
    database.add(grid(2.0))
    file = put(tmp_path, "name: mine\nextends: dgx-h100\n", "mine.yaml")
    for hda in ("h100-cluster", HDA.from_yaml(file)):
        assert (
            mt.predict_kernel("gemm", machine=hda, m=64, n=64, k=64, database=database).origin.kind
            == "measured"
        )
    slow = machine("dgx-h100", **{"memory.hbm.bandwidth": "1 TB/s"})
    assert mt.predict_kernel("gemm", machine=slow, m=64, n=64, k=64, database=database).origin.kind == "rule"


def test_times_of_several_devices_hold_for_the_same_links(database, tmp_path):
    shape = {"ranks": 8, "bytes": 1024}
    database.add([Measurement("dgx-h100", "all_reduce", "f16", "", shape, 9.0)])

    def found(hda):
        return mt.predict_kernel("all_reduce", machine=hda, dtype="f16", database=database, **shape)

    assert found("dgx-h100").time_us == 9
    bare = put(
        tmp_path, "{name: b, extends: dgx-h100, engines: [{name: tensor_core, remove: true}]}", "b.yaml"
    )
    for other in (machine("dgx-h100", **{"networks.nvlink.bandwidth": "1 GB/s"}), HDA.from_yaml(bare)):
        assert found(other).origin.kind == "rule"
    database.add([Measurement("b", "all_reduce", "f16", "", shape, 8.0)])
    assert found(HDA.from_yaml(bare)).time_us == 8


def test_a_collective_is_interpolated_between_sizes(database):
    rows = [
        Measurement(
            "dgx-h100", "all_reduce", "f16", "", {"ranks": 8, "bytes": 2**i}, 0.5 * 2 ** (i / 2), "log"
        )
        for i in range(10, 30, 2)
    ]
    database.add(rows)
    asked = {"machine": "dgx-h100", "ranks": 8, "dtype": "f16", "database": database}
    found = mt.predict_kernel("all_reduce", bytes=2**15, **asked)
    assert found.time_us == pytest.approx(0.5 * 2**7.5, rel=0.05)


def test_the_nearest_then_fastest_implementation_counts(database):
    rows = grid()[:3]
    database.add([r._replace(implementation="slow", time_us=2 * r.time_us) for r in rows] + rows)
    shape = rows[0].shape
    assert ask(database, **shape).time_us == rows[0].time_us
    found = mt.predict_kernel("gemm", machine="dgx-h100", implementation="slow", database=database, **shape)
    assert found.time_us == 2 * rows[0].time_us


def test_adding_again_replaces_and_a_wrong_row_adds_nothing(database):
    assert database.add(grid(step=4)) == (27, 0)
    assert database.add([*grid(2.0, step=4), *grid(3.0, step=4)]) == (0, 54)
    assert next(database.rows()).time_us == 3 * grid(step=4)[0].time_us
    for wrong in (float("nan"), 0, -1, float("inf")):
        with pytest.raises(DatabaseError, match="no time"):
            database.add([grid(4.0)[0], grid()[1]._replace(time_us=wrong)])
    assert next(database.rows()).time_us == 3 * grid(step=4)[0].time_us


def test_a_database_that_is_none(tmp_path):
    with pytest.raises(DatabaseError, match="cannot be used"):
        Database(put(tmp_path, "hello " * 1000))
    with pytest.raises(DatabaseError, match="not a regular file"):
        Database(tmp_path)
    with pytest.raises(DatabaseError, match="no such performance database"):
        ask(tmp_path / "none.sqlite", m=1, n=1, k=1)
    assert not (tmp_path / "none.sqlite").exists()


SOMEBODY = "'dgx-h100', 'gemm', 'bf16', ''"


@pytest.mark.parametrize(
    "values",
    [
        "1, 2, 3, 4, 5, 6, 7",
        f"{SOMEBODY}, '{{', 1.0, ''",
        f"{SOMEBODY}, '[1]', 1.0, ''",
        f"{SOMEBODY}, '{{\"m\": null}}', 1.0, ''",
        f"{SOMEBODY}, '{{\"m\": 1}}', 1.0, ''",
        f"{SOMEBODY}, '{{}}', -1.0, ''",
        f"{SOMEBODY}, '{{}}', 'x', ''",
    ],
)
def test_a_database_of_somebody_else(tmp_path, values):
    file = tmp_path / "p.sqlite"
    Database(file).close()
    with sqlite3.connect(file) as link:
        link.execute(f"INSERT INTO measurements VALUES ({values})")

    def look(database):
        list(database.rows())
        ask(database, m=1, n=1, k=1)

    with Database(file) as database, pytest.raises(mt.MegatileError):
        look(database)
    with sqlite3.connect(file) as link:
        link.execute("DROP TABLE measurements")
        link.execute("CREATE TABLE measurements (a)")
    with pytest.raises(DatabaseError, match="cannot be used"):
        Database(file)


# fits


def test_reading_does_not_write_into_the_database_of_another_program(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="holds no table 'measurements' of megatile"):
        Database(path, create=False)
    assert path.read_bytes() == before
