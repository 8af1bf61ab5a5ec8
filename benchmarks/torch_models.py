"""``mt.torch_estimate`` of models that transformers builds from configs on the meta device, beside
``model predict --library torch`` of the same step: eager, and tensor parallel on a fake process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import megatile as mt

SMALL = {
    "hidden_size": 4096, "num_hidden_layers": 4, "vocab_size": 32000, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336,
}  # fmt: skip
EXPERTS = {
    **SMALL, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
    "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "num_experts_per_tok": 6, "n_shared_experts": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
FAMILIES = {"Llama": SMALL, "Mixtral": SMALL, "DeepseekV3": EXPERTS}
STEPS = ((1, 2048, 0), (4, 512, 0), (1, 16, 0), (1, 1, 2048), (64, 1, 2048))
"""Requests, new and cached tokens of each."""
COLUMNS = ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")


class Compared(NamedTuple):
    """A step by both."""

    family: str
    tp: int
    step: tuple[int, int, int]
    seen_us: float
    predicted_us: float

    @property
    def error(self) -> float:
        return self.predicted_us / self.seen_us - 1


@contextmanager
def _mesh(ranks: int) -> Iterator[Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        torch.distributed.destroy_process_group()


def _divide(model: Any, mesh: Any) -> None:
    """Divide heads, feed-forward parts and logits as transformers' own plans do."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    plan = {}
    for name, _ in model.named_modules():
        last = name.rpartition(".")[2]
        if last in COLUMNS:
            plan[name] = "colwise"
        elif last in ROWS:
            plan[name] = "rowwise"
        elif last == "lm_head":
            plan[name] = "colwise_gather_output"
        elif last == "experts":
            plan |= {name: "moe_tp_experts", f"{name}.gate_up_proj": "packed_colwise"}
            plan[f"{name}.down_proj"] = "rowwise"
    known = dict(model.named_parameters())
    plan |= {f"{name}.weight": style for name, style in plan.items() if f"{name}.weight" in known}
    apply_tensor_parallelism(model, mesh, plan)


def compared(tp: int, steps: tuple[tuple[int, int, int], ...] = STEPS) -> Iterator[Compared]:
    """Yield all families and steps with a tensor parallelism."""
    import torch
    import transformers

    with _mesh(tp) as mesh, torch.device("meta"), torch.no_grad():
        for family, keys in FAMILIES.items():
            config = getattr(transformers, f"{family}Config")(**keys)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            if tp > 1:
                _divide(model, mesh)
            for requests, new, cached in steps:
                past = transformers.DynamicCache(config=config)
                if cached:
                    model(torch.empty(requests, cached, dtype=torch.long), past_key_values=past)
                with mt.torch_estimate("dgx-h100") as seen:
                    model(torch.empty(requests, new, dtype=torch.long), past_key_values=past)
                asked = mt.model({**config.to_dict(), "architectures": [f"{family}ForCausalLM"]})
                step = asked.step([(new, cached)] * requests, machine="dgx-h100", library="torch", tp=tp)
                yield Compared(family, tp, (requests, new, cached), seen.time_us, step.time_us)


if __name__ == "__main__":
    for ranks in (1, 4):
        for one in compared(ranks):
            print(f"{one.family:12} tp {one.tp} {one.step!s:15} {one.seen_us:10.1f} {one.predicted_us:10.1f} "
                  f"{one.error:+.2%}")  # fmt: skip
