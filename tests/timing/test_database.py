"""The performance database: measured, interpolated, left out; tables and logs in and out; fits."""

import gzip
import math
import sqlite3

import numpy as np
import pytest

import megatile as mt
from megatile.hda import HDA, machine
from megatile.timing.database import Database, DatabaseError, Measurement
from megatile.timing.fit import fit, machine_file, minimise
from megatile.timing.formulas import Device, gemm
from megatile.timing.measurements import read_measurements, write_measurements

GEMM = "gemm_dtype,m,n,k,us\nbfloat16,128,128,128,5.5\nfp8,64,128,128,7\n"


def put(tmp_path, text, name="t.csv"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return file


def grid(factor=1.0, step=1):
    """Times of the formula on dgx-h100, times a factor, for shapes of powers of two."""
    sizes = [2**i for i in range(5, 14, step)]
    shapes = [{"m": m, "n": n, "k": k} for m in sizes for n in sizes for k in sizes]
    device = Device.of(machine("dgx-h100"))
    times = [factor * float(gemm(device, {**s, "quantised": 0}, "bf16")) for s in shapes]
    return [
        Measurement("dgx-h100", "gemm", "bf16", "", s, t, "grid") for s, t in zip(shapes, times, strict=True)
    ]


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


# tables


def test_tables_by_their_columns(tmp_path):
    (first, second) = read_measurements(put(tmp_path, GEMM), "dgx-h100")
    assert first == ("dgx-h100", "gemm", "bf16", "", {"m": 128, "n": 128, "k": 128}, 5.5, "t.csv")
    assert (second.dtype, second.time_us) == ("f8e4m3", 7.0)
    attention = (
        "kernel_source,batch_size,isl,step,num_heads,num_key_value_heads,head_dim,window_size,us\n"
        "fa3,32,1,255,64,1,64,0,12.112\n"
    )
    (row,) = read_measurements(put(tmp_path, attention), "dgx-h100", source="someone")
    assert (row.operation, row.implementation, row.source) == ("attention", "fa3", "someone")
    assert row.shape["context"] == 255
    shape, sms = "node_num,hidden_size,num_token,num_topk,num_experts", "dispatch_sms,dispatch_transmit_us"
    sms += ",combine_sms,combine_transmit_us"
    both = read_measurements(put(tmp_path, f"{shape},{sms}\n1,2048,16,8,128,4,29.9,5,36.3\n"), "dgx-h100")
    assert [(m.operation, m.shape["sms"], m.time_us) for m in both] == [
        ("moe_dispatch", 4, 29.9),
        ("moe_combine", 5, 36.3),
    ]
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(("\ufeff" + GEMM).encode()))
    assert len(read_measurements(packed, "dgx-h100")) == 2


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_exported_tables_are_read_again(tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    rows = grid(step=4) + [
        Measurement("a, b", "all_gather", "f32", 'x"y', {"ranks": 2, "bytes": 3}, 1e-3, "z\nz")
    ]
    file = tmp_path / f"t.{form}"
    assert write_measurements(file, rows) == len(rows)
    assert read_measurements(file) == rows


LOG = """# nThread 1 nGpus 2 minBytes 8 maxBytes 64
# Rank  0 Group  0 Pid 1 on host device  0 [0x07] NVIDIA H100
# Rank  1 Group  0 Pid 2 on host device  1 [0x0f] NVIDIA H100
# Collective test starting: {operation}_perf
#    size    count   type redop root   time algbw busbw #wrong  time algbw busbw #wrong
        0        0  float   sum  -1   3.01  0.00  0.00    0   2.97  0.00  0.00    0
     1024      256  float   sum  -1  13.03  0.00  0.00    0  12.97  0.00  0.00    0
  1048576   262144   half  none  -1  40.00  0.00  0.00  N/A  41.00  0.00  0.00  N/A
# Out of bounds values : 0 OK
"""


@pytest.mark.parametrize("tag", ["", "[1,0]<stdout>: "])
@pytest.mark.parametrize("operation", ["all_reduce", "alltoall", "reduce_scatter"])
def test_logs_of_nccl_tests(tmp_path, operation, tag):
    log = "".join(tag + line for line in LOG.format(operation=operation).splitlines(keepends=True))
    rows = read_measurements(put(tmp_path, log, "run.log"), "dgx-h100")
    name = operation.replace("alltoall", "all_to_all")
    assert [(m.operation, m.dtype, m.shape, m.time_us) for m in rows] == [
        (name, "f32", {"ranks": 2, "bytes": 1024}, 12.97),
        (name, "f16", {"ranks": 2, "bytes": 1 << 20}, 40.0),
    ]


def test_a_log_of_several_runs(tmp_path):
    first, second = (LOG.format(operation=each) for each in ("all_reduce", "all_gather"))
    third = "# Rank  2 Group  0\n".join(second.partition("# Coll")[::2]).replace(
        "nThread", "graph: 1 nThread"
    )
    rows = read_measurements(
        put(tmp_path, first + second + third.replace("\n Rank", "# Rank"), "run.log"), "x"
    )
    assert [m.operation for m in rows] == ["all_reduce"] * 2 + ["all_gather"] * 4
    assert [m.shape["ranks"] for m in rows] == [2, 2, 2, 2, 3, 3]
    assert [m.implementation for m in rows] == [""] * 4 + ["captured"] * 2


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (GEMM.replace("5.5", "nan"), "t.csv", "t.csv:2: no time: 'nan' us"),
        (GEMM.replace("5.5", ""), "t.csv", "t.csv:2:"),
        (GEMM.replace(",7\n", ",-7\n"), "t.csv", "t.csv:3: no time"),
        (GEMM.replace("fp8", "fp9"), "t.csv", "t.csv:3: dtype 'fp9' is unknown"),
        (GEMM.replace("64", "6.5"), "t.csv", "t.csv:3: m is not an extent"),
        (GEMM.replace("64", "-64"), "t.csv", "t.csv:3: m is not an extent"),
        (GEMM.replace("64,128", "64"), "t.csv", "another number of fields"),
        ("a,b\n1,2\n", "t.csv", "any known table"),
        ("", "t.csv", "has no rows"),
        (GEMM.splitlines()[0], "t.csv", "has no rows"),
        (GEMM, "t.parquet", "not a Parquet file"),
        (LOG.format(operation="strange"), "run.log", "which collective"),
        (LOG.format(operation="all_reduce").replace("# Rank", "# rank"), "run.log", "lists no ranks"),
        (
            LOG.format(operation="all_reduce").replace("12.97", "x"),
            "run.log",
            "run.log:7: not a line of nccl-tests",
        ),
        (
            LOG.format(operation="all_reduce").replace("1048576", "9" * 400),
            "run.log",
            "run.log:8: not a line of nccl-tests: size is not an extent",
        ),
        ("\n".join(LOG.format(operation="all_reduce").splitlines()[:5]), "run.log", "no line with a time"),
        ("op_name,num_gpus,bytes,us\nall_think,2,8,1\n", "t.csv", "'all_think' is not among"),
    ],
)
def test_a_table_that_is_wrong_says_where(tmp_path, text, name, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    with pytest.raises(DatabaseError) as caught:
        read_measurements(put(tmp_path, text, name), "dgx-h100")
    assert message in str(caught.value)


def test_a_table_needs_its_machine(tmp_path):
    with pytest.raises(DatabaseError, match="the machine it was measured on"):
        read_measurements(put(tmp_path, GEMM))
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\x00\xff\x00")
    with pytest.raises(DatabaseError, match="neither a text table"):
        read_measurements(binary, "dgx-h100")
    with pytest.raises(DatabaseError, match="not a regular file"):
        read_measurements("/dev/zero", "dgx-h100")


# fits


def test_a_fit_finds_the_figures_that_made_the_times(tmp_path):
    other = machine("dgx-h100", **{"kernels.gemm.share": "60 %", "kernels.gemm.start": "9 us"})
    device = Device.of(other)
    rows = [
        m._replace(time_us=float(gemm(device, {**m.shape, "quantised": 0}, "bf16"))) for m in grid(step=2)
    ]
    (found,) = fit(machine("dgx-h100"), rows, held_out=0.25)
    assert found.before.median > 0.05
    assert found.after.median < 0.005
    assert found.figures["gemm"].share == pytest.approx(0.6, rel=0.02)
    assert found.fitted_rows + found.after.rows == len(rows)
    file = put(tmp_path, machine_file("fitted", "dgx-h100", [found], 'a test: of "figures"'), "fitted.yaml")
    again = Device.of(HDA.from_yaml(file)).kernel("gemm")
    assert again.start_us == pytest.approx(9, rel=0.02)


def test_too_little_to_fit():
    with pytest.raises(DatabaseError, match="too few to fit"):
        fit(machine("dgx-h100"), grid()[:5])
    with pytest.raises(DatabaseError, match="nothing to fit"):
        fit(machine("dgx-h100"), [])


def test_the_simplex_finds_a_minimum():
    found = minimise(
        lambda x: (math.log(x[0] / 3)) ** 2 + (math.log(x[1] / 700)) ** 2 + 1, np.array([1.0, 100.0])
    )
    assert found == pytest.approx([3, 700], rel=1e-3)


def test_reading_does_not_write_into_the_database_of_another_program(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="holds no table 'measurements' of megatile"):
        Database(path, create=False)
    assert path.read_bytes() == before
