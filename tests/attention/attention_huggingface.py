"""What ranks do in the tests of transformers' models: train on divided sequences, beside one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from tests.attention.attention_cases import Cases
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from megatile.attention import AttentionError
from megatile.attention.huggingface import register_attention, shard_batch

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "attention_dropout": 0.0,
}
MODELS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen": (Qwen2Config, Qwen2ForCausalLM)}
STEPS = 20


def check_models(rank):
    """Loss and gradients of 20 steps equal those of one process; packed or not, with checkpointing."""
    cases = Cases()
    register_attention("megatile")
    for name, packed in (("llama", True), ("qwen", False), ("qwen", True)):
        torch.manual_seed(1)
        config, model = MODELS[name]
        alone, divided = (
            model(config(**SIZES, attn_implementation=x)).double() for x in ("sdpa", "megatile")
        )
        divided.load_state_dict(alone.state_dict())
        divided.gradient_checkpointing_enable()
        divided.train()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, divided)]
        for step in range(STEPS):
            batch = _batch(step, packed)
            losses = [alone(**batch, use_cache=False).loss]
            losses.append(divided(**shard_batch(batch), use_cache=False).loss)
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.backward()
            whole = losses[1].detach().clone()
            dist.all_reduce(whole)
            for parameter in divided.parameters():
                dist.all_reduce(parameter.grad)
            pairs = [(x.grad, y.grad) for x, y in zip(divided.parameters(), alone.parameters(), strict=True)]
            cases.compare(f"{name} loss, step {step}", [whole], [losses[0].detach()], limit=1e-6)
            for got, want in pairs:
                cases.compare(f"{name} gradients, step {step}", [got], [want], limit=1e-5)
            for optimizer in optimizers:
                optimizer.step()
    batch = _batch(0, packed=False)
    batch["attention_mask"] = torch.tensor([[0] + [1] * (batch["input_ids"].shape[1] - 1)] * 2)
    cases.refuses("padding", AttentionError, "hides padding", shard_batch, batch)
    return cases.failures, cases.count, cases.worst


def _batch(step, packed):
    random = torch.Generator().manual_seed(step)
    length = 37 + step
    ids = torch.randint(0, SIZES["vocab_size"], (1 if packed else 2, length), generator=random)
    batch = {"input_ids": ids, "labels": ids.clone()}
    if packed:
        cut = 5 + step
        batch["position_ids"] = torch.cat([torch.arange(cut), torch.arange(length - cut)])[None]
        batch["labels"][0, cut] = -100  # as collators do it: no prediction across documents
    return batch
