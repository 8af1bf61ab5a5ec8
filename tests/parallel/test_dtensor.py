"""DTensor against NumPy: every redistribution, and operations under every pair of placements."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.parallel.hosts import on_ranks
from tests.parallel.shared import S0, S1, A, B, P, R, X

import megatile as mt
from megatile.parallel import (
    DeviceMesh,
    DTensor,
    Partial,
    Shard,
    distribute_tensor,
    einsum,
    init_device_mesh,
)
from megatile.parallel.state import ParallelError


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_rank_may_have_nothing(rows: int) -> None:
    part, other = X[:rows], np.arange(20, dtype=np.float32).reshape(10, 2)

    def body(rank: int, torch: Any) -> bool:
        mesh = init_device_mesh("ahbm", (4,))
        d = distribute_tensor(part, mesh, [S0])
        each = -(-rows // 4)
        assert d.to_local().shape == (len(range(rows)[rank * each : (rank + 1) * each]), 10)
        results = [
            (d, part), (d.redistribute(placements=[S1]).redistribute(placements=[S0]), part),
            (d @ distribute_tensor(other, mesh, [R]), part @ other),
            (d.relu() * 2 + d, 2 * np.maximum(part, 0) + part),
            (d.sum(0), part.sum(0)), (d.sum(1), part.sum(1)), (d.max(0), part.max(0)), (d.T, part.T),
            (d.softmax(), np.exp(part) / np.exp(part).sum(1, keepdims=True)),
        ]  # fmt: skip
        return all(np.allclose(got.full_tensor().numpy(), wanted, rtol=1e-5) for got, wanted in results)

    assert on_ranks(body) == [True] * 4


def test_products_under_all_placements() -> None:
    pairs = [(a, b) for a in ([R], [S0], [S1], [P]) for b in ([R], [S0], [S1], [P])]

    def body(rank: int, torch: Any) -> list[bool]:
        mesh = init_device_mesh("ahbm", (2,))
        return [
            bool(
                np.array_equal(
                    (distribute_tensor(A, mesh, a) @ distribute_tensor(B, mesh, b)).full_tensor().numpy(),
                    A @ B,
                )
            )
            for a, b in pairs
        ]

    assert on_ranks(body, sips=2) == [[True] * len(pairs)] * 2


def test_pointwise_reductions_and_views() -> None:
    x, row = X[:, :8], np.arange(8, dtype=np.float32)

    def body(rank: int, torch: Any) -> list[bool]:
        mesh = init_device_mesh("ahbm", (2,))
        checks = []
        for place in ([R], [S0], [S1], [P]):
            d, b = distribute_tensor(x, mesh, place), distribute_tensor(row, mesh, [S0])
            results = [
                (d + d, 2 * x), (d * 3, 3 * x), (d - d * 2, -x), (d + b, x + row),
                (d.relu(), np.maximum(x, 0)),
                (d.sum(0), x.sum(0)), (d.sum(1), x.sum(1)), (d.max(1), x.max(1)), (d.mean(0), x.mean(0)),
                (d.sum(), [x.sum()]), (d.T, x.T), (d.view(3, 2, 8), x.reshape(3, 2, 8)),
                (d.view(-1), x.reshape(-1)), (d.view(6, 2, 4), x.reshape(6, 2, 4)),
                (d.softmax(), np.exp(x) / np.exp(x).sum(1, keepdims=True)),
            ]  # fmt: skip
            for got, expected in results:
                checks.append(bool(np.allclose(got.full_tensor().numpy(), expected, rtol=1e-5)))
        return checks

    for checks in on_ranks(body, sips=2):
        assert all(checks), [i for i, fine in enumerate(checks) if not fine]


@pytest.mark.parametrize("equation", ["bmk,kn->bmn", "bmk,bkn->bmn", "mk,nk->nm", "bik,bjk->ijb"])
def test_einsum(equation: str) -> None:
    left, rest = equation.split(",")
    right, _ = rest.split("->")
    sizes = {"b": 2, "m": 4, "k": 6, "n": 2, "i": 4, "j": 2}
    random = np.random.default_rng(3)
    a, b = (
        random.integers(-3, 4, [sizes[c] for c in letters]).astype(np.float32) for letters in (left, right)
    )

    def body(rank: int, torch: Any) -> bool:
        mesh = init_device_mesh("ahbm", (2,))
        found = []
        for p, q in product((R, S0, Shard(a.ndim - 1)), (R, S1)):
            got = einsum(equation, distribute_tensor(a, mesh, [p]), distribute_tensor(b, mesh, [q]))
            found.append(np.allclose(got.full_tensor().numpy(), np.einsum(equation, a, b)))
        return all(found)

    assert on_ranks(body, sips=2) == [True, True]


def test_local_tensors_and_mistakes() -> None:
    def body(rank: int, torch: Any) -> None:
        mesh = DeviceMesh("ahbm", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        assert mesh.get_coordinate() == divmod(rank, 2)
        assert mesh.size("tp") == 2
        local = torch.zeros((2, 3), dtype="f32").fill_(rank)
        x = DTensor.from_local(local, mesh, [S0, S1])
        assert x.shape == (4, 6)
        for wrong, said in (
            (lambda: x.redistribute(placements=[P, R]), "made Partial"),
            (lambda: x.redistribute(placements=[R]), "1 placements for a mesh of 2"),
            (lambda: x.redistribute(placements=[Shard(2), R]), "no dimension 2"),
            (lambda: DTensor.from_local(local, mesh, [S0, R], shape=(9, 3)), "is not"),
            (lambda: DeviceMesh("ahbm", [0, 0]), "every rank once"),
            (lambda: einsum("mk,kn", x, x), "not a product"),
        ):
            with pytest.raises(ParallelError, match=said):
                wrong()

    on_ranks(body)


@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100", "mi300x-8"])
def test_a_divided_mlp_gives_the_same_numbers_everywhere(machine: str) -> None:
    def body(rank: int, torch: Any) -> Any:
        size = torch.distributed.get_world_size()
        mesh = init_device_mesh(machine, (size,))
        x, w1 = distribute_tensor(A, mesh, [R]), distribute_tensor(np.tile(B, (1, 2)), mesh, [S1])
        w2 = distribute_tensor(np.tile(B, (1, 2)).T.copy(), mesh, [S0])
        y = ((x @ w1).relu() @ w2).full_tensor().numpy()
        return y.tolist(), torch.time_ns

    found = on_ranks(body, machine)
    expected = np.maximum(A @ np.tile(B, (1, 2)), 0) @ np.tile(B, (1, 2)).T
    assert all(np.array_equal(np.array(y), expected) for y, _ in found)
    assert all(time > 0 for _, time in found)


@pytest.mark.parametrize("rows", [8, 6])
@pytest.mark.parametrize("placement", [S0, S1, R, Partial()])
def test_the_first_rank_of_a_dimension_gives_the_data(rows, placement) -> None:
    """As torch does; ``src_data_rank=None`` takes what every rank has."""
    data = np.random.default_rng(2).integers(0, 9, (4, rows, 4)).astype(np.float32)
    with mt.host("ahbm", sips=4) as torch:

        def worker(rank) -> None:
            torch.accelerator.set_device_index(rank)
            torch.distributed.init_process_group()
            mesh = init_device_mesh("ahbm", (2, 2), torch=torch)
            given = torch.tensor(data[rank])
            for source in (0, 1):
                x = distribute_tensor(given, mesh, [R, placement], src_data_rank=source)
                assert np.array_equal(x.full_tensor().numpy(), data[3 * source])
            assert np.array_equal(given.numpy(), data[rank])
            own = distribute_tensor(data[rank], mesh, [R, R], src_data_rank=None)
            assert np.array_equal(own.to_local().numpy(), data[rank])
            with pytest.raises(ParallelError, match="src_data_rank 2 is not among the 2 ranks"):
                distribute_tensor(given, mesh, [R, S0], src_data_rank=2)

        torch.multiprocessing.spawn(worker, nprocs=4)
