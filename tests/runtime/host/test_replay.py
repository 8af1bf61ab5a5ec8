"""What an op log tells is enough to compute everything again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.runtime.host.replay_cases import double

import megatile as mt
from megatile.cli.bench import load
from megatile.runtime.host.oplog import ReplayError
from megatile.runtime.host.placement import DPPolicy


def agree(torch, tensors) -> None:
    """A replay, from memory and from text, gives what the tensors hold."""
    again = json.loads(json.dumps(torch.op_log.entries))
    for found in (mt.replay(torch.op_log), mt.replay(again, torch.op_log.inputs)):
        for tensor in tensors:
            np.testing.assert_array_equal(found[tensor.name], tensor.contents(), err_msg=tensor.name)


def largest_scores(q, k, out, n, d, tl):
    a = tl.load(q, shape=(n, d), dtype="f16")
    b = tl.load(k, shape=(d, n), dtype="f16")
    tl.store(out, tl.max(tl.softmax(tl.dot(a, b)), axis=1))


def shift(x, n, tl):
    mine = x + tl.rank * n * 2
    tl.send(dir="E", src=tl.load(mine, shape=(n,), dtype="f16"))
    tl.store(mine, tl.recv(dir="W", shape=(n,), dtype="f16") * 2.0 + 1.0)


def test_kernels_with_queues_reductions_and_products() -> None:
    with mt.host("ahbm", log=True) as torch:
        rng = np.random.default_rng(0)
        q = torch.tensor(rng.standard_normal((4, 8)), dtype="f16", name="q")
        k = torch.tensor(rng.standard_normal((8, 4)), dtype="f16", name="k")
        out = torch.zeros(4, name="out")
        torch.launch("scores", largest_scores, q, k, out, 4, 8)
        policy = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)
        x = torch.empty((4, 16), dp=policy, name="x").copy_(rng.standard_normal((4, 16)))
        torch.launch("shift", shift, x, 16, topology="ring_1d")
        x[1, 3] = 9
        y = x.clone()
        torch.launch("shift", shift, y, 16, topology="ring_1d")
        agree(torch, (q, k, out, x, y))
        ops = [e for e in torch.op_log.entries if e["kind"] == "op"]
    sends = [e for e in ops if e["op"] == "send"]
    assert {e["direction"] for e in sends} == {"W"}, "as the receiver calls it"
    assert [e["message"] for e in sends[:4]] == [0, 0, 0, 0]
    assert all(e["nbytes"] == 32 for e in sends)
    assert all(e["start_ps"] < e["end_ps"] for e in ops if e["op"] not in ("receive",))
    loads = [e for e in ops if e["op"] == "copy" and e["reads"][0].get("address")]
    assert torch.memory.layout.decode(loads[0]["reads"][0]["address"]).component == "hbm"


@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100"])
def test_collectives(machine: str, tmp_path) -> None:
    with mt.host(machine, algorithm="ring" if machine != "ahbm" else None, log=True) as torch:
        size, kept = torch.shape.devices, []
        dist = torch.distributed

        def worker(rank: int) -> None:
            torch.accelerator.set_device_index(rank)
            dist.init_process_group()
            rng = np.random.default_rng(rank)
            x = torch.tensor(rng.integers(0, 9, (size, 3)), dtype="f32", name=f"x{rank}")
            y, z = (torch.zeros((size, 3), dtype="f32", name=f"{n}{rank}") for n in "yz")
            w = torch.zeros(3, dtype="f32", name=f"w{rank}")
            dist.all_reduce(x, "max")
            if machine == "ahbm":
                dist.all_to_all_single(y, x)
                dist.broadcast(z.copy_(x), 1)
            dist.send(w, 1) if rank == 0 else dist.recv(w, 0) if rank == 1 else None
            kept.extend((x, y, z, w))

        torch.multiprocessing.spawn(worker, nprocs=size)
        agree(torch, kept)
        path = torch.op_log.write(tmp_path / "ops.jsonl")
        found = mt.replay(path, torch.op_log.inputs)
        np.testing.assert_array_equal(found["x1"], kept[4].contents())


def test_the_bench_of_a_collective_kernel() -> None:
    with mt.host("ahbm", "ccl.yaml", algorithm="tree_allreduce", sips=3, log=True) as torch:
        load("ccl_allreduce").run(torch)
        found = mt.replay(torch.op_log)
    assert {v[0, 0] for v in found.values()} == {6}


def test_a_changed_log_gives_something_else() -> None:
    with mt.host("ahbm", log=True) as torch:
        x = torch.tensor(np.ones(4), dtype="f16", name="x")
        torch.launch("double", double, x)
        entries = json.loads(json.dumps(torch.op_log.entries))
    (product,) = [e for e in entries if e.get("op") == "mul"]
    product["op"] = "add"
    assert mt.replay(entries, {"x": np.ones(4)})["x"].tolist() == [3] * 4


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (None, "is not a log"),
        ([{"kind": "nothing"}], "no entries of kind 'nothing'"),
        ([{"kind": "log", "schema": "other/1"}], "is not megatile.oplog/1"),
        ([{"kind": "op", "op": "add", "sequence": 3}], "cannot be followed at add 3"),
        ([{"kind": "write", "tensor": "x", "number": 0}], "the input 'x' is missing"),
    ],
)
def test_logs_that_cannot_be_followed(entries, message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        mt.replay(entries)


def test_files_that_are_not_logs(tmp_path) -> None:
    for text, message in (
        ("{", "is not a log"),
        ("{}\n", "is not a log of schema"),
        ("", "is not a log of schema"),
    ):
        path = tmp_path / "a.jsonl"
        path.write_text(text)
        with pytest.raises(ReplayError, match=message):
            mt.replay(path)
    with pytest.raises(ReplayError):
        mt.replay(tmp_path / "missing.jsonl")


def test_a_divided_model(tmp_path) -> None:
    """Lookups, changes of layout, reductions and parts of tensors are in the log too."""
    import megatile.parallel as tp

    kept = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        tp.initialize_model_parallel(2, torch=torch)
        embedding = tp.VocabParallelEmbedding(8, 16, dtype="f32", torch=torch)
        up = tp.ColumnParallelLinear(16, 32, bias=True, dtype="f32", torch=torch, gather_output=True)
        for number, tensor in enumerate((embedding.weight, up.weight, up.bias)):
            tensor.copy_(np.random.default_rng(10 * rank + number).standard_normal(tensor.shape))
        y = tp.rms_norm(up(embedding([3, 0, 7, 3])), torch.ones(32, dtype="f32"))
        y.view(-1).narrow(0, 5, 3).mul_(2.0)
        for tensor in (y, y.t(), y.sum(0), (y * y).mean()):
            kept[tensor.home[0].name] = tensor.home[0]

    with mt.host("ahbm", log=True) as torch:
        torch.multiprocessing.spawn(worker, nprocs=2)
        log = torch.op_log
        again = mt.replay(log.write(tmp_path / "ops.jsonl"), log.inputs)
        for name, tensor in kept.items():
            np.testing.assert_array_equal(again[name], tensor.contents(), err_msg=name)
