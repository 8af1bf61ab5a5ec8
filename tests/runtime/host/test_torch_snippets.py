"""Snippets in the form of torch's documentation and tutorials run as they are, but for the imports.

Each is the body of ``run(rank, size)`` on ``size`` ranks, or a whole script that launches its ranks itself.
"""

from __future__ import annotations

import os
import textwrap
from typing import Any

import pytest

import megatile as mt
import megatile.parallel as parallel

RANKS: dict[str, tuple[int, str]] = {}
"""By name: how many ranks, and the body."""
SCRIPTS: dict[str, str] = {}


def snippet(name: str, size: int, text: str) -> None:
    RANKS[name] = (size, textwrap.dedent(text))


def script(name: str, text: str) -> None:
    SCRIPTS[name] = textwrap.dedent(text)


# collectives

snippet(
    "all_gather",
    2,
    """
    device = torch.device(f"cuda:{rank}")
    tensor_list = [torch.zeros(2, dtype=torch.int64, device=device) for _ in range(2)]
    tensor = torch.arange(2, dtype=torch.int64, device=device) + 1 + 2 * rank
    dist.all_gather(tensor_list, tensor)
    assert [t.tolist() for t in tensor_list] == [[1, 2], [3, 4]]
""",
)
snippet(
    "all_gather_into_tensor",
    2,
    """
    device = torch.device(f"cuda:{rank}")
    tensor_in = torch.arange(2, dtype=torch.int64, device=device) + 1 + 2 * rank
    tensor_out = torch.zeros(size * 2, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(tensor_out, tensor_in)
    assert tensor_out.tolist() == [1, 2, 3, 4]
    tensor_out2 = torch.zeros(size, 2, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(tensor_out2, tensor_in)
    assert tensor_out2.tolist() == [[1, 2], [3, 4]]
""",
)
snippet(
    "all_reduce",
    2,
    """
    device = torch.device(f"cuda:{rank}")
    tensor = torch.arange(2, dtype=torch.int64, device=device) + 1 + 2 * rank
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    assert tensor.tolist() == [4, 6]
""",
)
snippet(
    "all_reduce on a side stream",
    2,
    """
    output = torch.tensor([rank]).cuda(rank)
    s = torch.cuda.Stream()
    handle = dist.all_reduce(output, async_op=True)
    # Wait ensures the operation is enqueued, but not necessarily complete.
    handle.wait()
    # Using result on non-default stream.
    with torch.cuda.stream(s):
        s.wait_stream(torch.cuda.default_stream())
        output.add_(100)
    if rank == 0:
        assert output.item() == 101
""",
)
snippet(
    "events time a collective",
    2,
    """
    torch.cuda.set_device(rank)
    x = torch.ones(1 << 16, device="cuda")
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    dist.all_reduce(x)
    end.record()
    torch.cuda.synchronize()
    assert 0.0001 < start.elapsed_time(end) < 10
""",
)
snippet(
    "average of gradients",
    4,
    """
    grads = [torch.full((3, 3), float(rank + i)) for i in range(2)]
    for grad in grads:
        dist.all_reduce(grad, op=dist.ReduceOp.SUM)
        grad /= size
    assert grads[1].tolist() == [[2.5] * 3] * 3
""",
)
snippet(
    "reduce",
    4,
    """
    tensor = torch.ones(2) * (rank + 1)
    dist.reduce(tensor, dst=0, op=dist.ReduceOp.PRODUCT)
    if rank == 0:
        assert tensor.tolist() == [24, 24]
""",
)
snippet(
    "broadcast",
    3,
    """
    tensor = torch.arange(4.0) if rank == 1 else torch.empty(4)
    work = dist.broadcast(tensor, src=1, async_op=True)
    while not work.is_completed():
        pass
    assert tensor.tolist() == [0, 1, 2, 3]
""",
)
snippet(
    "scatter",
    2,
    """
    tensor_size = 2
    device = torch.device(f"cuda:{rank}")
    output_tensor = torch.zeros(tensor_size, device=device)
    if dist.get_rank() == 0:
        # Assumes world_size of 2.
        # Only tensors, all of which must be the same size.
        t_ones = torch.ones(tensor_size, device=device)
        t_fives = torch.ones(tensor_size, device=device) * 5
        scatter_list = [t_ones, t_fives]
    else:
        scatter_list = None
    dist.scatter(output_tensor, scatter_list, src=0)
    # Rank i gets scatter_list[i].
    assert output_tensor.tolist() == [[1, 1], [5, 5]][rank]
""",
)
snippet(
    "gather",
    2,
    """
    tensor_size = 2
    device = torch.device(f"cuda:{rank}")
    tensor = torch.ones(tensor_size, device=device) + rank
    if dist.get_rank() == 0:
        gather_list = [torch.zeros_like(tensor, device=device) for i in range(2)]
    else:
        gather_list = None
    dist.gather(tensor, gather_list, dst=0)
    # Rank 0 gets gathered data.
    if gather_list is not None:
        assert [t.tolist() for t in gather_list] == [[1, 1], [2, 2]]
""",
)
snippet(
    "reduce_scatter_tensor",
    2,
    """
    device = torch.device(f"cuda:{rank}")
    tensor_out = torch.zeros(2, dtype=torch.int64, device=device)
    # Input in concatenation form
    tensor_in = torch.arange(size * 2, dtype=torch.int64, device=device)
    dist.reduce_scatter_tensor(tensor_out, tensor_in)
    assert tensor_out.tolist() == [[0, 2], [4, 6]][rank]
    # Input in stack form
    tensor_in = torch.reshape(tensor_in, (size, 2))
    dist.reduce_scatter_tensor(tensor_out, tensor_in)
    assert tensor_out.tolist() == [[0, 2], [4, 6]][rank]
""",
)
snippet(
    "reduce_scatter of a list",
    2,
    """
    input_list = [torch.full((2,), float(rank + i)) for i in range(size)]
    output = torch.empty(2)
    dist.reduce_scatter(output, input_list, op=dist.ReduceOp.MAX)
    assert output.tolist() == [rank + 1] * 2
""",
)
snippet(
    "all_to_all_single",
    4,
    """
    input = torch.arange(4) + rank * 4
    output = torch.empty([4], dtype=torch.int64)
    dist.all_to_all_single(output, input)
    assert output.tolist() == [rank + 4 * i for i in range(4)]
""",
)
snippet(
    "all_to_all_single with splits",
    2,
    """
    input = torch.arange(3) + 10 * rank
    input_splits = [[1, 2], [2, 1]][rank]
    output_splits = [[1, 2], [2, 1]][rank]
    output = torch.empty([3], dtype=torch.int64)
    dist.all_to_all_single(output, input, output_splits, input_splits)
    assert output.tolist() == [[0, 10, 11], [1, 2, 12]][rank]
""",
)
snippet(
    "all_to_all",
    4,
    """
    input = torch.arange(4) + rank * 4
    input = list(input.chunk(4))
    output = list(torch.empty([4], dtype=torch.int64).chunk(4))
    dist.all_to_all(output, input)
    assert [int(t) for t in output] == [rank, 4 + rank, 8 + rank, 12 + rank]
""",
)
snippet(
    "barriers",
    3,
    """
    dist.barrier()
    dist.barrier(device_ids=[rank])
    dist.monitored_barrier(timeout=timedelta(seconds=30))
""",
)

# objects

snippet(
    "broadcast_object_list",
    3,
    """
    if dist.get_rank() == 0:
        # Assumes world_size of 3.
        objects = ["foo", 12, {1: 2}]  # any picklable object
    else:
        objects = [None, None, None]
    # Assumes backend is not NCCL
    device = torch.device("cpu")
    dist.broadcast_object_list(objects, src=0, device=device)
    assert objects == ["foo", 12, {1: 2}]
""",
)
snippet(
    "all_gather_object",
    3,
    """
    # Note: Process group initialization omitted on each rank.
    # Assumes world_size of 3.
    gather_objects = ["foo", 12, {1: 2}]  # any picklable object
    output = [None for _ in gather_objects]
    dist.all_gather_object(output, gather_objects[dist.get_rank()])
    assert output == ["foo", 12, {1: 2}]
""",
)
snippet(
    "gather_object and scatter_object_list",
    3,
    """
    gather_objects = ["foo", 12, {1: 2}]
    output = [None for _ in gather_objects]
    dist.gather_object(gather_objects[dist.get_rank()], output if dist.get_rank() == 0 else None, dst=0)
    assert dist.get_rank() or output == gather_objects
    output_list = [None]
    dist.scatter_object_list(output_list, gather_objects if dist.get_rank() == 0 else [None] * 3, src=0)
    # Rank i gets objects[i].
    assert output_list == [["foo", 12, {1: 2}][rank]]
""",
)
snippet(
    "send_object_list",
    2,
    """
    if dist.get_rank() == 0:
        dist.send_object_list(["foo", 12], dst=1)
    else:
        objects = [None, None]
        dist.recv_object_list(objects, src=0)
        assert objects == ["foo", 12]
""",
)

# point to point

snippet(
    "blocking send",
    2,
    """
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        # Send the tensor to process 1
        dist.send(tensor=tensor, dst=1)
    else:
        # Receive tensor from process 0
        dist.recv(tensor=tensor, src=0)
    assert tensor[0] == 1
""",
)
snippet(
    "isend and irecv",
    2,
    """
    tensor = torch.zeros(1)
    req = None
    if rank == 0:
        tensor += 1
        req = dist.isend(tensor=tensor, dst=1)
    else:
        req = dist.irecv(tensor=tensor, src=0)
    req.wait()
    assert tensor[0] == 1
""",
)
snippet(
    "batch_isend_irecv",
    4,
    """
    send_tensor = torch.arange(2, dtype=torch.float32) + 2 * rank
    recv_tensor = torch.randn(2, dtype=torch.float32)
    send_op = dist.P2POp(dist.isend, send_tensor, (rank + 1) % size)
    recv_op = dist.P2POp(dist.irecv, recv_tensor, (rank - 1 + size) % size)
    reqs = dist.batch_isend_irecv([send_op, recv_op])
    for req in reqs:
        req.wait()
    assert recv_tensor.tolist() == [2.0 * ((rank - 1) % size), 2.0 * ((rank - 1) % size) + 1]
""",
)
snippet(
    "an all-reduce of one's own",
    4,
    """
    def allreduce(send, recv):
        rank = dist.get_rank()
        size = dist.get_world_size()
        send_buff = send.clone()
        recv_buff = send.clone()
        accum = send.clone()
        left = ((rank - 1) + size) % size
        right = (rank + 1) % size
        for i in range(size - 1):
            if i % 2 == 0:
                # Send send_buff
                send_req = dist.isend(send_buff, right)
                dist.recv(recv_buff, left)
                accum[:] += recv_buff[:]
            else:
                # Send recv_buff
                send_req = dist.isend(recv_buff, right)
                dist.recv(send_buff, left)
                accum[:] += send_buff[:]
            send_req.wait()
        recv[:] = accum[:]

    got = torch.zeros(2, 2)
    allreduce(torch.ones(2, 2) * (rank + 1), got)
    assert got.tolist() == [[10, 10], [10, 10]]
""",
)

# groups

snippet(
    "new_group",
    4,
    """
    group = dist.new_group([0, 1])
    tensor = torch.ones(1)
    if rank < 2:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        assert (dist.get_rank(group), dist.get_group_rank(group, rank)) == (rank, rank)
    assert tensor[0] == (2 if rank < 2 else 1)
""",
)
snippet(
    "new_subgroups",
    4,
    """
    cur_subgroup, subgroups = dist.new_subgroups(group_size=2)
    # Allreduce within the machine.
    tensor = torch.ones(1, device=rank) * rank
    dist.all_reduce(tensor, group=cur_subgroup)
    assert tensor.tolist() == [1 if rank < 2 else 5]
    # Cleanup.
    for subgroup in subgroups:
        dist.destroy_process_group(subgroup)
""",
)
snippet(
    "new_subgroups_by_enumeration",
    4,
    """
    # Create two subgroups, where each has 2 processes.
    cur_subgroup, subgroups = dist.new_subgroups_by_enumeration(ranks_per_subgroup_list=[[0, 2], [1, 3]])
    tensor = torch.ones(1, device=rank) * rank
    dist.all_reduce(tensor, group=cur_subgroup)
    assert tensor.tolist() == [2 if rank % 2 == 0 else 4]
""",
)
snippet(
    "device mesh",
    8,
    """
    mesh_2d = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    # Users can access the underlying process group thru `get_group` API.
    replicate_group = mesh_2d.get_group(mesh_dim="replicate")
    shard_group = mesh_2d.get_group(mesh_dim="shard")
    x = torch.ones(1)
    dist.all_reduce(x, group=shard_group)
    dist.all_reduce(x, group=replicate_group)
    assert x.item() == 8
    assert mesh_2d["shard"].size() == 4
""",
)

# DTensor and styles of tensor parallelism

snippet(
    "distribute_tensor",
    4,
    """
    mesh = init_device_mesh("cuda", (size,))
    torch.manual_seed(0)
    big_tensor = torch.randn(1000, 88)
    # Shard this tensor over the mesh by sharding its 0th dimension over the 0th dimension of `mesh`.
    my_dtensor = distribute_tensor(big_tensor, mesh, [Shard(dim=0)])
    assert tuple(my_dtensor.to_local().shape) == (250, 88)
    assert (my_dtensor.full_tensor().numpy() == big_tensor.numpy()).all()
""",
)
snippet(
    "redistribute",
    2,
    """
    mesh = DeviceMesh("cuda", [0, 1])
    local_tensor = torch.ones(4, 2) * (rank + 1)
    partial = DTensor.from_local(local_tensor, mesh, [Partial()])
    whole = partial.redistribute(mesh, [Replicate()])
    assert whole.to_local().tolist() == [[3, 3]] * 4
    rows = whole.redistribute(placements=[Shard(0)])
    assert (tuple(rows.to_local().shape), rows.placements) == ((2, 2), (Shard(0),))
""",
)
snippet(
    "a product of DTensors",
    2,
    """
    mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
    a = distribute_tensor(torch.ones(4, 8), mesh, [Shard(1)])
    b = distribute_tensor(torch.ones(8, 6), mesh, [Shard(0)])
    assert (a @ b).full_tensor().tolist() == [[8.0] * 6] * 4
""",
)
snippet(
    "parallelize_module",
    2,
    """
    class FeedForward:
        def __init__(self):
            self.w1 = Linear(8, 16, torch=torch)
            self.w2 = Linear(16, 8, torch=torch)

        def __call__(self, x):
            return self.w2(torch.relu(self.w1(x)))

    tp_mesh = init_device_mesh("cuda", (2,))
    m = FeedForward()
    m = parallelize_module(m, tp_mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    assert tuple(m(torch.ones(4, 8)).shape) == (4, 8)
""",
)

# launchers

script(
    "processes of the tutorial",
    '''
    def run(rank, size):
        """ Distributed function to be implemented later. """
        tensor = torch.ones(1) * rank
        dist.all_reduce(tensor)
        assert tensor.item() == 1

    def init_process(rank, size, fn, backend="gloo"):
        """ Initialize the distributed environment. """
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = "29500"
        dist.init_process_group(backend, rank=rank, world_size=size)
        fn(rank, size)

    if __name__ == "__main__":
        size = 2
        processes = []
        mp.set_start_method("spawn")
        for rank in range(size):
            p = mp.Process(target=init_process, args=(rank, size, run))
            p.start()
            processes.append(p)
        for p in processes:
            p.join()
            assert p.exitcode == 0
''',
)
script(
    "spawn",
    """
    def setup(rank, world_size):
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = "12355"
        dist.init_process_group("gloo", rank=rank, world_size=world_size)

    def cleanup():
        dist.destroy_process_group()

    def demo_basic(rank, world_size):
        setup(rank, world_size)
        t = torch.ones(4).to(rank)
        dist.all_reduce(t)
        assert t.tolist() == [world_size] * 4
        cleanup()

    def run_demo(demo_fn, world_size):
        mp.spawn(demo_fn, args=(world_size,), nprocs=world_size, join=True)

    if __name__ == "__main__":
        n_gpus = torch.accelerator.device_count()
        assert n_gpus >= 2, f"Requires at least 2 GPUs to run, but got {n_gpus}"
        run_demo(demo_basic, n_gpus)
""",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def names(torch: Any) -> dict[str, Any]:
    from datetime import timedelta

    given = {name: getattr(parallel, name) for name in parallel.__all__}
    return given | {
        "torch": torch, "dist": torch.distributed, "mp": torch.multiprocessing, "os": os,
        "timedelta": timedelta, "__name__": "__main__",
    }  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_snippet(name: str) -> None:
    size, body = RANKS[name]
    code = compile(f"def run(rank, size):\n{textwrap.indent(body, '    ')}", name, "exec")
    with mt.host("dgx-h100", gpus=size) as torch:
        torch.set_default_dtype(torch.float32)
        space = names(torch)
        exec(code, space)

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            torch.distributed.init_process_group("nccl")
            space["run"](rank, size)

        torch.multiprocessing.spawn(worker, nprocs=size)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    with mt.host("dgx-h100", gpus=2) as torch:
        torch.set_default_dtype(torch.float32)
        exec(compile(SCRIPTS[name], name, "exec"), names(torch))


@pytest.mark.parametrize(
    "call",
    [
        "torch.nn.Linear(10, 10)",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.optim.SGD",
        "torch.zeros(2, requires_grad=True)",
        "torch.ones(2).sum().backward()",
        "torch.ones(2).requires_grad_()",
        "torch.ones(2).grad",
        "torch.autograd.grad",
        "torch.distributed.fsdp.fully_shard",
    ],
)
def test_what_needs_autograd_or_modules_says_so(call: str) -> None:
    with mt.host("dgx-h100") as torch, pytest.raises(Exception, match="forward passes") as caught:
        eval(call, {"torch": torch})  # noqa: S307
    assert "\n" not in str(caught.value)
    assert "no autograd" in str(caught.value)
