"""``megatile kernel`` and ``megatile perfdb``."""

import json

from megatile.hda import machine
from megatile.timing.database import Measurement
from megatile.timing.formulas import Device, gemm
from megatile.timing.measurements import write_measurements

GEMM = "gemm_dtype,m,n,k,us\nbfloat16,128,128,128,nan\n"


def table_of(path, factor):
    """Times that dgx-h100's formula has, times a factor."""
    device, sizes = Device.of(machine("dgx-h100")), (32, 128, 512, 2048, 8192)
    shapes = [{"m": m, "n": n, "k": k} for m in sizes for n in sizes for k in sizes]
    times = [factor * float(gemm(device, {**s, "quantised": 0}, "bf16")) for s in shapes]
    rows = [("dgx-h100", "gemm", "bf16", "", s, t, "") for s, t in zip(shapes, times, strict=True)]
    write_measurements(path, [Measurement(*row) for row in rows])


def filled(megatile, tmp_path):
    table, db = tmp_path / "t.csv", tmp_path / "p.sqlite"
    table_of(table, 1.25)
    done = megatile("perfdb", "import", table, "--db", db, "--json")
    assert json.loads(done.out)["rows"][0]["new"] == 125
    return db


def test_a_kernel_by_formula_and_from_the_database(megatile, tmp_path):
    shape = ("--m", 200, "--n=300", "--k", 400)
    rule = json.loads(megatile("kernel", "gemm", *shape, "--json").out)
    assert (rule["kind"], rule["shape"]["n"]) == ("rule", 300)
    db = filled(megatile, tmp_path)
    found = json.loads(megatile("kernel", "gemm", *shape, "--db", db, "--json").out)
    assert found["kind"] == "interpolated"
    assert abs(found["time_us"] / rule["time_us"] - 1.25) < 1e-6
    assert "interpolated" in megatile("kernel", "gemm", *shape, "--db", db).out
    assert "dgx-h100" in megatile("perfdb", "list", "--db", db).out


def test_several_shapes_are_a_table(megatile, tmp_path):
    asked = ("kernel", "gemm", "--m", "1,16,256", "--n", "512,1_024", "--k=64")
    lines = megatile(*asked).out.splitlines()
    assert len(lines) == 7
    assert lines[2].split()[:3] == ["1", "1024", "64"]
    rows = json.loads(megatile(*asked, "--db", filled(megatile, tmp_path), "--json").out)["rows"]
    assert [row["shape"]["m"] for row in rows] == [1, 1, 16, 16, 256, 256]
    assert {row["kind"] for row in rows} == {"interpolated", "rule"}
    many = ",".join(map(str, range(1, 200)))
    done = megatile("kernel", "gemm", "--m", many, "--n", many, "--k", "1")
    assert (done.code, "more than 10000 shapes" in done.err) == (1, True)


def test_a_fit_writes_a_machine_file(megatile, tmp_path):
    db, file = filled(megatile, tmp_path), tmp_path / "mine.yaml"
    done = megatile("perfdb", "fit", "--db", db, "-o", file)
    assert done.code == 0, done.err
    assert "before: median" in done.out
    times = [
        json.loads(megatile("kernel", "gemm", "--m", 512, "--n", 512, "--k", 512, "-m", m, "--json").out)[
            "time_us"
        ]
        for m in (file, "dgx-h100")
    ]
    assert 1.2 < times[0] / times[1] < 1.3
    (fitted,) = json.loads(megatile("perfdb", "fit", "--db", db, "--json").out)["rows"]
    assert fitted["after_median"] < fitted["before_median"]


def test_a_fit_extends_the_file_that_was_given_whatever_its_name_says(megatile, tmp_path):
    folder = tmp_path / "machines"
    folder.mkdir()
    (folder / "m.yaml").write_text('extends: dgx-h100\nname: "../../other.yaml"\n')
    table_of(tmp_path / "t.csv", 1.25)
    db, file = tmp_path / "p.sqlite", tmp_path / "mine.yaml"
    assert megatile("perfdb", "import", tmp_path / "t.csv", "-m", "../../other.yaml", "--db", db).code == 0
    done = megatile("perfdb", "fit", "-m", folder / "m.yaml", "--db", db, "-o", file)
    assert done.code == 0, done
    assert 'extends: "machines/m.yaml"' in file.read_text()
    assert megatile("machine", "show", file).code == 0


def test_out_and_in_again(megatile, tmp_path):
    db, table = filled(megatile, tmp_path), tmp_path / "out.csv"
    assert "125 rows" in megatile("perfdb", "export", table, "--db", db).out
    again = tmp_path / "q.sqlite"
    assert megatile("perfdb", "import", table, "--db", again).code == 0
    lists = [json.loads(megatile("perfdb", "list", "--db", d, "--json").out) for d in (db, again)]
    assert lists[0] == lists[1]


def test_mistakes_are_one_line(megatile, tmp_path):
    table, db = tmp_path / "t.csv", tmp_path / "p.sqlite"
    table.write_text(GEMM, encoding="utf-8")
    for arguments, message in (
        (("perfdb", "import", table, "-m", "dgx-h100", "--db", db), "t.csv:2: no time"),
        (("perfdb", "list", "--db", db), "no such performance database"),
        (("kernel", "gemm", "--m", "x"), "gives no extent"),
        (("kernel", "gemm", "--m"), "gives no extent"),
        (("kernel", "all_reduce", "--bytes", "1Q", "--ranks", "8"), "unit 'Q' in '1Q' is unknown"),
        (("kernel", "gemm", "--m", 1), "gemm needs n, k"),
        (("kernel", "gemm", "--kk", 1), "no extent 'kk'"),
    ):
        done = megatile(*arguments)
        assert done.code == 1
        assert message in done.err
        assert len(done.err.splitlines()) == 1
    assert not db.exists()
