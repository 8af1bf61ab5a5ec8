"""TileScale's words: kernels that every rank runs on tensors of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.patience import patience, wait_until

import megatile as mt
import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.compat.tilelang import ranks, source
from megatile.targets.interpret.errors import DataRaceError

RANKS = 3


@pytest.fixture
def launch(monkeypatch):
    """Runs a kernel over the tensors of three ranks, which are stacked."""
    monkeypatch.setattr(source, "world_size", lambda: RANKS)

    def launched(function, *arrays, **keywords):
        program = tilelang.compile(function).program
        mt.run(program, *arrays, machine=program.machine, **keywords)

    return launched


def shifted(rows, columns):
    @T.prim_func
    def kernel(src: T.Tensor((rows, columns), T.float32), dst: T.Tensor((rows, columns), T.float32)):
        with T.Kernel(rows, threads=64) as row:
            peer = T.alloc_local([1], "int32")
            peer[0] = (T.get_rank() + 1) % T.get_num_ranks()
            T.put_block(
                src=T.address_of(src[row, 0]), dst=T.address_of(dst[row, 0]), size=columns, dst_pe=peer[0]
            )

    return kernel


def test_a_block_puts_a_row_to_the_next_rank(launch):
    src = np.random.default_rng(0).standard_normal((RANKS, 4, 5)).astype("f4")
    dst = np.zeros_like(src)
    launch(shifted(4, 5), src, dst)
    np.testing.assert_array_equal(dst, np.roll(src, 1, axis=0))


def fetched(size):
    @T.prim_func
    def kernel(src: T.Tensor((size,), T.int32), dst: T.Tensor((size,), T.int32)):
        with T.Kernel(1, threads=64):
            warp = T.get_thread_binding() // 32
            half = size // 2
            T.get_warp(
                src=T.address_of(src[warp * half]), dst=T.address_of(dst[warp * half]), size=half,
                src_pe=(T.get_rank() + 1) % T.get_num_ranks(),
            )  # fmt: skip

    return kernel


def test_each_warp_gets_its_part_from_a_peer(launch):
    src = np.arange(RANKS * 10, dtype="i4").reshape(RANKS, 10)
    dst = np.zeros_like(src)
    launch(fetched(10), src, dst)
    np.testing.assert_array_equal(dst, np.roll(src, -1, axis=0))


def ring_sum(waits=True, before=True):
    """Every rank adds what the rank before has written, after its signal."""

    @T.prim_func
    def kernel(
        own: T.Tensor((8,), T.float32),
        box: T.Tensor((8,), T.float32),
        signal: T.Tensor((1,), T.uint64),
        out: T.Tensor((8,), T.float32),
    ):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            mine = T.alloc_fragment((8,), T.float32)
            mype = T.alloc_local([1], "int32")
            mype[0] = T.get_pe()
            peer = (mype[0] + 1) % T.get_pe_num()
            if not before and tx == 0:
                T.signal_op(T.address_of(signal[0]), 7, T.Amo.SIGNAL_SET, peer)
            T.putmem_nbi_block(T.address_of(box[0]), T.address_of(own[0]), 8 * 4, peer)
            T.fence()
            if tx == 0:
                if before:
                    T.signal_op(T.address_of(signal[0]), 7, T.Amo.SIGNAL_SET, peer)
                if waits:
                    T.signal_wait_until(T.address_of(signal[0]), T.CmpType.EQ, 7)
            T.copy(box, mine)
            for i in T.Parallel(8):
                mine[i] += own[i]
            T.copy(mine, out)

    return kernel


def exchanged(meets):
    """Every rank puts its number to all, and adds up what it was given."""

    @T.prim_func
    def kernel(
        box: T.Tensor((RANKS,), T.int32),
        barrier: T.Tensor((RANKS,), T.int32),
        out: T.Tensor((1,), T.int32),
    ):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            total = T.alloc_var(T.int32, init=0)
            if tx < RANKS:
                T.st(box[T.get_rank()], T.get_rank() + 1, dst_pe=tx)
            if meets:
                T.barrier_blocks(barrier)
            for k in T.serial(RANKS):
                total += box[k]
            out[0] = total

    return kernel


@pytest.mark.parametrize("schedule", ["round-robin", "random", "adversarial"])
def test_blocks_of_all_ranks_meet_and_the_barrier_can_be_used_again(launch, schedule):
    barrier = np.zeros((RANKS, RANKS), "i4")
    for _ in range(2):
        box, out = np.zeros((RANKS, RANKS), "i4"), np.zeros((RANKS, 1), "i4")
        launch(exchanged(True), box, barrier, out, schedule=schedule)
        np.testing.assert_array_equal(out, np.full((RANKS, 1), 6))
    assert not barrier.any()
    with pytest.raises(DataRaceError):
        launch(exchanged(False), box, out, schedule=schedule)


@pytest.mark.parametrize("schedule", ["round-robin", "random", "adversarial"])
def test_a_signal_orders_what_was_put_before_it(launch, schedule):
    own = np.random.default_rng(1).standard_normal((RANKS, 8)).astype("f4")
    box, out, signal = np.zeros_like(own), np.zeros_like(own), np.zeros((RANKS, 1), "u8")
    launch(ring_sum(), own, box, signal, out, schedule=schedule)
    np.testing.assert_allclose(out, own + np.roll(own, 1, axis=0), rtol=1e-6)
    assert (signal == 7).all()


@pytest.mark.parametrize("mistake", [{"waits": False}, {"before": False}])
def test_a_missing_wait_and_a_signal_before_its_data_are_races(launch, mistake):
    own = np.ones((RANKS, 8), "f4")
    with pytest.raises(DataRaceError, match=r"data race on 'box'.*device"):
        launch(ring_sum(**mistake), own, np.zeros_like(own), np.zeros((RANKS, 1), "u8"), np.zeros_like(own))


def handed(sem):
    @T.prim_func
    def kernel(
        data: T.Tensor((1,), T.float32), flag: T.Tensor((1,), T.uint32), out: T.Tensor((1,), T.float32)
    ):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            if tx == 0:
                T.st(data[0], T.get_rank() + 10, dst_pe=(T.get_rank() + 1) % T.get_num_ranks())
                T.st(flag[0], 1, scope="sys", sem=sem, dst_pe=(T.get_rank() + 1) % T.get_num_ranks())
                T.wait_eq(flag[0], 1)
            T.copy(data, out)

    return kernel


def test_a_released_store_is_seen_with_what_came_before_it(launch):
    data, flag, out = (np.zeros((RANKS, 1), t) for t in ("f4", "u4", "f4"))
    launch(handed("release"), data, flag, out)
    np.testing.assert_array_equal(out[:, 0], [12, 10, 11])
    with pytest.raises(DataRaceError):
        launch(handed("weak"), np.zeros_like(data), np.zeros_like(flag), np.zeros_like(out))


def everyone_to_everyone():
    @T.prim_func
    def kernel(flags: T.Tensor((RANKS,), T.uint32), data: T.Tensor((RANKS,), T.int32),
               out: T.Tensor((RANKS,), T.int32)):  # fmt: skip
        with T.Kernel(2, threads=32) as block:
            tx = T.get_thread_binding()
            if block == 0 and tx < T.get_num_ranks():
                T.st(data[T.get_rank()], T.get_rank() * 10 + tx, dst_pe=tx)
                T.st(flags[T.get_rank()], 1, scope="sys", sem="release", dst_pe=tx)
            if tx < T.get_num_ranks():
                T.wait_ge(flags[tx], 1)
            if block == 0:
                T.copy(data, out)

    return kernel


def test_threads_signal_and_wait_each_for_a_rank(launch):
    flags, data, out = (np.zeros((RANKS, RANKS), t) for t in ("u4", "i4", "i4"))
    launch(everyone_to_everyone(), flags, data, out)
    np.testing.assert_array_equal(out, [[r * 10 + me for r in range(RANKS)] for me in range(RANKS)])


SCRIPT = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing
import tilelang
import tilelang.language as T
from tilelang.distributed import init_dist

def make(size):
    @T.prim_func
    def kernel(dst: T.Tensor((size,), "bfloat16"), src: T.Tensor((size,), "bfloat16")):
        with T.Kernel(1, threads=32):
            T.put_block(src=T.address_of(src[0]), dst=T.address_of(dst[0]), size=size,
                        dst_pe=T.get_rank() ^ 1)
    return kernel

def main(local_rank, ranks):
    rank, number, group = init_dist(local_rank, ranks)
    allocator = tilelang.get_allocator(size=2**20, device="cuda", is_distributed=True, local_rank=local_rank,
                                       num_local_ranks=ranks, group=group)
    kernel = tilelang.compile(make(64))
    kernel.initialize(allocator=allocator)
    src = tilelang.tensor((64,), torch.bfloat16, allocator=allocator).normal_()
    peers = tilelang.tensor((64,), torch.bfloat16, allocator=allocator, return_peers=True)
    kernel(peers[rank], src)
    gathered = [torch.empty_like(src) for _ in range(ranks)]
    dist.all_gather(gathered, src)
    assert torch.equal(peers[rank], gathered[rank ^ 1])
    assert torch.equal(peers[rank ^ 1], gathered[rank])
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} is right\\n")  # in one piece: the other rank writes too

if __name__ == "__main__":
    torch.multiprocessing.spawn(main, args=(2,), nprocs=2)
"""


def test_processes_are_ranks(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "ranks.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "megatile.tilelang", str(path)]
    before = set(Path("/dev/shm").glob("megatile-*"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(120), check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[-2:] == ["rank 0 is right", "rank 1 is right"]
    left = set(Path("/dev/shm").glob("megatile-*")) - before
    # Those of processes that are alive belong to tests beside this one.
    left = {p for p in left if not Path("/proc", p.name.split("-")[1]).exists()}
    assert wait_until(lambda: not any(p.exists() for p in left), 10)


def test_ranks_that_launch_different_kernels_are_reported():
    told = ranks._run_all((), {}, [["one"], ["one"], ["other"]])
    assert "ranks 0 and 2 launch different kernels" in str(told)
