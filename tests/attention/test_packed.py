"""Documents that share a kernel call: how they are taken out of a tensor."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

import torch

from megatile.attention.block_kernels import CpuFlash
from megatile.attention.merge import Accumulator
from megatile.attention.packed import batches
from megatile.attention.schedules.division import OWN, KernelCall


def batch_of(*rows):
    """One batch of documents, each with the keys of its rows."""
    calls = [KernelCall((run,), ((OWN, *run),)) for run in rows]
    alone, (found,) = batches(calls, [0], lambda _: "one kind")
    assert not alone
    return found


@pytest.mark.parametrize(
    ("rows", "view"),
    [
        ([(0, 3), (3, 6), (6, 9)], True),
        ([(1, 3), (5, 7), (9, 11)], True),  # second halves of documents of 4
        ([(2, 7)], True),
        ([(0, 3), (3, 5)], False),  # of two lengths
        ([(0, 2), (3, 5), (7, 9)], False),  # at two distances
    ],
)
def test_documents_at_equal_distances_are_not_copied(rows, view):
    x, batch = torch.arange(24.0).view(12, 2), batch_of(*rows)
    for side in (True, False):
        filled = batch.fill(x, side, 0.0)
        assert (filled.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == view
        for document, (begin, end) in zip(filled, rows, strict=True):
            assert torch.equal(document[: end - begin], x[begin:end])
            assert not document[end - begin :].any()
        whole = torch.cat([x[begin:end] for begin, end in rows])
        assert torch.equal(batch.padding.strip(filled, side), whole)
        assert torch.equal(batch.take(x, side), whole)


def test_rows_that_follow_one_another_are_one_run():
    assert batch_of((0, 3), (3, 5)).run(True) == (0, 5)
    assert batch_of((0, 3), (4, 5)).run(True) is None


def test_large_documents_share_a_call_only_without_copies():
    def alone(*rows):
        calls = [KernelCall((run,), ((OWN, *run),)) for run in rows]
        return batches(calls, [0], lambda segment: CpuFlash().kind(segment, 2**14))[0]

    assert not alone((0, 3), (3, 6))
    assert len(alone((0, 3))) == 1
    assert len(alone((0, 3), (3, 6), (7, 10))) == 3
    assert len(alone((0, 3), (3, 5))) == 2


def test_results_of_documents_at_equal_distances_are_merged_in_place():
    batch = batch_of(*((2 * i, 2 * i + 1) for i in range(9)))
    found = []
    for windows in (None, batch.windows[True]):
        torch.manual_seed(0)
        result = Accumulator(1, 18, 2, 3, torch.device("cpu"))
        for _ in range(2):
            block, lse = torch.randn(1, 9, 2, 3), torch.randn(1, 2, 9)
            result.add(batch.runs, block, lse, windows)
        found.append(result.result(torch.float32))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
