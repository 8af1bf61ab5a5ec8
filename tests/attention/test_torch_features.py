"""torch's own machinery around attention: autocast, second derivatives, torch.func, torch.compile."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

from tests.attention import attention_torch  # noqa: E402
from tests.attention.attention_processes import run_ranks  # noqa: E402

from megatile.attention import hamilton_attention  # noqa: E402


def test_one_process_alone():
    failures, count, _ = attention_torch.check_torch(0)
    assert not failures
    assert count > 20


def test_two_processes():
    for rank, (answer, error) in enumerate(run_ranks(attention_torch.check_torch, 2, timeout=300.0)):
        assert error is None, f"rank {rank}:\n{error}"
        assert not answer[0], f"rank {rank}"


def test_plain_attention_of_one_process_is_one_graph():
    x = torch.randn(1, 6, 2, 8)
    whole = torch.compile(lambda a: hamilton_attention(a, a, a, causal=True), backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(x), hamilton_attention(x, x, x, causal=True))


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "SBND"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_one_rank_is_what_the_engine_does(layout, kv_heads):
    """torch's own attention and our engine, which also gives the log-sum-exp, agree in every layout."""
    sizes = {"B": 2, "S": 5, "D": 8}
    q, k, v = (torch.randn([{**sizes, "N": n}[d] for d in layout]) for n in (4, kv_heads, kv_heads))
    for options in ({}, {"causal": True}, {"softmax_scale": 0.3}):
        got = hamilton_attention(q, k, v, layout=layout, **options)
        want, _ = hamilton_attention(q, k, v, layout=layout, return_lse=True, **options)
        torch.testing.assert_close(got, want)


def test_who_does_not_compile_does_not_load_the_compiler():
    code = (
        "import sys, torch; from megatile.attention import hamilton_attention as attend; "
        "x = torch.randn(1, 4, 2, 8); attend(x, x, x, window_size=(1, 1)); "
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("options", [{"causal": True}, {"softcap": 0.8}, {"window_size": (2, 1)}])
def test_gradients_in_f64_are_those_of_differences(options):
    q, k, v = (torch.randn(1, 5, n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 2, 2))
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, sinks):
        return hamilton_attention(q, k, v, sinks=sinks, return_lse=True, **options)

    assert torch.autograd.gradcheck(attend, (q, k, v, sinks))
