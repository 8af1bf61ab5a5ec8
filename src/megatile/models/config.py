"""A model's config file: what a Hugging Face ``config.json`` says, as one frozen record.

    read_config("Llama-3.1-70B")        # shipped with megatile
    read_config("path/to/config.json")  # or the folder that holds it

A table per architecture says which key holds which field. An architecture that is not in the table is read
by the usual keys; if one of them is missing, the error names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from megatile.core.errors import Place, did_you_mean
from megatile.core.files import exists, is_folder, parse_json, read_text
from megatile.models.schemes import SCHEMES, ModelError, kv_dtype_name, scheme_name, scheme_of

MAX_CONFIG_BYTES = 4 << 20
"""Bytes of a config.json that are read."""
MAX_EXTENT = 10**9
"""Largest extent in a config."""
MAX_LAYERS = 10_000
"""Layers of a model."""
SHIPPED = Path(__file__).parent / "configs"


class Layer(NamedTuple):
    """What distinguishes a layer: whether its feed-forward part is experts, and its attention window."""

    experts: bool
    window: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """The facts of a decoder-only transformer that decide its time and memory."""

    name: str
    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    experts: int = 0
    topk: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    """Width of the experts that every token passes, together."""
    dense_first: int = 0
    """Layers at the beginning whose feed-forward part is dense in a model of experts."""
    expert_every: int = 1
    window: int = 0
    windowed: tuple[bool, ...] = ()
    """For each layer whether the window holds; empty: in all, if there is a window."""
    q_lora: int = 0
    kv_lora: int = 0
    """Rank of the latent vector that is cached; not 0 means multi-head latent attention."""
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0
    gated: bool = True
    """Whether the feed-forward part has a gate beside the up projection (SwiGLU)."""
    qk_norm: bool = False
    qk_norm_whole: bool = False
    """Whether the norm of queries and keys is over all heads, so that devices exchange its sums."""
    tied: bool = False
    scheme: str = "bf16"
    kv_scheme: str = "bf16"
    fp8_scheme: str = "fp8"
    """What ``fp8`` means for a model in 16 bits: the scheme of its publisher's fp8 variant."""
    quantised_attention: bool = True
    """Whether the scheme holds for the projections of attention too, or for experts only."""
    positions: int = 0
    notes: tuple[str, ...] = ()

    @property
    def latent(self) -> bool:
        return self.kv_lora > 0

    @cached_property
    def kinds(self) -> dict[Layer, int]:
        """How many layers there are of each kind, in the order in which they first occur."""
        found: dict[Layer, int] = {}
        for number in range(self.layers):
            layer = self.layer(number)
            found[layer] = found.get(layer, 0) + 1
        return found

    def layer(self, number: int) -> Layer:
        """Return the kind of a layer, counted from 0."""
        sparse = self.experts > 0 and number >= self.dense_first
        sparse = sparse and (number + 1) % self.expert_every == 0
        near = self.window > 0 and (not self.windowed or self.windowed[number])
        return Layer(sparse, self.window if near else 0)

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention."""
        if self.latent:
            q_width = self.heads * (self.nope_dim + self.rope_dim)
            query = (
                self.hidden * self.q_lora + self.q_lora * q_width if self.q_lora else self.hidden * q_width
            )
            latent = self.hidden * (self.kv_lora + self.rope_dim)
            expand = self.kv_lora * self.heads * (self.nope_dim + self.v_dim)
            return query + latent + expand + self.heads * self.v_dim * self.hidden
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    def feed_forward_parameters(self, layer: Layer, active: bool = False) -> int:
        """Return weights of one layer's feed-forward part; ``active``: those that one token passes."""
        matrices = 3 if self.gated else 2
        if not layer.experts:
            return matrices * self.hidden * self.inner
        routed = matrices * self.hidden * self.expert_inner * (self.topk if active else self.experts)
        return routed + matrices * self.hidden * self.shared_inner + self.hidden * self.experts

    def parameters(self, active: bool = False) -> int:
        """Return all weights, or those that one token passes."""
        blocks = sum(
            count
            * (self.attention_parameters + self.feed_forward_parameters(layer, active) + 2 * self.hidden)
            for layer, count in self.kinds.items()
        )
        return blocks + self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    def __str__(self) -> str:
        total, active = self.parameters(), self.parameters(active=True)
        size = f"{total / 1e9:.4g} B parameters"
        if active < 0.95 * total:
            size += f", {active / 1e9:.3g} B active"
        return f"{self.name}: {size}, {self.layers} layers, {self.scheme}"


# --- tables: field -> key ---------------------------------------------------------------------------------

_USUAL = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "inner": "intermediate_size", "vocab": "vocab_size",
}  # fmt: skip
_MIXTRAL = {
    **_USUAL, "experts": "num_local_experts", "topk": "num_experts_per_tok",
    "expert_inner": "intermediate_size",
}  # fmt: skip
_QWEN_MOE = {
    **_USUAL, "experts": "num_experts", "topk": "num_experts_per_tok",
    "expert_inner": "moe_intermediate_size",
}  # fmt: skip
_ROUTED = {
    **_USUAL, "experts": "n_routed_experts", "topk": "num_experts_per_tok",
    "expert_inner": "moe_intermediate_size",
}  # fmt: skip
_LATENT = {
    **_ROUTED, "kv_lora": "kv_lora_rank", "rope_dim": "qk_rope_head_dim", "nope_dim": "qk_nope_head_dim",
    "v_dim": "v_head_dim",
}  # fmt: skip
_GPT2 = {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "vocab": "vocab_size"}
ARCHITECTURES: dict[str, dict[str, str]] = {
    **dict.fromkeys(
        (
            "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
            "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration",
            "Phi3ForCausalLM", "GlmForCausalLM", "Glm4ForCausalLM",
        ),
        _USUAL,
    ),
    "MixtralForCausalLM": _MIXTRAL, "MiniMaxM2ForCausalLM": _MIXTRAL, "GptOssForCausalLM": _MIXTRAL,
    "Qwen2MoeForCausalLM": _QWEN_MOE, "Qwen3MoeForCausalLM": _QWEN_MOE,
    "DeepseekV2ForCausalLM": _LATENT, "DeepseekV3ForCausalLM": _LATENT, "KimiK2ForCausalLM": _LATENT,
    "Glm4MoeForCausalLM": _ROUTED, "GPT2LMHeadModel": _GPT2,
}  # fmt: skip
"""Needed keys by architecture: field of `ModelConfig` → key of the file."""
_OPTIONAL = {
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "q_lora": "q_lora_rank", "inner": "n_inner",
    "dense_first": "first_k_dense_replace", "expert_every": "decoder_sparse_step",
    "shared_inner": "shared_expert_intermediate_size", "positions": "max_position_embeddings",
}  # fmt: skip
_WITHOUT_GATE = ("GPT2LMHeadModel",)
_QK_NORM = (
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "MiniMaxM2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
)
_QK_NORM_WHOLE = ("MiniMaxM2ForCausalLM",)
_BLOCK_FP8 = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
"""Architectures whose publisher's fp8 variant has a scale for every 128 × 128 block (Qwen3-32B-FP8)."""
_EXPERTS_ONLY = ("GptOssForCausalLM",)
"""Architectures whose shipped quantisation is of the experts alone."""


def model_names() -> list[str]:
    """Return the names of the configs that come with megatile."""
    return sorted((path.stem for path in SHIPPED.glob("*.json")), key=str.lower)


def read_config(source: Any) -> ModelConfig:
    """Return the config of a shipped model, a ``config.json`` or its folder, or a mapping of its keys."""
    if isinstance(source, Mapping):
        return from_mapping(source, str(source.get("_name_or_path") or source.get("model_type") or "model"))
    if not isinstance(source, (str, Path)) or not str(source):
        raise ModelError(
            f"a model is a name or a config.json, got {source!r}", advice='mt.model("Llama-3.1-70B")'
        )
    shipped = {name.lower(): name for name in model_names()}
    name, scheme = _short(str(source), shipped)
    known = shipped.get(_SAME_SHAPES.get(name, name))
    if known is not None and not exists(source):
        found = from_mapping(_read(SHIPPED / f"{known}.json"), known)
        if name in _SAME_SHAPES:
            found = replace(found, notes=(*found.notes, f"'{source}' has the shapes of {known}, read here"))
        return replace(found, scheme=scheme_name(scheme, found.scheme, found.fp8_scheme)) if scheme else found
    path = Path(source)
    if is_folder(path):
        path = path / "config.json"
    if not exists(path):
        advice = did_you_mean(str(source), model_names(), what="models")
        raise ModelError(f"there is no model or config file '{source}'", advice=advice)
    values = _read(path)
    beside = path.with_name("hf_quant_config.json")
    if "quantization_config" not in values and exists(beside):
        values = {**values, "quantization_config": _read(beside).get("quantization", {})}
    name = path.parent.name if path.name == "config.json" else path.stem
    return from_mapping(values, name or "model", Place(str(path)))


_VARIANT = re.compile(r"instruct|it|chat|base|hf|thinking|dynamic|terminus|\d{4}")
_SCHEME_WORDS = ("nvfp4", "fp4", "fp8", "bf16", "awq", "gptq", "int4", "w4a16")
_SAME_SHAPES = {
    "llama-3.3-70b": "llama-3.1-70b", "llama-3-8b": "llama-3.1-8b", "llama-3-70b": "llama-3.1-70b",
    "deepseek-v3.1": "deepseek-v3", "minimax-m2.1": "minimax-m2", "minimax-m2.7": "minimax-m2.5",
    "glm-4.6": "glm-4.5", "glm-4.7": "glm-4.5", "kimi-k2.5": "kimi-k2",
}  # fmt: skip
"""Models whose weights have the shapes of a shipped one."""


def _short(source: str, shipped: Mapping[str, str]) -> tuple[str, str]:
    """Return a name without its owner and without what leaves shapes as they are (``-Instruct``, ``-0528``),
    and the scheme that it names (``-FP8``, ``-AWQ``), if any."""
    words = source.lower().split("/")[-1].removeprefix("meta-").split("-")
    scheme = next((word for word in words if word in _SCHEME_WORDS), "")
    kept = [w for w in words if w not in _SCHEME_WORDS and not _VARIANT.fullmatch(w)]
    if "-".join(kept) not in shipped and re.fullmatch(r"v\d", kept[-1] if kept else ""):
        kept.pop()  # the second version of a quantised checkpoint
    return "-".join(kept), scheme


def _read(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_text(path, MAX_CONFIG_BYTES, ModelError), max_objects=10_000)
    except (json.JSONDecodeError, ValueError) as problem:
        if isinstance(problem, ModelError):
            raise
        raise ModelError(f"is not JSON: {problem}", place=Place(str(path))) from None
    if not isinstance(found, dict):
        raise ModelError(f"must be a JSON object, got {type(found).__name__}", place=Place(str(path)))
    return found


def from_mapping(values: Mapping[str, Any], name: str, place: Place | None = None) -> ModelConfig:
    """Return the config that the keys of a ``config.json`` describe."""
    names = values.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    text = values.get("text_config")
    inside = {**values, **text} if isinstance(text, Mapping) else dict(values)
    reader = _Reader(inside, name, architecture, place)
    return reader.config()


class _Reader:
    """Reads the fields of one config file."""

    def __init__(self, values: Mapping[str, Any], name: str, architecture: str, place: Place | None):
        self.values, self.name, self.architecture, self.place = dict(values), name, architecture, place
        self.table = ARCHITECTURES.get(architecture) or self._guess()
        self.values.setdefault("num_experts", values.get("num_local_experts"))  # transformers writes either
        self.notes: list[str] = []

    def config(self) -> ModelConfig:
        missing = [key for key in dict.fromkeys(self.table.values()) if self.values.get(key) is None]
        if missing:
            unknown = "" if self.architecture in ARCHITECTURES else " (an unknown architecture)"
            raise self.error(
                f"'{self.architecture or 'no architecture'}'{unknown} needs {', '.join(missing)}",
                f"add {' and '.join(missing)} to the config",
            )
        if self.architecture not in ARCHITECTURES:
            self.notes.append(f"architecture '{self.architecture}' is read by the usual keys")
        found: dict[str, Any] = {field: self.extent(key) for field, key in self.table.items()}
        for field, key in _OPTIONAL.items():
            if self.values.get(key) is not None:
                found.setdefault(field, self.extent(key, 0))
        return self.finish(found)

    def finish(self, found: dict[str, Any]) -> ModelConfig:
        heads, hidden = found["heads"], found["hidden"]
        found.setdefault("kv_heads", heads)
        found["kv_heads"] = found["kv_heads"] or heads
        found["inner"] = found.get("inner") or 4 * hidden
        if found.get("kv_lora"):
            found["head_dim"] = found["nope_dim"] + found["rope_dim"]
        elif not found.get("head_dim"):
            if hidden % heads:
                raise self.error(f"{heads} heads do not divide hidden_size {hidden}", "give head_dim")
            found["head_dim"] = hidden // heads
        if heads % found["kv_heads"]:
            raise self.error(
                f"{found['kv_heads']} KV heads do not divide {heads} heads", "correct the config"
            )
        if found["layers"] > MAX_LAYERS:
            raise self.error(f"{found['layers']} layers are more than {MAX_LAYERS}", "correct the config")
        if found.get("topk", 0) > found.get("experts", 0):
            raise self.error(
                f"top {found['topk']} of {found.get('experts', 0)} experts", "correct the config"
            )
        shared = self.values.get("n_shared_experts")
        if isinstance(shared, int) and shared > 0 and found.get("expert_inner"):
            found["shared_inner"] = shared * found["expert_inner"]
        found["expert_every"] = found.get("expert_every") or 1
        if self.values.get("num_nextn_predict_layers"):
            self.notes.append("layers that predict further tokens (MTP) are left out")
        windows = self.windows(found["layers"])
        return ModelConfig(
            name=self.name, architecture=self.architecture, **found, **windows,
            gated=self.architecture not in _WITHOUT_GATE, qk_norm=self.architecture in _QK_NORM,
            qk_norm_whole=self.architecture in _QK_NORM_WHOLE,
            tied=bool(self.values.get("tie_word_embeddings", False)), **self.schemes(),
            notes=tuple(self.notes),
        )  # fmt: skip

    def schemes(self) -> dict[str, Any]:
        own = self.values.get("quantization_config") or self.values.get("quantization")
        given = self.values.get("torch_dtype") or self.values.get("dtype") or "bfloat16"
        plain = scheme_name(str(given).removeprefix("torch."))
        if own is None:
            block = self.architecture in _BLOCK_FP8
            return {"scheme": plain, "fp8_scheme": "fp8_block" if block else "fp8"}
        scheme = scheme_of(own, self.name)
        cache = own.get("kv_cache_quant_algo") if isinstance(own, Mapping) else None
        kv = kv_dtype_name("fp8" if str(cache).upper().startswith("FP8") else None)
        only = self.architecture in _EXPERTS_ONLY and SCHEMES[scheme].family == "fp4"
        return {"scheme": scheme, "kv_scheme": kv, "quantised_attention": not only}

    def windows(self, layers: int) -> dict[str, Any]:
        """Return the window and in which layers it holds: listed, by a pattern, or everywhere."""
        size = self.values.get("sliding_window")
        if size is None or self.values.get("use_sliding_window") is False:
            return {}
        window = self.extent("sliding_window", 0)
        kinds, pattern = self.values.get("layer_types"), self.values.get("sliding_window_pattern")
        if isinstance(kinds, list) and len(kinds) == layers:
            near = tuple("sliding" in str(kind) for kind in kinds)
        elif isinstance(pattern, int) and pattern > 1:
            near = tuple((number + 1) % pattern != 0 for number in range(layers))
        elif "Gemma2" in self.architecture:
            near = tuple(number % 2 == 0 for number in range(layers))
        else:
            near = ()
        return {"window": window, "windowed": near}

    def _guess(self) -> dict[str, str]:
        """Return the keys of an architecture that is not in the table, by the keys that the file has."""
        has = self.values
        if "kv_lora_rank" in has:
            return _LATENT
        for table, key in (
            (_ROUTED, "n_routed_experts"),
            (_QWEN_MOE, "num_experts"),
            (_MIXTRAL, "num_local_experts"),
        ):
            if key in has:
                return table
        return _USUAL

    def extent(self, key: str, least: int = 1) -> int:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_EXTENT:
            raise self.error(
                f"{key} must be an integer of at least {least}, got {value!r}", "correct the config"
            )
        return value

    def error(self, message: str, advice: str) -> ModelError:
        return ModelError(
            message if self.place else f"{self.name}: {message}", place=self.place, advice=advice
        )
