"""``timing/measurements.py``: tables of measured times."""

import gzip

import pytest
from tests.timing.shared import grid, put

from megatile.timing.database import DatabaseError, Measurement
from megatile.timing.measurements import read_measurements, write_measurements

GEMM = "gemm_dtype,m,n,k,us\nbfloat16,128,128,128,5.5\nfp8,64,128,128,7\n"


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
