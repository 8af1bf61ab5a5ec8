"""Runs the examples of a TileLang (or TileScale) checkout, unedited but for their sizes, on this computer.

    python benchmarks/tilelang_examples.py CHECKOUT [--only TEXT] [--results FILE] [--table PAGE.md]

Each file runs in a process of its own with a limit of CPU time and memory. Sizes are made small by name
(``M``, ``seq_len``, ``heads`` ...) in default arguments, options of argparse, assignments and calls outside
kernels; kernels are read from the file as they stand. The results go to FILE, line by line; files that are
in it already are not run again, unless ``--again`` asks for them. A file counts as

* *builds* if at least one of its kernels became a Program and none was refused;
* *equals* if it ran to its end, ran a kernel, and compared at least one tensor with its reference, all of
  which held. An assertion on numbers of the host is no such comparison, nor is a printed "passed"; either
  fails the file when it says that something is wrong.

``pip install -r benchmarks/tilelang_requirements.txt`` installs what the references need, in these versions.
"""

from __future__ import annotations

import argparse
import ast
import csv
import inspect
import json
import mmap
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import tilelang_references
from megatile.compat.tilelang.small import Smaller, smaller

SIZES: dict[str, dict[str, Any]] = {
    "amd/example_amd_flash_attn_bwd.py": {"heads": 2, "groups": 1, "seq_len": 128},
    "attention_sink/example_gqa_sink_bwd_bhsd.py": {
        "heads": 64,
        "h": 64,
        "groups": 8,
        "n_ctx": 64,
        "window_size": 64,
    },
    "attention_sink/example_mha_sink_bwd_bhsd.py": {"heads": 64, "h": 64, "n_ctx": 64},
    "cast/example_group_per_split_token_cast_to_fp8.py": {"m": 8192, "n": 128},
    "convolution/example_convolution.py": {"n": 1, "c": 64, "h": 16, "w": 16, "f": 64},
    "convolution/example_convolution_autotune.py": {"n": 1, "c": 64, "h": 16, "w": 16, "f": 64},
    "deepseek_deepgemm/example_deepgemm_fp8_2xAcc.py": {"m": 128, "n": 128, "k": 256},
    "deepseek_mhc/example_mhc_bwd.py": {"seqlen": 32, "iters": 2},
    "deepseek_mhc/example_mhc_post.py": {"n": 8, "h": 512},
    "deepseek_mla/amd/benchmark_mla_decode_amd_tilelang.py": {"heads": 64, "kv_heads": 1, "kv_ctx": 256},
    "deepseek_mla/example_mla_decode.py": {"heads": 64, "kv_heads": 1, "kv_ctx": 4096},
    "deepseek_mla/example_mla_decode_persistent.py": {"heads": 64, "kv_heads": 1, "kv_ctx": 256},
    "deepseek_mla/experimental/example_mla_decode_kv_fp8.py": {"heads": 64, "kv_heads": 1, "kv_ctx": 256},
    "deepseek_v32/fp8_lighting_indexer.py": {"s": 512, "skv": 1024, "average_q_len": 256},
    "deepseek_v32/sparse_mla_fwd_pipelined.py": {
        "s": 32,
        "skv": 512,
        "topk": 128,
        "h": 128,
        "q_start_s_index": 300,
    },
    "deepseek_v32/sparse_mla_fwd_seesaw.py": {
        "s": 32,
        "skv": 512,
        "topk": 128,
        "h": 128,
        "q_start_s_index": 300,
    },
    "deepseek_mhc/example_mhc_pre.py": {"n": 4, "hidden_size": 256, "n0": 4, "n1": 4},
    "dsa_sparse_finetune/indexer_bwd.py": {"s": 1088, "h": 16, "d": 128, "topk": 64},
    "dsa_sparse_finetune/sparse_mla_topk_reducesum.py": {
        "s": 1088,
        "h": 16,
        "d": 512,
        "tail_d": 64,
        "topk": 64,
    },
    "example_allgather_gemm_overlapped.py": {"K": 64},
    "sp_ag_attention_intra_node.py": {
        "batch_size": 2,
        "q_head": 2,
        "kv_head": 1,
        "max_seqlen_q": 1024,
        "max_seqlen_k": 1536,
        "head_dim": 16,
        "seqlens_q": [512, 1024],
        "seqlens_k": [1024, 1536],
        "is_causal": True,
    },
    "example_post_attn_all2all_transpose.py": {"seq_len": 32, "num_heads": 4, "head_dim": 16},
    "flash_decoding/example_gqa_decode.py": {"kv_seqlen": 1024},
    "gemm/example_gemm.py": {"M": 1024, "N": 1024, "K": 1024},
    "gdn/": {"b": 1, "s": 128, "h": 2},
    "hadamard_transform/example_hadamard.py": {"batch": 2, "dim": 1024},
    "kda/": {"b": 1, "s": 128, "h": 2},
    "kda/chunk_intra_token_parallel.py": {"s": 64, "h": 1},
    "online_softmax/online_softmax.py": {"M": 16, "N": 8192},
    "warp_specialize/example_warp_specialize_flashmla.py": {"heads": 128, "kv_heads": 1, "kv_ctx": 256},
}
"""Sizes of single files and of folders, where those above do not fit: ``{"gemm/x.py": {"M": 128}}``."""


def sizes_of(file: str) -> dict[str, Any]:
    return SIZES.get(f"{file.split('/')[0]}/", {}) | SIZES.get(file, {})


STARTS = {
    "dsa_hisa/block_sparse_mqa_fp8.py": "test_fp8_block_sparse_mqa(256, 16, 128, 128, 2, 1)",
    "dsa_hisa/clean_and_maintain_logits.py": "test_clean_and_maintain_logits(256, 256, 1)",
    "dsa_hisa/fp8_block_mean_pooling.py": "test_fp8_block_mean_pooling(512, 128, 128, 1)",
    "dsa_hisa/pool_mqa_fp8.py": "test_pool_mqa_fp8(512, 16, 128, 2, 256, 1)",
    "flash_decoding/example_gqa_decode_varlen_logits.py": "main()",
    "intranode/get_dispatch_layout.py": "tilelang_references.check_dispatch_layout(get_dispatch_layout)",
}
"""What is called of files that only measure when they are run, or with sizes that cannot be found by name."""
USERS = {
    "distributed/reduce_scatter.py": "example_gemm_rs_overlapped.py",
    "distributed/sp_ag_attention_intra_node.py": "example_sp_ag_attention_intra_node.py",
}
"""The example beside a file of kernels that is not started by itself: it is run in its place."""
IN_STEP = ("example_gemm_rs_overlapped.py", "reduce_scatter.py")
"""Files whose ranks read what others copy to them, with no barrier between (theirs is commented out): their
ranks meet where a stream waits for another. That is one of the orders that GPUs may take."""
REMARKS = {
    "blocksparse_attention/example_tilelang_sparse_gqa_decode_varlen_mask.py": "theirs: splits without a "
    "block of the mask count with weight 1 when they stand before the last one",
    "deepseek_mla/example_mla_decode_ws.py": "theirs: no barrier between that write and that read",
    "deepseek_nsa/example_tilelang_nsa_fwd_varlen.py": "theirs: blocks along z do the same work",
    "deepseek_v32/sparse_mla_fwd_pipelined.py": "theirs: no barrier between that write and that read",
    "dsa_sparse_finetune/indexer_bwd.py": "theirs: atomics add to a new tensor that nothing has cleared",
    "dsa_sparse_finetune/sparse_mla_bwd.py": "theirs: atomics add to a new tensor that nothing has cleared",
    "flash_decoding/example_gqa_decode_varlen_logits.py": "theirs: blocks after a sequence's end are read",
    "gdn/example_chunk_delta_h.py": "theirs: without an initial state the tile is never written",
    "gdn/example_chunk_o_bwd.py": "theirs: `G_last_local` is cleared and never set",
    "example_allgather_gemm_overlapped.py": "theirs: f16 products are to have equal bits (rtol=1e-6)",
    "example_all_to_all.py": "theirs: every rank writes from row 0 of the receiver",
    "example_summa.py": "theirs: its first step multiplies tiles of different parts of K",
    "example_gemm_rs_overlapped.py": "theirs: no barrier between the ranks' copies and the sum",
    "reduce_scatter.py": "theirs: no barrier between the ranks' copies and the sum",
}
"""Whose a difference is, where it was found."""
RATIOS = {"calc_diff": 1e-3, "get_err_ratio": 5e-3}
"""Functions of examples that return how far a tensor is from another, and how far it may be."""
PRINTERS = (*RATIOS, "assert_similar", "assert_tensors_similar", "compare_tensors", "print_diff")
"""Functions of examples that may only print the difference of two tensors. They are judged by their ``eps``
of similarity, by `RATIOS`, or as ``assert_allclose`` judges (a hundredth of the elements may differ by more
than a hundredth)."""


class Example(Smaller):
    """Counts the comparisons that are made, too."""

    def visit_Call(self, node: ast.Call) -> Any:
        super().visit_Call(node)
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name == "do_bench":  # time is not the question here
            return ast.copy_location(ast.Constant(1.0), node)
        if name in PRINTERS:
            return ast.copy_location(
                ast.Call(ast.Name("megatile_printed", ast.Load()), [node.func, *node.args], node.keywords),
                node,
            )
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        test = ast.Call(ast.Name("megatile_compared", ast.Load()), [node.test], [])
        return ast.copy_location(ast.Assert(ast.copy_location(test, node.test), node.msg), node)


# --- one file, in its own process -------------------------------------------------------------------


class Record:
    """What happened while a file ran, in all of its processes."""

    NAMES = ("built", "refused", "ran", "held", "failed")

    def __init__(self) -> None:
        self.counts = np.frombuffer(mmap.mmap(-1, 8 * len(self.NAMES)), np.int64)

    def add(self, name: str) -> None:
        self.counts[self.NAMES.index(name)] += 1

    def as_dict(self) -> dict[str, int]:
        return dict(zip(self.NAMES, self.counts.tolist(), strict=True))

    def compared(self, truth: Any) -> Any:
        self.add("held" if bool(truth) else "failed")
        return truth

    def asserted(self, truth: Any) -> Any:
        """An assertion counts where it asks tensors; the functions that compare them count for themselves."""
        return self.compared(truth) if hasattr(truth, "dtype") or not bool(truth) else truth

    def printed(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        from megatile.compat.tilelang.arrays import MismatchError, assert_close

        if function.__name__ in RATIOS:
            result = function(*arguments, **keywords)
            self.compared(result < RATIOS[function.__name__])
            return result
        found, wanted = [a for a in arguments if hasattr(a, "shape")][:2]
        bound = inspect.signature(function).bind(*arguments, **keywords)
        bound.apply_defaults()
        if "eps" in bound.arguments:
            x, y = found.double(), wanted.double()
            self.compared(abs(1 - 2 * (x * y).sum() / (x * x + y * y).sum()) <= bound.arguments["eps"])
            return function(*arguments, **keywords)
        try:
            self.compared(assert_close(found, wanted, 1e-2, 1e-2, 0.01))
        except MismatchError:
            self.compared(False)
        return function(*arguments, **keywords)

    def print(self, *values: Any, **keywords: Any) -> None:
        """Files that say themselves that they failed: "verification FAILED"."""
        text = " ".join(v for v in values if isinstance(v, str))
        if len(text) < 200 and re.search(r"\bfail|mismatch(?!: \d)|incorrect|✗|❌", text, re.I):
            self.add("failed")
        print(*values, **keywords)

    def counting(self, function: Any, raises: bool) -> Any:
        def counted(*arguments: Any, **keywords: Any) -> Any:
            try:
                result = function(*arguments, **keywords)
            except AssertionError:
                self.add("failed")
                raise
            return self.compared(True) and result if raises else self.compared(result)

        return counted


INSTALLED = ExitStack()
"""Holds the answer to ``import tilelang`` until this process ends."""


def watch(record: Record, path: Path) -> None:
    """Count kernels (where another file runs for ``path``, those of ``path`` only) and comparisons."""
    import torch

    from megatile.compat.tilelang import arrays, kernel, modules, source, takeover

    build = source.Source.build

    def counted_build(self: Any, *arguments: Any) -> Any:
        try:
            built = build(self, *arguments)
        except Exception:
            record.add("refused")
            raise
        if start_of(USERS, path) is None or self.function.__code__.co_filename == str(path):
            record.add("built")
        return built

    source.Source.build = counted_build
    execute = kernel.execute

    def counted_execute(*arguments: Any) -> None:
        execute(*arguments)
        record.add("ran")

    kernel.execute = counted_execute
    close = record.counting(arrays.assert_close, True)
    kernel.assert_close = arrays.assert_close = modules.assert_close = close
    torch.testing.assert_close = record.counting(torch.testing.assert_close, True)
    torch.allclose = record.counting(torch.allclose, False)
    torch.equal = record.counting(torch.equal, False)
    quick = lambda *_, **__: 1.0  # noqa: E731  (time is not the question here)
    kernel.Kernel.get_kernel_source = lambda *_: ""  # nor how the C looks
    kernel.do_bench = modules.do_bench = kernel.Profiler.do_bench = quick
    modules.CONTENTS["tilelang"]["do_bench"] = modules.CONTENTS["tilelang.profiler"]["do_bench"] = quick
    INSTALLED.enter_context(takeover.installed())
    tilelang_references.install()


def preload() -> None:
    """Import what every file needs, once."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MEGATILE_TUNE="1")
    warnings.simplefilter("ignore")
    import torch
    import torch.nn.functional
    import torch.testing

    import megatile.compat.tilelang.modules  # noqa: F401
    from megatile.hda import machine

    torch.set_num_threads(1)
    machine(os.environ.get("MEGATILE_MACHINE", "dgx-h100"))


def run_one(path: Path, sizes: dict[str, Any]) -> dict[str, Any]:
    record = Record()
    os.chdir(path.parent)
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    sys.argv = [str(path)]
    watch(record, path)
    ranks = 4 if "init_distributed(" in path.read_text() else 1
    if ranks == 1:
        error = run_here(path, sizes, record)
        return record.as_dict() | {"error": error}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEGATILE_RENDEZVOUS"] = f"file://{folder}/ranks"
        children = []
        for rank in range(ranks):
            children.append(os.fork())
            if not children[-1]:
                names = (
                    ("RANK", rank),
                    ("LOCAL_RANK", rank),
                    ("WORLD_SIZE", ranks),
                    ("LOCAL_WORLD_SIZE", ranks),
                )
                os.environ.update({name: str(value) for name, value in names})
                Path(folder, f"error{rank}").write_text(run_here(path, sizes, record))
                os._exit(0)
        for child in children:
            os.waitpid(child, 0)
        pages = [Path(folder, f"error{rank}") for rank in range(ranks)]
        errors = [page.read_text() if page.exists() else "a rank was ended" for page in pages]
    return record.as_dict() | {"error": next(filter(None, errors), "")}


def start_of(table: dict[str, str], path: Path) -> str | None:
    return table.get("/".join(path.parts[-2:]))


def run_here(path: Path, sizes: dict[str, Any], record: Record) -> str:
    """Run a file as a script, or from the function that its own test calls; what went wrong."""
    from megatile.compat.tilelang import cpu_torch, modules, ranks

    start, user = start_of(STARTS, path), start_of(USERS, path)
    if path.name in IN_STEP:
        cpu_torch._Stream.wait_stream = lambda *_: ranks.barrier_all()  # type: ignore[method-assign]
    path = path.parent / user if user else path
    main = type(sys)("example" if start else "__main__")
    main.__dict__.update(
        __file__=str(path), megatile_compared=record.asserted, megatile_printed=record.printed,
        print=record.print, tilelang_references=tilelang_references,
    )  # fmt: skip
    sys.modules[main.__name__] = main
    modules.set_random_seed(0)
    try:
        exec(smaller(path, sizes, Example)[0], main.__dict__)
        if start:
            exec(start, main.__dict__)
    except SystemExit as stop:
        return "" if stop.code in (None, 0) else f"exits with {stop.code}"
    except BaseException as problem:
        if os.environ.get("TRACE"):
            traceback.print_exc()
        return _sentence(problem)
    return ""


def _sentence(problem: BaseException) -> str:
    message = getattr(problem, "message", None) or str(problem).strip().split("\n")[0]
    message = re.sub(r" \[called at [^\]]*\]", "", message)
    place = getattr(problem, "place", None)
    line = f" (line {place.line})" if place is not None and getattr(place, "line", None) else ""
    if not line and problem.__traceback__ is not None:
        last = traceback.extract_tb(problem.__traceback__)[-1]
        line = f" ({Path(last.filename).name}:{last.lineno})"
    return f"{type(problem).__name__}: {message}{line}"[:300]


# --- all files ----------------------------------------------------------------------------------------


def example_files(checkout: Path, below: str) -> list[Path]:
    """The example files that hold a kernel."""
    found = []
    for path in sorted((checkout / below).rglob("*.py")):
        if re.search(r"\b\w+\.(Kernel|ClusterKernel)\(", path.read_text(errors="ignore")):
            found.append(path)
    return found


def start(path: Path, root: Path, seconds: int, memory: int, page: Path) -> int:
    """A child that runs one file and writes what happened to ``page``; imports are done before it is made."""
    child = os.fork()
    if child:
        return child
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (memory << 30, memory << 30))
    output = os.open(os.environ.get("TRACE") or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGXCPU, _out_of_time)
    page.write_text(json.dumps(run_one(path, sizes_of(str(path.relative_to(root))))))
    sys.stdout.flush()
    os._exit(0)


def _out_of_time(*_: Any) -> None:
    raise TimeoutError("more CPU time than the limit")


def finished(path: Path, root: Path, status: int, seconds: int, page: Path) -> dict[str, Any]:
    row = {"file": str(path.relative_to(root)), "built": 0, "refused": 0, "ran": 0, "held": 0, "failed": 0}
    if page.exists() and page.stat().st_size:
        return row | json.loads(page.read_text())
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    late = number in (signal.SIGKILL, signal.SIGXCPU)
    return row | {"error": f"more than {seconds} s of CPU time" if late else f"ended by signal {number}"}


def run_all(
    paths: list[Path], root: Path, seconds: int, memory: int, workers: int
) -> Iterator[dict[str, Any]]:
    """The results, as they come; ``workers`` files at a time."""
    running: dict[int, tuple[Path, Path]] = {}
    pending = list(paths)
    with tempfile.TemporaryDirectory() as folder:
        while pending or running:
            while pending and len(running) < workers:
                path, page = pending.pop(0), Path(folder, f"{len(pending)}.json")
                running[start(path, root, seconds, memory, page)] = path, page
            child, status = os.wait()
            path, page = running.pop(child)
            yield finished(path, root, status, seconds, page)


def builds(row: dict[str, Any]) -> bool:
    return row["built"] > 0 and not row["refused"]


def equals(row: dict[str, Any]) -> bool:
    return builds(row) and row["ran"] > 0 and row["held"] > 0 and not row["failed"] and not row["error"]


def reason(row: dict[str, Any]) -> str:
    remark = REMARKS.get(row["file"])
    return " — ".join(filter(None, (_reason(row), f"*{remark}*" if remark else "")))


def _reason(row: dict[str, Any]) -> str:
    if equals(row):
        return ""
    if row["error"]:
        return str(row["error"])
    if row["failed"]:
        return f"{row['failed']} comparisons do not hold"
    return (
        "runs, and compares nothing with a reference" if row["ran"] else "runs no kernel when it is started"
    )


def write_table(page: Path, title: str, rows: list[dict[str, Any]]) -> None:
    """Write the table beside a page, and its counts between ``<!-- title -->`` and ``<!-- end -->``."""
    name = f"{title}_examples.csv"
    with (page.parent.parent / "tables" / name).open("w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(["file", "builds", "equals", "barrier added", "otherwise"])
        for row in sorted(rows, key=lambda r: r["file"]):
            yes = ["yes" if truth else "no" for truth in (builds(row), equals(row))]
            barrier = "yes" if Path(row["file"]).name in IN_STEP else "no"
            table.writerow([row["file"], *yes, barrier, reason(row).replace("\n", " ")])
    total, built, equal = len(rows), sum(map(builds, rows)), sum(map(equals, rows))
    new = (
        f"{built} of {total} files build, {equal} equal their own reference. "
        f"Every file with its reason: [{name}](../tables/{name})."
    )
    pattern = re.compile(rf"(<!-- {title} -->\n).*?(<!-- end -->)", re.S)
    page.write_text(pattern.sub(lambda m: f"{m[1]}{new}\n{m[2]}", page.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", nargs="?", type=Path)
    parser.add_argument("--below", default="examples")
    parser.add_argument("--only", default="")
    parser.add_argument("--results", type=Path, default=Path("tilelang_examples.jsonl"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--title", default="tilelang")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--memory", type=int, default=8, help="GiB")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.checkout is None:
        parser.error("give the path of a checkout")
    root = (options.checkout / options.below).resolve()
    results: dict[str, dict[str, Any]] = {}
    if options.results.exists():
        results = {row["file"]: row for row in map(json.loads, options.results.read_text().splitlines())}
    files = example_files(options.checkout.resolve(), options.below)
    wanted = [p for p in files if re.search(options.only, str(p.relative_to(root)))]
    pending = [p for p in wanted if options.again or str(p.relative_to(root)) not in results]
    preload()
    with options.results.open("a") as out:
        for row in run_all(pending, root, options.seconds, options.memory, options.workers):
            results[row["file"]] = row
            out.write(json.dumps(row) + "\n")
            out.flush()
            word = "equals" if equals(row) else "builds" if builds(row) else "-"
            print(f"{word:7}{row['file']}: {reason(row)}", flush=True)
    rows = [results[str(p.relative_to(root))] for p in files if str(p.relative_to(root)) in results]
    print(f"{sum(map(builds, rows))} of {len(rows)} build, {sum(map(equals, rows))} equal")
    if options.table:
        write_table(options.table, options.title, rows)


if __name__ == "__main__":
    main()
