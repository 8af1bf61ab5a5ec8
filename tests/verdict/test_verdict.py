"""`Result.verdict`: it names what was made worse in a kernel, and its estimate is the gain of the twin."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.verdict import between_devices, careless, fixed_sizes, flawed, wasteful
from typer.testing import CliRunner

import megatile as mt
import megatile.language as T
from megatile.cli.main import app
from megatile.ir.nodes import ScaleRegion
from megatile.verdict import Finding, Verdict, largest, narrow
from megatile.verdict.arguments import arguments_of
from megatile.verdict.communication import communication
from megatile.verdict.judgement import ranked, verdict as judge
from megatile.verdict.model import Kind
from megatile.verdict.needless import hoisted, invariant
from megatile.verdict.study import Rule, Study

PAIRS = {name: (*pair, "dgx-h100") for name, pair in flawed.PAIRS.items()}
PAIRS |= careless.PAIRS | between_devices.PAIRS | wasteful.PAIRS | fixed_sizes.PAIRS
FILES = ("flawed.py:", "careless.py:", "between_devices.py:", "wasteful.py:", "fixed_sizes.py:")


@pytest.mark.parametrize("flaw", PAIRS)
def test_it_names_the_flaw_and_estimates_the_gain(flaw):
    name, slow, twin, machine = PAIRS[flaw]
    result = mt.simulate(slow, machine=machine)
    found = result.verdict().findings[0]
    assert found.name == name
    assert found.gain == pytest.approx(result.time_ps / mt.simulate(twin, machine=machine).time_ps, rel=0.25)
    assert any(file in found.source for file in FILES)
    assert found.reason
    assert found.step


def test_statements_that_every_iteration_repeats_are_found():
    @T.program
    def gated(X: T.Tensor((64, 128), "f32"), G: T.Tensor((128,), "f32"), Y: T.Tensor((64, 128), "f32")):
        with T.Kernel(block=4, threads=128) as b:
            g, e, x = T.alloc((128,), "f32"), T.alloc((128,), "f32"), T.alloc((128,), "f32")
            T.copy(g, G[0])
            for r in T.serial(16):
                for j in T.Parallel(128):
                    e[j] = T.exp(g[j])
                T.copy(x, X[b * 16 + r, 0:128])
                for j in T.Parallel(128):
                    x[j] = x[j] * e[j]
                T.copy(Y[b * 16 + r, 0:128], x)

    source = mt.lower(gated, machine="dgx-h100").source
    ((loop, node),) = invariant(source)
    assert loop.var == "r"
    assert "'exp'" in str(node)
    (region,) = [m for m in hoisted(source).body if isinstance(m, ScaleRegion)]
    assert [type(m).__name__ for m in region.body[-3:]] == ["Copy", "Parallel", "Loop"]


def test_general_advice_comes_after_advice_for_a_line(monkeypatch):
    result = mt.simulate(careless.squared(False), machine="ahbm")
    base = result.time_ps
    exact = Finding("whole result", "b", "r", "f.py:1", "s", base, base * 2 // 3, "how")
    ideal = Finding("exposed latency", "b", "r", "", "s", base, base // 4, "how", True, Kind.ADVICE)
    for found, first in (([ideal, exact], exact), ([ideal], ideal)):
        monkeypatch.setattr(
            "megatile.verdict.judgement.RULES",
            [Rule("both", lambda _, found=found: found, Kind.CAUSE, False)],
        )
        assert judge(result).findings[0] == first


def test_searches_keep_the_number_of_devices():
    made = careless.replicated(False)
    arguments = arguments_of(Study(mt.simulate(made, machine="dgx-h100")))
    assert arguments.make({"devices": 2}) is None


def test_a_good_kernel_is_balanced():
    good = flawed.gemm(4096, 4096, 1024, 256, 128, threads=256, stages=4, panel=8)
    verdict = mt.simulate(good, machine="dgx-h100").verdict()
    assert verdict.balanced
    assert "no single bottleneck (busiest: " in str(verdict)
    assert str(replace(verdict, share=0.91, bound_by="busiest: hbm, 91% of the time")).startswith(
        "verdict: bounded by hbm, 91% of the time\n"
    )
    assert "next: " in str(verdict)


def test_what_is_hardly_busy_is_not_called_balanced():
    found = Verdict("p", "m", 1, (), "busiest: hbm, 20% of the time", 0, waits="copy (60% of it)")
    assert not found.balanced
    assert "balanced" not in str(found) + repr(found)
    assert "most of the critical path: copy" in str(found)
    assert "next: " in str(found)


def test_remedies_that_change_results_come_last_unless_they_gain_much():
    @T.program
    def twice(X: T.Tensor((4096, 4096), "f32"), Y: T.Tensor((4096, 4096), "f32")):
        with T.Kernel(block=2048, threads=256) as bx:
            x = T.alloc((2, 4096), "f32")
            top = T.alloc((2,), "f32")
            for _ in range(3):
                T.copy(x, X[bx * 2, 0])
                T.reduce_max(x, top, dim=1)
            T.copy(Y[bx * 2, 0], x)

    names = [one.name for one in mt.simulate(twice, machine="dgx-h100").verdict().findings]
    assert names.index("repeated loads") < names.index("wide tensors")


def test_blocks_that_load_the_same_tiles_are_named():
    @T.program
    def groups(K: T.Tensor((64, 1024, 128), "f16"), Y: T.Tensor((512, 128), "f32")):
        with T.Kernel(block=512, threads=128) as bx:
            k = T.alloc((64, 128), "f16")
            y = T.alloc((128,), "f32")
            T.clear(y)
            for i in T.Pipelined(16, num_stages=3):
                T.copy(k, K[bx // 8, i * 64, 0])
                T.reduce_sum(k, y, dim=0, clear=False)
            T.copy(Y[bx, 0], y)

    found = {one.name: one for one in mt.simulate(groups, machine="hgx-a100").verdict().findings}
    assert (
        "8 blocks in a row load the same tiles of 'K'" in found["blocks that load the same tiles"].bottleneck
    )


def test_blocks_that_load_the_same_tiles_gain_what_one_block_for_all_gains():
    def scores(heads, batch=64, group=8):
        @T.program
        def made(
            Q: T.Tensor((batch * group, 128), "f16"),
            K: T.Tensor((batch, 1024, 128), "f16"),
            S: T.Tensor((batch * group, 1024), "f32"),
        ):
            with T.Kernel(block=batch * group // heads, threads=128) as bx:
                q = T.alloc((heads, 128), "f16", level="l1")
                k = T.alloc((128, 128), "f16", level="l1")
                s = T.alloc((heads, 128), "f32")
                T.copy(q, Q[bx * heads, 0])
                for i in T.Pipelined(8, num_stages=2):
                    T.copy(k, K[bx * heads // group, i * 128, 0])
                    T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                    T.copy(S[bx * heads, i * 128], s)

        return made

    slow, twin = (mt.simulate(scores(heads), machine="dgx-h100") for heads in (1, 8))
    (found,) = [f for f in judge(slow).findings if f.name == "blocks that load the same tiles"]
    assert found.gain == pytest.approx(slow.time_ps / twin.time_ps, rel=0.1)


def triangular(in_turn, rows=64, blocks=128):
    each = rows * 4 // blocks

    @T.program
    def made(A: T.Tensor((rows * 64, rows * 64), "f16"), C: T.Tensor((rows * 64, 512), "f32")):
        with T.Kernel(block=blocks, threads=128) as b:
            a, c = T.alloc((64, 64), "f16", level="l1"), T.alloc((64, 128), "f32")
            w = T.alloc((64, 128), "f16", level="l1")
            T.clear(w)
            for s in T.serial(each):
                item = T.if_then_else(s % 2 == 0, s * blocks + b, (s + 1) * blocks - 1 - b)
                item = item if in_turn else b * each + s
                T.clear(c)
                for k in T.Pipelined(item // 4 + 1, num_stages=3):
                    T.copy(a, A[item // 4 * 64, k * 64])
                    T.gemm(a, w, c)
                T.copy(C[item // 4 * 64, item % 4 * 128], c)

    return made


def test_unequal_work_of_blocks_that_run_at_one_time_is_found():
    slow, twin = (mt.simulate(triangular(in_turn), machine="dgx-h100") for in_turn in (False, True))
    (found,) = [f for f in judge(slow).findings if f.name == "block balance"]
    assert found.bottleneck.startswith("unequal work")
    assert found.gain == pytest.approx(slow.time_ps / twin.time_ps, rel=0.25)
    assert "block b takes items b, 255 - b, 256 + b, …" in found.step
    assert "block balance" not in [f.name for f in judge(twin).findings]


def test_a_cause_comes_before_other_tile_sizes_that_gain_no_more():
    tiles = Finding("tile size", "b", "r", "f.py:1", "s", 1000, 833, "how", kind=Kind.SEARCH)
    waits = Finding("pipeline stages", "b", "r", "f.py:2", "s", 1000, 820, "how", bound=True)
    assert ranked([tiles, waits]) == [waits, tiles]
    less = Finding("pipeline stages", "b", "r", "f.py:2", "s", 1000, 840, "how", bound=True)
    assert ranked([tiles, less]) == [tiles, less]
    general = Finding("exposed latency", "b", "r", "f.py:2", "s", 1000, 700, "how", True, Kind.ADVICE)
    assert ranked([general, tiles]) == [tiles, general]


def test_a_far_larger_gain_comes_first_though_its_results_are_less_exact():
    tiles = Finding("tile size", "b", "r", "f.py:1", "s", 1000, 935, "how", kind=Kind.SEARCH)
    wide = Finding("wide operands", "b", "r", "f.py:2", "s", 1000, 515, "how", kind=Kind.INEXACT)
    assert ranked([tiles, wide]) == [wide, tiles]
    half = Finding("tile size", "b", "r", "f.py:1", "s", 1000, 700, "how", kind=Kind.SEARCH)
    assert ranked([wide, half]) == [half, wide]
    tensors = Finding("wide tensors", "b", "r", "f.py:2", "s", 1000, 515, "how", kind=Kind.CALLER)
    assert ranked([tensors, tiles]) == [tiles, tensors]


def test_the_text_has_bottleneck_line_step_and_how_it_was_estimated():
    verdict = mt.simulate(flawed.transpose(n=512), machine="dgx-h100").verdict()
    text = str(verdict)
    assert text.startswith("verdict: bank conflicts in 'shared' (")
    assert "32 lanes use one bank of 'tile'" in text
    assert "program timed again with 'tile' swizzled" in text
    assert verdict.as_dict()["findings"][0]["name"] == "bank conflicts"
    assert "<pre>" in verdict._repr_html_()


def test_only_tensors_in_f32_are_called_f32():
    verdict = mt.simulate(flawed.streamed("f32", source="f16"), machine="dgx-h100").verdict()
    (found,) = [f for f in verdict.findings if f.name == "wide tensors"]
    assert found.bottleneck == "'hbm' is the limit, and Y is f32"
    assert found.step.startswith('Y in "f16"')


def test_a_plan_alone_has_a_verdict():
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=1 << 20)
    assert mt.simulate(plan, machine="dgx-h100").verdict().time_ps > 0


def test_nothing_to_do_is_balanced():
    @T.program
    def nothing(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1, threads=32):
            T.print("here")

    assert "verdict" in str(mt.simulate(nothing, machine="dgx-h100").verdict())


def test_it_is_the_first_thing_that_run_prints(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(Path(flawed.__file__).read_text())
    program = f"{file}:transpose(n=256)"
    text = CliRunner().invoke(app, ["run", program, "--report", str(tmp_path / "page.html")]).output
    assert text.splitlines()[0].startswith("verdict: bank conflicts")
    assert "verdict: bank conflicts" in (tmp_path / "page.html").read_text()
    data = json.loads(CliRunner().invoke(app, ["run", program, "--json"]).output)
    assert data["verdict"]["findings"][0]["gain"] > 1.4
    quiet = CliRunner().invoke(app, ["run", program, "--no-verdict"]).output
    assert "verdict:" not in quiet


def test_a_factory_that_fails_with_other_arguments_is_not_a_problem():
    def picky(bM=64):
        if bM != 64:
            raise RuntimeError("64 only")

        @T.program
        def copied(X: T.Tensor((4096, 64), "f32"), Y: T.Tensor((4096, 64), "f32")):
            with T.Kernel(block=4096 // bM, threads=128) as b:
                x = T.alloc((bM, 64), "f32")
                T.copy(x, X[b * bM, 0])
                T.copy(Y[b * bM, 0], x)

        return copied

    globals()["picky"] = picky
    assert mt.simulate(picky(), machine="dgx-h100").verdict().time_ps > 0


def test_units_without_a_block_are_too_few_blocks_and_no_imbalance():
    verdict = mt.simulate(flawed.attention(heads=2, seq=1024), machine="dgx-h100").verdict()
    assert "block balance" not in [one.name for one in verdict.findings]
    assert "too few blocks" in [one.name for one in verdict.findings]


def test_launches_of_a_session_and_runs_without_records_have_a_verdict():
    plan = mt.lower(flawed.transpose(n=512), machine="dgx-h100").plan
    assert mt.simulate(plan, machine="dgx-h100", record=False).verdict().time_ps > 0
    assert mt.Session("dgx-h100").launch(plan).verdict().time_ps > 0


def histogram(bins=64, n=1 << 18):
    @T.program
    def counted(X: T.Tensor((n,), "i32"), H: T.Tensor((bins,), "i32")):
        with T.Kernel(block=n // 4096, threads=256) as b:
            x = T.alloc((4096,), "i32")
            T.copy(x, X[b * 4096])
            for i in T.Parallel(4096):
                T.atomic_add(H[x[i]], 1)

    return counted


def test_advice_keeps_the_result_or_says_what_to_add():
    """More bins would be faster and something else; more blocks leave parts to combine."""
    verdict = mt.simulate(histogram(), machine="dgx-h100").verdict()
    assert verdict.findings[0].name == "contended atomics"
    assert "bins" not in str(verdict)
    few = mt.simulate(flawed.serial_total(n=1 << 18), machine="dgx-h100").verdict().findings[0]
    assert few.name == "too few blocks"
    assert "add them up in a second pass" in few.step


def test_overlap_says_how_and_its_gain_is_that_of_the_program_so_written():
    result = mt.simulate(between_devices.divided_product(), machine="dgx-h100")
    found = next(f for f in communication(Study(result)) if f.name == "exposed communication")
    parts = int(found.how.split()[-2])
    assert f"overlap in {parts} parts: block=(16, {16 // parts})" in found.step
    assert f"T.allreduce(c[p * {2048 // parts} : (p + 1) * {2048 // parts}, :])" in found.step
    written = mt.simulate(between_devices.divided_product(parts), machine="dgx-h100")
    assert found.time_ps == pytest.approx(written.time_ps, rel=0.01)


def test_large_grids_are_judged_by_their_first_waves(monkeypatch):
    monkeypatch.setattr("megatile.verdict.study.SAMPLED", 40_000)
    slow, fast = (mt.simulate(flawed.plain_gemm(way), machine="dgx-h100") for way in (False, True))
    found = slow.verdict().findings[0]
    assert found.name == "block order"
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.1)
    assert "of 1792 blocks stand for all" in found.how


def test_blocks_that_together_read_all_gathered_rows_leave_no_part_unread():
    @T.program
    def kernel(
        A: T.Tensor((1024, 256), "f16"), B: T.Tensor((256, 512), "f16"), C: T.Tensor((1024, 512), "f16")
    ):
        with T.Kernel(device=4, block=(1, 8), threads=128) as (bx, by):
            with T.Scale("device"):
                a, b, c = (
                    T.view(A, layout=T.FullRow),
                    T.view(B, layout=T.FullCol),
                    T.view(C, layout=T.FullCol),
                )
                whole = T.alloc((1024, 256), "f16", level="l2")
                T.allgather(whole, a)
                with T.Scale("block"):
                    x = T.alloc((128, 64), "f16", level="l1")
                    y = T.alloc((64, 128), "f16", level="l1")
                    z = T.alloc((128, 128), "f32")
                    T.clear(z)
                    for k in T.Pipelined(4, num_stages=2):
                        T.copy(x, whole[by * 128, k * 64])
                        T.copy(y, b[k * 64, bx * 128])
                        T.gemm(x, y, z)
                    T.copy(c[by * 128, bx * 128], z)

    found = mt.simulate(kernel, machine="dgx-h100").verdict().findings
    assert "unread parts" not in [finding.name for finding in found]


def rounded_down(bM=32, bN=32, size=512):
    @T.program
    def kernel(
        A: T.Tensor((size, 64), "f16"), B: T.Tensor((64, size), "f16"), C: T.Tensor((size, size), "f32")
    ):
        with T.Kernel(block=(size // bN, size // bM), threads=128) as (bx, by):
            a, b = T.alloc((bM, 64), "f16", level="l1"), T.alloc((64, bN), "f16", level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            T.copy(a, A[by * bM, 0])
            T.copy(b, B[0, bx * bN])
            T.gemm(a, b, c)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def test_no_remedy_leaves_part_of_a_result_out():
    study = Study(mt.simulate(rounded_down(), machine="dgx-h100"))
    arguments = arguments_of(study)
    assert arguments.make({"bM": 64}) is not None
    assert arguments.make({"bM": 96}) is None  # 480 of 512 rows


def padded_batch(S=256, D=64, rows=64):
    @T.program
    def scores(Q: T.Tensor((4, S, D), "f16"), N: T.Tensor((4,), "i32"), O: T.Tensor((4, S, D), "f32")):
        with T.Kernel(block=(S // rows, 4), threads=128) as (y, s):
            q, k = T.alloc((rows, D), "f16", level="l1"), T.alloc((rows, D), "f16", level="l1")
            p, h, o = T.alloc((rows, rows), "f32"), T.alloc((rows, rows), "f16"), T.alloc((rows, D), "f32")
            length = T.read_scalar(N[s], bound=S)
            T.copy(q, Q[s, y * rows, 0])
            T.clear(o)
            for j in T.Pipelined(S // rows, num_stages=2):
                T.copy(k, Q[s, j * rows, 0])
                T.gemm(q, k, p, transpose_B=True, clear_accum=True)
                for a, b in T.Parallel(rows, rows):
                    p[a, b] = T.if_then_else(j * rows + b < length, T.exp2(p[a, b]), 0.0)
                T.copy(h, p)
                T.gemm(h, k, o)
            T.copy(O[s, y * rows, 0], o)

    return scores


def test_masks_may_depend_on_numbers_read_before_the_loop():
    q = np.zeros((4, 256, 64), np.float16)
    arrays = q, np.full(4, 64, np.int32), q.astype(np.float32)
    verdict = mt.simulate(padded_batch(), *arrays, machine="dgx-h100").verdict()
    assert "masked work" in [one.name for one in verdict.findings]


def test_blocks_that_a_number_masks_out_are_named():
    @T.program
    def chosen(X: T.Tensor((1 << 18,), "f32"), F: T.Tensor((256,), "i32"), Y: T.Tensor((1 << 18,), "f32")):
        with T.Kernel(block=256, threads=128) as b:
            x = T.alloc((1024,), "f32")
            wanted = T.read_scalar(F[b], bound=1)
            T.copy(x, X[b * 1024])
            for i in T.Parallel(1024):
                x[i] = T.if_then_else(wanted > 0, T.exp(T.sin(x[i])), 0.0)
            T.copy(Y[b * 1024], x)

    x = np.zeros(1 << 18, np.float32)
    result = mt.simulate(chosen, x, np.zeros(256, np.int32), x.copy(), machine="dgx-h100")
    (found,) = [one for one in result.verdict().findings if one.name == "masked work"]
    assert "blocks are computed and then masked out" in found.bottleneck


def test_only_what_is_read_of_a_slot_is_worth_a_message():
    @T.program
    def edges(X: T.Tensor((4, 64, 64), "f32"), Y: T.Tensor((4, 64), "f32")):
        with T.Kernel(device=4), T.Scale("device") as (r, n):
            x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Shard(0))
            box = T.alloc((2, 64, 64), "f32", level="l2")
            for s in T.serial(8):
                T.copy(box[s % 2], x[0], dst=(r + 1) % n)
                T.barrier()
                T.copy(y[0, 0:64], box[s % 2, 0, 0:64])

    copies = narrow._partly_read(mt.lower(edges, machine="dgx-h100").source)
    assert [box for _, box in copies] == [((0, 1), (0, 64))]


def test_far_below_the_roofline_the_most_expensive_line_is_named(monkeypatch):
    result = mt.simulate(flawed.gelu(16, 24576), machine="dgx-h100")
    monkeypatch.setattr("megatile.verdict.judgement.RULES", [])
    assert largest.share_of_bound(Study(result)) < largest.GOOD_SHARE
    (found,) = judge(result).findings
    assert found.name == "largest loss"
    assert "flawed.py:" in found.source
    assert found.step
    monkeypatch.setattr("megatile.verdict.largest.GOOD_SHARE", 0.0)
    assert not judge(result).findings


def test_a_verdict_that_takes_too_long_says_what_it_left_out(monkeypatch):
    monkeypatch.setattr("megatile.verdict.study.MAX_SECONDS", -1.0)
    verdict = mt.simulate(flawed.transpose(n=512), machine="dgx-h100").verdict()
    assert verdict.retimed == 0
    assert "bank conflicts" in verdict.untried
    assert "not tried, to save time: " in str(verdict)


def test_padding_is_as_wide_as_what_lanes_read_at_once():
    """Rows of 384 bytes are not swizzled, those of 128 bytes are."""
    verdict = mt.simulate(wasteful.turned(False, 256, 384, 192, 2), machine="hgx-a100").verdict()
    (found,) = [one for one in verdict.findings if one.name == "bank conflicts"]
    assert "by 8 elements, or swizzle it" in found.step
    verdict = mt.simulate(wasteful.turned(False, 256, 256), machine="hgx-a100").verdict()
    assert "bank conflicts" not in {one.name for one in verdict.findings}
