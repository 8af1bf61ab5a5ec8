"""Config files: the facts that shipped ones give, and one sentence for each that cannot be read."""

from __future__ import annotations

import json

import pytest
from tests.models.shared import llama

from megatile.models.config import Layer, model_names, read_config
from megatile.models.schemes import ModelError


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("Llama-3.1-8B", 8.03, 8.03), ("Llama-3.1-70B", 70.55, 70.55), ("Qwen3-32B", 32.76, 32.76),
        ("Mixtral-8x7B-v0.1", 46.7, 12.9), ("gpt-oss-120b", 116.8, 5.7), ("DeepSeek-R1", 671.0, 37.6),
        ("MiniMax-M2.5", 228.7, 11.0), ("GPT-3-175B", 174.6, 174.6),
    ],
)  # fmt: skip
def test_parameters_are_as_published(name: str, billions: float, active: float) -> None:
    config = read_config(name)
    assert config.parameters() / 1e9 == pytest.approx(billions, rel=0.005)
    assert config.parameters(active=True) / 1e9 == pytest.approx(active, rel=0.01)


def test_every_shipped_config_is_read() -> None:
    assert len(model_names()) >= 12
    for name in model_names():
        config = read_config(name)
        assert sum(config.kinds.values()) == config.layers


def test_names_need_neither_owner_nor_case() -> None:
    assert read_config("meta-llama/llama-3.1-70b-Instruct") == read_config("Llama-3.1-70B")


@pytest.mark.parametrize(
    ("name", "shipped", "scheme"),
    [
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "Llama-3.1-70B", "fp8"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen3-235B-A22B", "fp8_block"),
        ("nvidia/DeepSeek-R1-0528-FP4", "DeepSeek-R1", "fp4"),
        ("zai-org/GLM-4.6", "GLM-4.5", "bf16"),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "mxfp4"),
    ],
)
def test_names_of_variants(name: str, shipped: str, scheme: str) -> None:
    config = read_config(name)
    assert (config.name, config.scheme) == (shipped, scheme)
    assert any("has the shapes of" in note for note in config.notes) == (shipped.lower() not in name.lower())


def test_layers_differ_by_window_and_experts() -> None:
    assert read_config("gpt-oss-20b").kinds == {Layer(True, 128): 12, Layer(True, 0): 12}
    assert read_config("gemma-3-27b").kinds == {Layer(False, 1024): 52, Layer(False, 0): 10}
    assert read_config("DeepSeek-V3").kinds == {Layer(False): 3, Layer(True): 58}
    assert "MTP" in read_config("DeepSeek-V3").notes[0]


def test_experts_are_counted_under_either_key() -> None:
    keys = {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 99,
        "num_attention_heads": 4, "intermediate_size": 64, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }  # fmt: skip
    assert read_config({**keys, "num_local_experts": 8}) == read_config({**keys, "num_experts": 8})
    with pytest.raises(ModelError, match="needs num_experts"):
        read_config(keys)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": None}, "needs hidden_size"),
        ({"architectures": ["NewForCausalLM"], "vocab_size": None}, "unknown architecture) needs vocab_size"),
        ({"hidden_size": "4096"}, "hidden_size must be an integer of at least 1, got '4096'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be an integer of at least 1"),
        ({"num_hidden_layers": 10**8}, "layers are more than"),
        ({"num_attention_heads": 3}, "3 heads do not divide hidden_size 4096"),
        ({"num_key_value_heads": 5}, "5 KV heads do not divide 32 heads"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantisation 'hqq' is unknown"),
        ({"quantization_config": "fp8"}, "must be an object"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "gptq with 8 bits is not modelled"),
        ({"torch_dtype": "int3"}, "dtype 'int3' is unknown"),
    ],
)
def test_bad_configs_are_one_sentence(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_config(llama(**changes))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_with_the_usual_keys_is_read_and_reported() -> None:
    config = read_config(llama(architectures=["NewForCausalLM"]))
    assert config.parameters() == read_config("Llama-3.1-8B").parameters()
    assert "NewForCausalLM" in config.notes[0]


def test_files_and_folders(tmp_path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama()))
    (folder / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}'
    )
    config = read_config(folder)
    assert (config.name, config.scheme, config.kv_scheme) == ("mine", "fp8", "fp8")
    for text, said in (
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object, got list"),
        ("\xff", "not JSON"),
    ):
        (folder / "config.json").write_text(text)
        with pytest.raises(ModelError, match=said):
            read_config(folder)
    with pytest.raises(ModelError, match="there is no model or config file") as caught:
        read_config("Lama-3.1-70B")
    assert "Llama-3.1-70B" in str(caught.value)
    with pytest.raises(ModelError, match="a model is a name"):
        read_config(7)
