"""The package's names: all there, light to import, clear without torch; layouts for absent ranks."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import megatile.attention as attention

_CHUNKED = "process_group q k v softmax_scale0 dropout_p"
SEED_SIGNATURES = {
    "ring_attention_forward_flash_attn": "process_group q k v softmax_scale dropout_p causal window_size",
    "zigzag_ring_attention_forward_flash_attn": "process_group q k v softmax_scale dropout_p causal "
    "window_size alibi_slopes deterministic",
    "hamilton_attention_forward_full_flash_attn": f"{_CHUNKED} world_size looping out_mapping in_mapping "
    "layout",
    "hamilton_attention_forward_causal_flash_attn": f"{_CHUNKED} world_size looping out_mapping in_mapping "
    "source_rank_per_iter layout",
    "hamilton_attention_forward_full_flash_attn_two_nodes": f"{_CHUNKED} inter_in_mapping inter_out_mapping "
    "out_mapping in_mapping layout",
    "hamilton_attention_forward_causal_flash_attn_two_nodes": f"{_CHUNKED} inter_in_mapping "
    "inter_out_mapping out_mapping in_mapping layout",
    "_update_out_and_lse": "out lse block_out block_lse",
    "gen_hamilton_circle": "n",
    "calculate_out_mapping_circle": "looping",
    "calculate_in_mapping_circle": "looping",
    "calculate_source_rank_per_iter": "looping",
    "calculate_intra_node_out_mapping_two_nodes": "path0",
    "calculate_intra_node_in_mapping_two_nodes": "path0",
}


def test_importing_and_decompositions_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import megatile.attention as a\n"
        "assert len(a.gen_hamilton_circle(8)) == 7 and a.make_schedule('hamilton', 8).ranks == 8\n"
        "try:\n    a.hamilton_attention\n"
        "except a.MissingTorchError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "hamilton_attention needs torch: pip install 'megatile[torch]'"


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'hamilton'"):
        _ = attention.hamilton


def test_every_name_is_there_with_its_arguments():
    pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")
    for name in attention.__all__:
        assert getattr(attention, name) is not None
    for name, arguments in SEED_SIGNATURES.items():
        found = [
            p.name
            for p in inspect.signature(getattr(attention, name)).parameters.values()
            if p.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        assert found == arguments.split(), name
    for name in attention.__all__:
        if name.endswith("_flash_attn") or name.endswith("_two_nodes"):
            continue
        if "forward" in name:
            assert name.endswith("_profile")
            assert getattr(attention, name).__name__ == name


_RING_FLASH = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False, group=None"
)


@pytest.mark.parametrize("kind", ["", "_varlen"])
@pytest.mark.parametrize(
    ("packing", "tensors"), [("", "q, k, v"), ("_kvpacked", "q, kv"), ("_qkvpacked", "qkv")]
)
def test_ring_flash_attentions_signatures_are_exact(kind, packing, tensors):
    pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")
    boundaries = ", cu_seqlens, max_seqlen" if kind else ""
    for prefix in ("ring_flash_attn", "zigzag_ring_flash_attn", *([] if kind else ["stripe_flash_attn"])):
        function = getattr(attention, f"{prefix}{kind}{packing}_func")
        parameters = inspect.signature(function).parameters.values()
        shown = ", ".join(str(p.replace(annotation=p.empty)).replace(" = ", "=") for p in parameters)
        assert shown == f"{tensors}{boundaries}, {_RING_FLASH}"
        with pytest.raises(TypeError, match="missing a required argument"):
            function()
        with pytest.raises(TypeError, match=r"_func\(\) got an unexpected keyword argument 'dropout'"):
            function(*(None for _ in tensors.split()), *(None for _ in boundaries.split()), dropout=1)


def test_ring_flash_attentions_functions_refuse_what_they_cannot_unpack():
    torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")
    x = torch.randn(1, 4, 2, 2, 4)
    with pytest.raises(attention.AttentionError, match="3 parts before heads and dim"):
        attention.ring_flash_attn_qkvpacked_func(x)
    for wrong in (3, [None, 4]):
        with pytest.raises(attention.AttentionError, match="cu_seqlens must be"):
            attention.ring_flash_attn_varlen_kvpacked_func(x[0, :, 0], x[0], wrong, 4)


def test_shards_and_positions_of_ranks_that_do_not_exist():
    torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")
    whole = torch.arange(11)[None, :, None]
    for schedule in ("ring", "zigzag", "striped", "hamilton", "ulysses", "ulysses:2+ring"):
        for causal in (False, True):
            arguments = {"schedule": schedule, "causal": causal, "ranks": 4}
            parts = [attention.shard_sequence(whole, rank=r, **arguments) for r in range(4)]
            ids = [attention.position_ids(11, rank=r, **arguments) for r in range(4)]
            assert [p.flatten().tolist() for p in parts] == [i.tolist() for i in ids]
            assert sorted(torch.cat(ids).tolist()) == list(range(11))
    cycles = attention.shard_sequence(
        torch.arange(12), dim=0, layout="cycles", schedule="hamilton", rank=0, ranks=3
    )
    assert cycles.tolist() == [0, 1, 6, 7]
    packed = attention.position_ids(10, cu_seqlens=[0, 4, 10], causal=True, rank=0, ranks=2)
    assert packed.tolist() == [0, 3, 0, 1, 5]
    with pytest.raises(attention.AttentionError, match="ends at 9"):
        attention.position_ids(10, cu_seqlens=[0, 9], rank=0, ranks=2)
    with pytest.raises(attention.AttentionError, match="no rank 5 among 2"):
        attention.position_ids(10, rank=5, ranks=2)


def test_records_that_are_too_long_are_a_problem_and_not_cut():
    pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")
    from megatile.runtime.agreement import RECORD_BYTES, _packed, _unpacked

    assert _unpacked(_packed({"mask": [3, None], "problem": None})) == {"mask": [3, None], "problem": None}
    packed = _packed({"chunk lengths": list(range(1000)), "problem": None})
    assert packed.numel() == RECORD_BYTES
    assert "too long" in _unpacked(packed)["problem"]


def test_one_process_alone():
    torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")
    x = torch.randn(1, 5, 2, 4)
    out, lse = attention.hamilton_attention(x, x, x, return_lse=True)
    assert out.shape == x.shape
    assert lse.shape == (1, 2, 5)
    assert torch.equal(attention.unshard_sequence(attention.shard_sequence(x, causal=True), causal=True), x)
    for layout, order in (("BNSD", (0, 2, 1, 3)), ("SBND", (1, 0, 2, 3))):
        turned = [x.permute(order)] * 3
        assert torch.allclose(attention.hamilton_attention(*turned, layout=layout), out.permute(order))
    chosen = attention.hamilton_attention(x, x, x, machine="dgx-h100")
    assert torch.equal(chosen, out)
    with pytest.raises(attention.AttentionError, match="complex64"):
        attention.hamilton_attention(*[x.to(torch.complex64)] * 3)
