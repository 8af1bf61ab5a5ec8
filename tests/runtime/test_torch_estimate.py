"""Real torch programs priced kernel by kernel, on shapes alone."""

from __future__ import annotations

import pytest

import megatile as mt

torch = pytest.importorskip("torch", reason="needs torch")
F = torch.nn.functional


def mlp(width: int = 512, dtype=torch.bfloat16):  # type: ignore[no-untyped-def]
    layers = torch.nn.Linear(width, 4 * width, bias=False), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
    return torch.nn.Sequential(*layers).to(dtype)


def by_name(found: mt.TorchEstimate) -> dict[str, int]:
    names: dict[str, int] = {}
    for row in found.rows():
        names[row["kernel"]] = names.get(row["kernel"], 0) + row["count"]
    return names


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_kernels_are_those_of_predict_kernel(device: str) -> None:
    found = mt.torch_estimate(mlp().to(device), torch.ones(256, 512, dtype=torch.bfloat16), graph=True)
    assert by_name(found) == {"mm": 1, "gelu": 1, "addmm": 1}
    products = [(256, 2048, 512), (256, 512, 2048)]
    wanted = sum(
        mt.predict_kernel("gemm", m=m, n=n, k=k, dtype="bf16", machine="dgx-h100").time_us
        for m, n, k in products
    )
    rows = {row["kernel"]: row for row in found.rows()}
    assert rows["mm"]["time_us"] + rows["addmm"]["time_us"] == pytest.approx(wanted)
    read_and_written = 2 * 256 * 2048 * 2
    passes = mt.predict_kernel("elementwise", bytes=read_and_written, kernels=1, machine="dgx-h100")
    assert rows["gelu"]["time_us"] == pytest.approx(passes.time_us)
    assert found.time_us == pytest.approx(sum(row["time_us"] for row in found.rows()), abs=1e-6)


def test_the_backward_pass_has_two_products_for_each() -> None:
    found = mt.torch_estimate(mlp(), torch.ones(256, 512, dtype=torch.bfloat16), backward=True)
    names = by_name(found)
    assert names["mm"] + names["addmm"] == 2 + 3  # the input of the first layer needs no gradient
    assert names["gelu_backward"] == 1


def test_attention_is_one_kernel_and_its_gradient_another() -> None:
    q = torch.empty(2, 8, 1024, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)

    def causal(x):  # type: ignore[no-untyped-def]
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    rows = {row["kernel"]: row for row in mt.torch_estimate(causal, q, backward=True, graph=True).rows()}
    wanted = mt.predict_kernel(
        "attention", batch=2, queries=1024, heads=8, kv_heads=8, machine="dgx-h100", dtype="bf16"
    ).time_us
    assert rows["attention"]["time_us"] == pytest.approx(wanted)
    assert rows["attention backward"]["time_us"] == pytest.approx(2.5 * wanted)
    long = torch.empty(1, 16, 8192, 128, dtype=torch.bfloat16, device="meta")
    whole = mt.torch_estimate(lambda x: F.scaled_dot_product_attention(x, x, x), long, graph=True)
    half = mt.torch_estimate(causal, long, graph=True)
    assert whole.time_us == pytest.approx(2 * half.time_us, rel=0.15)


def test_short_kernels_wait_for_the_dispatch_of_torch() -> None:
    eager = mt.torch_estimate(lambda x: x + 1 + 1 + 1, torch.ones(8))
    captured = mt.torch_estimate(lambda x: x + 1 + 1 + 1, torch.ones(8), graph=True)
    assert eager.time_us == pytest.approx(3 * 12.5) == sum(row["time_us"] for row in eager.rows())
    start = mt.predict_kernel("elementwise", bytes=64, kernels=1, machine="dgx-h100").time_us
    assert captured.time_us == pytest.approx(3 * start)
    assert repr(eager) == "TorchEstimate(3 kernels on dgx-h100: 37.5 µs)"
    assert "elementwise, assumed" in str(eager)


def test_views_are_free_and_nothing_is_nothing() -> None:
    assert mt.torch_estimate(lambda x: x.view(4, 2).t()[1:], torch.ones(8)).kernels == ()
    assert mt.torch_estimate(lambda x: x @ x.t(), torch.ones(0, 4)).time_ps == 0


@pytest.mark.parametrize(
    "function", [lambda x: x[x > 0], lambda x: x.sum().item(), lambda x: x + torch.ones(3)]
)
def test_what_needs_values_is_one_sentence(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(mt.MegatileError, match="while running on shapes alone") as caught:
        mt.torch_estimate(function, torch.ones(3))
    assert "\n" not in str(caught.value)


def test_a_result_without_gradients_is_one_sentence() -> None:
    with pytest.raises(mt.MegatileError, match="depends on a parameter"):
        mt.torch_estimate(lambda x: x + 1, torch.ones(3), backward=True)


@pytest.fixture
def group():  # type: ignore[no-untyped-def]
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield list(range(8))
    torch.distributed.destroy_process_group()


def test_collectives_of_a_group_are_priced(group) -> None:  # type: ignore[no-untyped-def]
    functional = torch.distributed._functional_collectives
    x = torch.ones(1 << 20, dtype=torch.bfloat16)
    found = mt.torch_estimate(lambda t: functional.all_reduce(t, "sum", group), x, graph=True)
    wanted = mt.predict_kernel("all_reduce", ranks=8, bytes=2 << 20, dtype="bf16", machine="dgx-h100")
    assert found.time_us == pytest.approx(wanted.time_us)


def test_collectives_of_torch_distributed_are_priced(group) -> None:  # type: ignore[no-untyped-def]
    one, all_of = (torch.empty(n << 20, dtype=torch.bfloat16, device="meta") for n in (1, 8))
    with mt.torch_estimate("dgx-h100", graph=True) as e:
        torch.distributed.all_reduce(one)
        torch.distributed.all_gather_into_tensor(all_of, one)
        torch.distributed.reduce_scatter_tensor(one, all_of)
    sizes = {"all_reduce": 2 << 20, "all_gather": 16 << 20, "reduce_scatter": 16 << 20}
    for row in e.rows():
        wanted = mt.predict_kernel(
            row["kernel"], ranks=8, bytes=sizes.pop(row["kernel"]), dtype="bf16", machine="dgx-h100"
        )
        assert row["time_us"] == pytest.approx(wanted.time_us)
    assert not sizes


def test_a_table_of_modules_adds_up() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        up, down = (
            (torch.nn.Linear(512, 2048, bias=False) for _ in "ab"),
            (torch.nn.Linear(2048, 512) for _ in "ab"),
        )
        model = torch.nn.Sequential(
            *(torch.nn.Sequential(a, torch.nn.GELU(), b) for a, b in zip(up, down, strict=True))
        )
        x = torch.empty(256, 512)
        with mt.torch_estimate("dgx-h100", graph=True) as e:
            model(x)
    assert by_name(e) == {"mm": 2, "gelu": 2, "addmm": 2}
    modules = e.modules(depth=2)
    assert modules["Sequential"] == (6, pytest.approx(e.time_us))
    assert sum(time for _, time in e.modules(1).values()) == pytest.approx(2 * e.time_us)
    assert {"Sequential.0", "Sequential.1"} <= set(modules)
    assert modules["Sequential.0"][0] == 3
    assert "100.0%" in e.table(depth=0)
    with pytest.raises(mt.MegatileError, match="depth must be"):
        e.table(depth=-1)


def test_a_machine_takes_no_arguments() -> None:
    with pytest.raises(mt.MegatileError, match="takes no arguments"):
        mt.torch_estimate("dgx-h100", torch.ones(3))


def test_inductor_asks_for_the_time_of_its_nodes() -> None:
    import torch._inductor.config as config

    seen: list[float] = []

    def stop(nodes):  # type: ignore[no-untyped-def]
        estimate = mt.torch_estimate("dgx-h100").estimate_op_runtime
        seen.extend(estimate(node) for node in nodes)
        raise KeyboardInterrupt

    compiled = torch.compile(lambda a, b: torch.relu(a @ b), dynamic=False)
    with config.patch(_pre_fusion_custom_pass=stop), pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(512, 1024), torch.ones(1024, 256))
    gemm = mt.predict_kernel("gemm", m=512, n=256, k=1024, dtype="f32", machine="dgx-h100")
    relu = mt.predict_kernel("elementwise", bytes=2 * 512 * 256 * 4, kernels=1, machine="dgx-h100")
    assert seen == pytest.approx([gemm.time_us / 1e3, relu.time_us / 1e3])


def test_rows_of_a_table_are_read_not_the_table() -> None:
    def time(rows: int) -> float:
        table = torch.empty(rows, 1024, dtype=torch.bfloat16, device="meta")
        places = torch.zeros(64, dtype=torch.int64, device="meta")
        return mt.torch_estimate(lambda: F.embedding(places, table).add_(1)).time_us

    assert time(1 << 20) == time(64)


def test_what_is_filled_is_not_read() -> None:
    x = torch.empty(1 << 24, dtype=torch.bfloat16, device="meta")
    filled, doubled = (mt.torch_estimate(f).rows() for f in (lambda: x.fill_(1.0), lambda: x.mul_(2.0)))
    assert filled[0]["time_us"] < 0.75 * doubled[0]["time_us"]
