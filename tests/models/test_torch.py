"""``library="torch"`` prices what ``mt.torch_estimate`` sees of torch modules: a Llama written here, and
models of transformers where it is installed."""

from __future__ import annotations

import pytest

import megatile as mt

torch = pytest.importorskip("torch", reason="needs torch")
F = torch.nn.functional
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 2, "vocab_size": 32000,
    "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 5632,
}  # fmt: skip


class Norm(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def linear(inputs: int, outputs: int):
    return torch.nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList([Norm(2048), Norm(2048)])
        self.q, self.k, self.v = linear(2048, 2048), linear(2048, 512), linear(2048, 512)
        self.o, self.gate, self.up = linear(2048, 2048), linear(2048, 5632), linear(2048, 5632)
        self.down = linear(5632, 2048)

    def forward(self, x, cos, sin):
        y = self.norms[0](x)
        q, k, v = (p(y).view(1, x.shape[1], -1, 128).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).contiguous().view(1, x.shape[1], -1))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32000, 2048)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.norm, self.head = Norm(2048), linear(2048, 32000)

    def forward(self, tokens, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def meta_llama(tokens: int):
    with torch.device("meta"):
        angles = torch.empty(tokens, 128, dtype=torch.bfloat16)
        return Llama().to(torch.bfloat16), torch.empty(1, tokens, dtype=torch.long), angles, angles


@pytest.mark.parametrize("tokens", [2048, 8192])
def test_a_prefill_is_priced_the_same(tokens: int) -> None:
    seen = mt.torch_estimate(*meta_llama(tokens), graph=True)
    step = mt.model(CONFIG).step([(tokens, 0)], machine="dgx-h100", library="torch", graph=True)
    assert step.time_us == pytest.approx(seen.time_us, rel=0.05)


@pytest.fixture
def mesh():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (4,))
    torch.distributed.destroy_process_group()


def test_tensor_parallel_tensors_count_what_a_rank_does(mesh) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, *inputs = meta_llama(2048)
    columns = {f"blocks.*.{n}": ColwiseParallel() for n in ("q", "k", "v", "gate", "up")}
    rows = {f"blocks.*.{n}": RowwiseParallel() for n in ("o", "down")}
    parallelize_module(model, mesh, {**columns, **rows})
    seen = {r["kernel"]: r for r in mt.torch_estimate(model, *inputs, graph=True).rows()}
    step = mt.model(CONFIG).step([(2048, 0)], machine="dgx-h100", library="torch", tp=4)
    reduced = [t for t in step.timed if t.operator.kernel == "all_reduce"]
    assert seen["all_reduce"]["count"] == sum(t.operator.repeat for t in reduced) == 4
    assert seen["all_reduce"]["time_us"] == pytest.approx(sum(t.time_us for t in reduced))
    attention = sum(t.time_us for t in step.timed if t.operator.kernel == "attention")
    assert seen["attention"]["time_us"] == pytest.approx(attention)


SMALL = {
    "hidden_size": 2048, "num_hidden_layers": 2, "vocab_size": 32000, "num_attention_heads": 16,
    "intermediate_size": 5632,
}  # fmt: skip
EXPERTS = {
    **SMALL, "num_key_value_heads": 16, "first_k_dense_replace": 1, "moe_intermediate_size": 1408,
    "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
FAMILIES = {
    "Llama": {**SMALL, "num_key_value_heads": 4}, "Mixtral": {**SMALL, "num_key_value_heads": 4},
    "DeepseekV3": EXPERTS,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(1, 2048, 0), (4, 64, 0), (64, 1, 2048), (1, 1, 512)])
@pytest.mark.parametrize("graph", [True, False])
def test_models_of_transformers_are_priced_the_same(family: str, shape: tuple[int, ...], graph: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    requests, new, cached = shape
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    with torch.device("meta"), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        past = transformers.DynamicCache(config=config)
        if cached:
            model(torch.empty(requests, cached, dtype=torch.long), past_key_values=past)
        with mt.torch_estimate("dgx-h100", graph=graph) as seen:
            model(torch.empty(requests, new, dtype=torch.long), past_key_values=past)
    keys = {**config.to_dict(), "architectures": [f"{family}ForCausalLM"]}
    step = mt.model(keys).step([(new, cached)] * requests, machine="dgx-h100", library="torch", graph=graph)
    assert step.time_us == pytest.approx(seen.time_us, rel=0.05)
