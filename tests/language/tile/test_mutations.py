"""Examples with one mistake each: the run must say what is wrong, in the right words."""

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import pytest
from tests.language.tile.language_examples import FOLDER

from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramWarning

RACE = r"data race on '{}'"
UNWRITTEN = r"'{}' is read before it is written"

MUTATIONS = [
    # (what, example, text, instead of it, message)
    ("wrong-origin", "20_vector_add", "T.copy(C[bx * tile], a)", "T.copy(C[0], a)", RACE.format("C")),
    ("wrong-origin-read", "20_vector_add", "T.copy(b, B[bx * tile])", "T.copy(b, B[bx * tile * 2])", "entirely outside"),
    ("copy-reversed", "20_vector_add", "T.copy(a, A[bx * tile])", "T.copy(A[bx * tile], a)",
     "'a' is read before it is written.*destination first"),
    ("copy-forgotten", "20_vector_add", "            T.copy(b, B[bx * tile])\n", "", UNWRITTEN.format("b")),
    ("not-cleared", "21_gemm_block", "            T.clear(c)\n", "", UNWRITTEN.format("c")),
    ("swapped-coordinates", "21_gemm_block", "T.copy(C[by * bM, bx * bN], c)", "T.copy(C[bx * bM, by * bN], c)",
     "of dimension 0 of 'C' is never written"),
    ("one-coordinate", "21_gemm_block", "T.copy(C[by * bM, bx * bN], c)", "T.copy(C[by * bM, 0], c)", RACE.format("C")),
    ("too-many-steps", "21_gemm_block", "T.ceildiv(K, bK), num", "T.ceildiv(K, bK) + 1, num", "entirely outside"),
    ("wrong-inner-extent", "21_gemm_block", "b = T.alloc((bK, bN)", "b = T.alloc((bK * 2, bN)", "inner extents differ"),
    ("split-not-reduced", "22_gemm_split_k", "                T.allreduce(T.view(c))\n", "                pass\n",
     "copies of 'c' differ.*T.allreduce"),
    ("accumulator-reduced-in-loop", "22_gemm_split_k", "T.gemm(my_a, my_b, my_c)",
     "T.gemm(my_a, my_b, my_c)\n                    T.allreduce(my_c)", "reduces an accumulator carried by loop 'k'"),
    ("scope-too-small", "22_gemm_split_k", "            with T.Scale(\"warpgroup\"):\n                T.allreduce(T.view(c))",
     "            with T.Scale(\"warpgroup\"):\n                with T.Scale(\"warp\"):\n                    T.allreduce(T.view(c, layout=T.Replica))",
     "copies of 'c' differ"),
    ("wrong-layout", "22_gemm_split_k", "my_b = T.view(b, layout=T.FullRow)", "my_b = T.view(b, layout=T.FullCol)",
     "inner extents differ"),
    ("shared-accumulator", "22_gemm_split_k", "                T.allreduce(T.view(c))\n", "                T.barrier()\n",
     "copies of 'c' differ"),
    ("no-copy-to-reduce", "22_gemm_split_k", "my_c = T.view(c, layout=T.Replica)", "my_c = c", "has no layout, and no earlier view"),
    ("one-accumulator-for-two", "22_gemm_split_k", "my_c = T.view(c, layout=T.Replica)",
     "my_c = T.view(c, layout=lambda i, j: 0 * i)", "T.gemm: shapes .* do not give"),
    ("tile-of-a-finished-block", "24_gemm_tensor_parallel", "                T.allreduce(C_global)",
     "                T.copy(C_global[0, 0], C_local)", "'C_local' is a tile of scale 'block'|that has finished"),
    ("devices-not-reduced", "24_gemm_tensor_parallel", "                T.allreduce(C_global)", "                pass",
     "copies of 'C' differ at the end.*reduction is missing"),
    ("collective-under-if", "24_gemm_tensor_parallel", "                T.allreduce(C_global)",
     "                if dev_id < 2:\n                    T.allreduce(C_global)",
     r"T.allreduce is not reached by device 2, 3"),
    ("maximum-not-started", "25_softmax", "            T.fill(top, -T.infinity(\"f32\"))\n", "", UNWRITTEN.format("top|before")),
    ("wrong-reduction-axis", "25_softmax", "T.reduce_max(x, top, dim=1", "T.reduce_max(x, top, dim=0", "but the result is"),
    ("over-the-edge", "25_softmax", "T.copy(x, X[bx * bM, k * bN])\n                for i, j in T.Parallel(bM, bN):\n                    x[i, j] = T.if",
     "T.copy(x, X[bx * bM : bx * bM + bM, k * bN : k * bN + bN])\n                for i, j in T.Parallel(bM, bN):\n                    x[i, j] = T.if",
     "is out of bounds.*an anchor"),
    ("iterations-depend", "26_rmsnorm", "x[i, j] = x[i, j] * factor[i] * weight[j]",
     "x[i, j] = x[i, (j + 1) % N] * factor[i] * weight[j]", r"of T.Parallel reads an element of 'x' that iteration"),
    ("iterations-collide", "26_rmsnorm", "factor[i] = T.rsqrt(factor[i] / N + eps)", "factor[i // 2] = T.rsqrt(factor[i] / N + eps)",
     "several iterations of T.Parallel write 'factor|of T.Parallel (reads|also writes) an element of 'factor'"),
    ("pipeline-conflict", "27_flash_attention", "T.copy(weight, score)",
     "T.copy(weight, score)\n                T.copy(K[bz, by // group, k * bN, 0], value)", "stages of pipelined loop 'k' conflict"),
    ("atomic-replaced", "28_flash_attention_backward", "T.atomic_add(dQ[bz, by, m * bM + i, j], dq[i, j])",
     "dQ[bz, by, m * bM + i, j] = dQ[bz, by, m * bM + i, j] + dq[i, j]", RACE.format("dQ")),
    ("phases-merged", "28_flash_attention_backward", "            with T.Scale(\"block\"):\n                key", "                key",
     "data race on '(Delta|dQ)'"),
    ("maximum-dropped", "29_flash_mla", "T.copy(scores_max_prev, scores_max)\n",
     "T.copy(scores_max_prev, scores_max)\n                    T.fill(scores_max, -T.infinity(accum_dtype))\n",
     "running maximum in 'scores_max' is dropped: it is filled again after it was saved in 'scores_max_prev'"),
    ("merge-without-logarithm", "29_flash_mla", "logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale",
     "logsum[i] = logsum[i] * 1.0", "which is not a logarithm"),
    ("exchange-of-the-wrong-columns", "29_flash_mla", "everywhere[:, wg_id * width : (wg_id + 1) * width], mine, dst=peer",
     "everywhere[:, 0:width], mine, dst=peer", "data race on 'everywhere'|copies of 'acc_s_cast' differ|'acc_s_cast' is read before"),
    ("barrier-dropped-ring", "30_allgather_gemm", "                        T.copy(my_C[(r - s) % n * rows + by * bM, bx * bN], c)\n                    T.barrier()",
     "                        T.copy(my_C[(r - s) % n * rows + by * bM, bx * bN], c)", "data race on 'ring'"),
    ("barrier-dropped-start", "30_allgather_gemm", "T.copy(ring[0], my_A)\n                T.barrier()\n",
     "T.copy(ring[1], my_A)\n", "data race on 'ring'"),
    ("slot-not-alternated", "30_allgather_gemm", "T.copy(ring[(s + 1) % 2], ring[s % 2], dst=(r + 1) % n)",
     "T.copy(ring[s % 2], ring[s % 2], dst=(r + 1) % n)", RACE.format("ring")),
    ("barrier-dropped-sum", "31_gemm_reduce_scatter", "                        T.copy(arriving[(s + 1) % 2], term, dst=(r + 1) % n)\n                    T.barrier()\n",
     "                        T.copy(arriving[(s + 1) % 2], term, dst=(r + 1) % n)\n", "data race on 'arriving'"),
    ("no-such-peer", "31_gemm_reduce_scatter", "dst=(r + 1) % n", "dst=r + 1", "there is no device 4"),
    ("wrong-axis", "32_summa", "T.broadcast(b_, root=k, axis=0)", "T.broadcast(b_, root=k, axis=2)", "axis=2: scale 'device' has 2"),
    ("barrier-dropped-skew", "33_cannon", "dst=(row - col) % p, axis=0)\n                T.barrier()\n", "dst=(row - col) % p, axis=0)\n",
     "data race on '(a|b_)'"),
    ("put-to-itself-forgotten", "33_cannon", "T.copy(a[0], my_A, dst=(col - row) % p, axis=1)", "T.copy(a[1], my_A, dst=(col - row) % p, axis=1)",
     "'a' is read before it is written"),
    ("barrier-dropped-keys", "34_ring_attention", "                        T.copy(total[by, bx * bM], part)\n                    T.barrier()\n",
     "                        T.copy(total[by, bx * bM], part)\n", "data race on '(keys|values)'"),
    ("count-beyond-bound", "35_moe", "sent = T.read_scalar(count[p], bound=capacity)", "sent = T.read_scalar(count[p], bound=1)",
     "T.read_scalar gives"),
    ("barrier-dropped-inbox", "35_moe", "dst=p)\n                T.barrier()\n                for p in range(n):\n                    got",
     "dst=p)\n                for p in range(n):\n                    got", "data race on 'inbox'"),
    ("uneven-participation", "35_moe", "                T.all_to_all(expected, count)", "                if r > 0:\n                    T.all_to_all(expected, count)",
     "T.all_to_all is not reached by device 0"),
    ("barrier-dropped-shift", "36_shift", "                T.barrier()\n", "", "data race on 'remote_B'"),
    ("not-waited-for-empty", "37_warp_specialisation", "                        if k >= slots:\n                            T.wait(empty[k % slots], k // slots)\n", "",
     "data race on '[ab]'"),
    ("signal-before-copy", "37_warp_specialisation", "                        T.copy(b[k % slots, 0:bK, 0:bN], B[k * bK, bx * bN])\n                        T.signal(full[k % slots], dst=1)",
     "                        T.signal(full[k % slots], dst=1)\n                        T.copy(b[k % slots, 0:bK, 0:bN], B[k * bK, bx * bN])", "data race on 'b'"),
    ("signal-forgotten", "37_warp_specialisation", "                        T.signal(empty[k % slots], dst=0)\n", "", "deadlock: .*waits at T.wait"),
    ("halo-not-awaited", "38_stencil", "dst=y + 1, axis=1)\n                    T.barrier()\n", "dst=y + 1, axis=1)\n", RACE.format("u")),
    ("halo-in-one-version", "38_stencil", "now, new = t % 2, (t + 1) % 2", "now, new = 0, 0", "of T.Parallel reads an element of 'u'|data race on 'u'"),
    ("neighbour-outside", "38_stencil", "                    if x > 0:\n                        T.copy(u[now, 1 : h + 1, w + 1]", "                    if x >= 0:\n                        T.copy(u[now, 1 : h + 1, w + 1]",
     r"there is no (block|core) -1"),
    ("cluster-not-cleared", "23_gemm_cluster", "                T.clear(c)\n", "", UNWRITTEN.format("c")),
    ("cluster-one-column", "23_gemm_cluster", "T.copy(C[cy * tM, cx * tN], T.view", "T.copy(C[0, cx * tN], T.view", RACE.format("C")),
    ("cluster-load-forgotten", "23_gemm_cluster", "                        T.copy(T.view(b, layout=T.FullCol), B[k * tK, cx * tN])\n", "", UNWRITTEN.format("b")),
    ("weight-not-loaded", "26_rmsnorm", "            T.copy(weight, W)\n", "", UNWRITTEN.format("weight")),
    ("maximum-not-filled", "27_flash_attention", "            T.fill(top, minus_infinity)\n", "", "'(top|before)' is read before it is written"),
    ("sum-not-started", "32_summa", "                T.clear(c)\n", "", UNWRITTEN.format("c")),
    ("no-such-root", "32_summa", "T.broadcast(a, root=k, axis=1)", "T.broadcast(a, root=k + 1, axis=1)", "T.broadcast: root 2 of 2 units"),
    ("last-device-has-no-next", "36_shift", "dst=(dev_id + 1) % dev_num", "dst=dev_id + 1", "there is no device"),
    ("halo-not-cleared", "38_stencil", "                T.clear(u)\n", "", UNWRITTEN.format("u")),
    ("ticket-not-atomic", "39_ticket_queue", "row = T.atomic_add(ticket[0], 1, return_prev=True)",
     "row = T.read_scalar(ticket[0])\n                ticket[0] = row + 1", RACE.format("ticket")),
    ("one-ticket-too-many", "39_ticket_queue", "if row >= rows:", "if row > rows:", "is out of bounds: dimension 0 has 40 elements"),
    ("total-not-cleared", "39_ticket_queue", "                T.clear(total)\n", "", UNWRITTEN.format("total")),
]  # fmt: skip


def mutated(example: str, text: str, instead: str, folder: Path) -> ModuleType:
    source = (FOLDER / f"{example}.py").read_text(encoding="utf-8")
    notes, code = source[: (end := source.index('"""', 3) + 3)], source[end:]
    assert text in code, f"{example} no longer contains {text!r}"
    path = folder / "mutated.py"
    path.write_text(notes + code.replace(text, instead, 1), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mutated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_enough() -> None:
    assert len(MUTATIONS) >= 60
    assert len({example for _, example, *_ in MUTATIONS}) >= 20


SCHEDULES = [("round-robin", 0), ("adversarial", 0), ("random", 0), ("random", 1), ("random", 2)]


@pytest.mark.parametrize(
    ("what", "example", "text", "instead", "message"), MUTATIONS, ids=[f"{m[1]}-{m[0]}" for m in MUTATIONS]
)
def test_a_mistake_is_named_under_every_schedule(
    what: str, example: str, text: str, instead: str, message: str, tmp_path: Path
) -> None:
    module = mutated(example, text, instead, tmp_path)
    for schedule, seed in SCHEDULES:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ProgramWarning)
            with pytest.raises((MegatileError, ProgramWarning), match=f"(?s){message}") as caught:
                module.main(schedule=schedule, seed=seed, strict_bounds=True)
        if isinstance(caught.value, MegatileError):
            assert caught.value.advice
            assert caught.value.place is not None and caught.value.place.file == str(tmp_path / "mutated.py")
