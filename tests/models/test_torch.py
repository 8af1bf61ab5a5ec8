"""``library="torch"`` prices what ``mt.torch_estimate`` sees of a Llama written as torch modules."""

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
        x = x + self.o(y.transpose(1, 2).contiguous().view(1, x.shape[1], 2048))
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
        return self.head(self.norm(x)[:, -1])


@pytest.mark.parametrize("tokens", [512, 2048, 8192])
def test_a_prefill_is_priced_alike(tokens: int) -> None:
    with torch.device("meta"):
        module = Llama().to(torch.bfloat16)
        angles = torch.empty(tokens, 128, dtype=torch.bfloat16)
        seen = mt.torch_estimate(module, torch.empty(1, tokens, dtype=torch.long), angles, angles)
    step = mt.model(CONFIG).step([(tokens, 0)], machine="dgx-h100", library="torch")
    device = step.time_us - step.host_us
    assert device == pytest.approx(seen.time_us, rel=0.05)
