"""What ranks do in the tests of wrong use, of the communication classes, and of ranks that die."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
from tests.attention.attention_cases import Cases, environment, shards, single_device, tensors

from megatile.attention import (
    A2AComm,
    AttentionError,
    PeerError,
    RingComm,
    hamilton_attention,
    make_schedule,
    shard_sequence,
    unshard_sequence,
)
from megatile.attention.backward import Gradients
from megatile.attention.communication import Communicator
from megatile.attention.engine import AttentionEngine
from megatile.compat import hamilton as forwards


def check_errors(rank):
    """Wrong use: one clear error on every rank, and the group stays usable."""
    cases = Cases()
    ranks = dist.get_world_size()
    x = torch.randn(1, 6, 4, 8)
    y = torch.randn(1, 6, 4, 8)

    attend = hamilton_attention

    last = rank == ranks - 1
    heads = torch.randn(1, 6, 2 if last else 4, 8)
    cases.refuses(
        "heads", AttentionError, "disagree on query heads: 4 on rank 0", attend, heads, heads, heads
    )
    wrong = x.to(torch.complex64) if last else x
    cases.refuses(
        "dtype", AttentionError, f"rank {ranks - 1}: q, k and v must share", attend, wrong, wrong, wrong
    )
    cases.refuses("mixed", AttentionError, "got bfloat16, float32", attend, x, x.bfloat16(), x)
    cases.refuses("dropout", AttentionError, "dropout", attend, x, x, x, dropout_p=0.1)
    cases.refuses("shape", AttentionError, "four dimensions", attend, x[0], x, x)
    cases.refuses("dim", AttentionError, "same head dim", attend, x, x[..., :4], x)
    cases.refuses("kv", AttentionError, "must agree", attend, x, x, x[:, :3])
    cases.refuses("groups", AttentionError, "not a multiple", attend, x, x[:, :, :3], x[:, :, :3])
    cases.refuses("window", AttentionError, "window_size", attend, x, x, x, window_size=(3, -2))
    cases.refuses("layout", AttentionError, "did you mean 'BSND'", attend, x, x, x, layout="BSN")
    cases.refuses("schedule", AttentionError, "did you mean 'zigzag'", attend, x, x, x, schedule="zigzac")
    cases.refuses("nodes", AttentionError, "is for 99 ranks", attend, x, x, x, schedule="hamilton:33x3")
    cases.refuses("causal", AttentionError, "disagree on mask: full on", attend, x, x, x, causal=last)
    # The mask is the same, the division is not.
    window = (-1, -1) if last else (-1, 0)
    cases.refuses(
        "half", AttentionError, "disagree on mask", attend, x, x, x, causal=last, window_size=window
    )
    # Calls that were made before: their arguments are known, and what changed is still noticed.
    repeated = {"schedule": "zigzag", "layout": "zigzag"}
    for causal in (True, False, True):
        attend(x, x, x, causal=causal, **repeated)
    cases.refuses(
        "known", AttentionError, "disagree on mask: causal on", attend, x, x, x, causal=not last, **repeated
    )
    with environment(MEGATILE_ATTENTION_CHEK="0"):
        cases.refuses(
            "variable", AttentionError, "MEGATILE_ATTENTION_CHEK", attend, x, x, x, causal=True, **repeated
        )
    cases.refuses(
        "length", AttentionError, "holds 6 query tokens", attend,
        *[x[:, : 4 if last else 6]] * 3, causal=True, **repeated,
    )  # fmt: skip
    # On one rank only: the others must not wait for it.
    bad = f"rank {ranks - 1}: "
    for what, arguments, text in (
        ("window", {"window_size": 3}, "window_size is (left, right) with -1 for no limit, got 3"),
        ("no window", {"window_size": None}, "got None"),
        ("number", {"schedule": 3}, "schedule is a name or a Schedule, got int"),
        ("scale", {"softmax_scale": "1"}, "softmax_scale must be a finite number, got str"),
        ("slopes", {"alibi_slopes": [1.0]}, "alibi_slopes must be [heads] or [batch, heads]"),
        ("batch", {"k": x.repeat(2, 1, 1, 1), "v": x.repeat(2, 1, 1, 1)}, "agree in batch, got 1 and 2"),
        ("none", {"q": None}, "must be tensors, got NoneType, Tensor, Tensor"),
        ("array", {"v": x.numpy()}, "must be tensors, got Tensor, Tensor, ndarray"),
        ("device", {"k": x.to("meta")}, "must be on one device"),
    ):
        given = {"q": x, "k": x, "v": x, **(arguments if last else {})}
        cases.refuses(f"{what} on one rank", AttentionError, bad, attend, **given)
        cases.refuses(what, AttentionError, text, attend, **{"q": x, "k": x, "v": x, **arguments})
    cases.refuses("packed text", AttentionError, "boundaries of", attend, x[0], x[0], x[0], cu_seqlens=3)
    cases.refuses(
        "names",
        AttentionError,
        "disagree on schedule",
        attend,
        x,
        x,
        x,
        schedule="ring" if last else "zigzag",
    )
    cases.refuses("group", AttentionError, "process group, got str", attend, x, x, x, group="world")
    cases.refuses("slopes", AttentionError, "alibi_slopes", attend, x, x, x, alibi_slopes=torch.ones(3))
    uneven = torch.randn(1, 7 if last else 6, 4, 8)
    cases.refuses(
        "uneven",
        AttentionError,
        "zigzag layout",
        attend,
        uneven,
        uneven,
        uneven,
        causal=True,
        schedule="zigzag",
    )
    cases.refuses("packed", AttentionError, "gives it", attend, x[0], x[0], x[0], cu_seqlens=[0, 7 * ranks])
    cases.refuses(
        "boundaries", AttentionError, "begin with 0", attend, x[0], x[0], x[0], cu_seqlens=[3, 6 * ranks]
    )
    torch.manual_seed(0)
    same = torch.randn(1, 6, 4, 8)
    with environment(MEGATILE_ATTENTION_DEBUG="1"):
        cases.refuses("unsharded", AttentionError, "the sequence was not divided", attend, same, same, same)
    with environment(MEGATILE_ATTENTION_TRANSPORT="pigeon"):
        cases.refuses("transport", AttentionError, "point_to_point, all_to_all_single", attend, x, x, x)
    with environment(**({"MEGATILE_ATTENTION_TRANSPORT": "pigeon"} if last else {})):
        cases.refuses("transport on one rank", AttentionError, bad, attend, x, x, x)
    for name, value in (("CHECK", "no"), ("DEBUG", "true"), ("TIMEOUT", "soon"), ("TIMEOUT", "-1")):
        with environment(**({f"MEGATILE_ATTENTION_{name}": value} if last else {})):
            told = f"{bad}MEGATILE_ATTENTION_{name} is "
            cases.refuses(f"{name}={value} on one rank", AttentionError, told, attend, x, x, x)
    with environment(**({"MEGATILE_ATTENTION_TIMOUT": "3"} if last else {})):
        told = f"{bad}there is no environment variable MEGATILE_ATTENTION_TIMOUT"
        cases.refuses("unknown variable", AttentionError, told, attend, x, x, x)
    for name, value in (("schedule", "zigzac"), ("schedule", 3), ("layout", "spiral")):
        one = {name: value} if last else {}
        cases.refuses(f"whole {name} on one rank", AttentionError, bad, unshard_sequence, x, **one)
    one = {"cu_seqlens": [0, 5]} if last else {}
    told = "disagree on cu_seqlens"
    cases.refuses("whole boundaries on one rank", AttentionError, told, unshard_sequence, x, **one)
    full = forwards.hamilton_attention_forward_full_flash_attn
    cases.refuses("chunks", AttentionError, "kv_chunks", full, None, x, [x], [x, x], None)
    cases.refuses("size", AttentionError, "world_size is 77", full, None, x, [x], [x], None, world_size=77)
    profiled = forwards.hamilton_attention_forward_full_flash_attn_profile
    around = list(range(ranks))
    given = {"process_group": None, "q": x, "k": [x], "v": [x], "softmax_scale0": None, "looping": [around]}
    unread = "looping and mappings are tables of ranks"
    for what, tables, text in (
        ("size", {"world_size": 77}, "world_size is 77, but the group has"),
        ("looping", {"looping": 3}, unread),
        ("cycles", {"looping": [[0, "a"]]}, unread),
        ("transposed", {"out_mapping": [[1, 0]], "in_mapping": [[1, 0]]}, "must be the transpose"),
        ("ragged", {"out_mapping": [[1], []], "in_mapping": [[1]]}, unread),
        ("text", {"looping": None, "out_mapping": [["a"]]}, ""),
        ("tensors", {"q": None}, "must be tensors, got NoneType"),
    ):
        cases.refuses(f"{what} everywhere", AttentionError, text, profiled, **{**given, **tables})
        one = {**given, **(tables if last else {})}
        cases.refuses(f"{what} on one rank", AttentionError, bad, profiled, **one)
    nodes = forwards.hamilton_attention_forward_full_flash_attn_two_nodes
    told = "both out_mapping and inter_out_mapping"
    cases.refuses("one table", AttentionError, told, nodes, None, x, [x], [x], None, inter_out_mapping=[0])
    causal = forwards.hamilton_attention_forward_causal_flash_attn
    odd, few = ([torch.randn(1, size, 4, 8) for size in sizes] for sizes in ((3, 3), (2, 2)))
    for name, chunks, told in (
        (
            "halves",
            odd,
            "at most one causal chunk may have an odd length (see kv_chunks), got lengths [3, 3]",
        ),
        ("too few", few, "q has 6 tokens, the causal chunks have 4"),
    ):
        cases.refuses(name, AttentionError, told, causal, None, x, chunks, chunks, None, looping=[around] * 2)
    more = torch.randn(1, 8 if last else 6, 4, 8)
    told = "rank 0 holds 6 key tokens, but schedule 'given cycles' (zigzag layout) gives it 7"
    cases.refuses("layout", AttentionError, told, causal, None, more, [more], [more], None, looping=[around])
    got = attend(x + rank, y, y, schedule=make_schedule("direct", ranks))
    if not torch.isfinite(got).all():
        cases.failures.append("the group is not usable after errors")
    return cases.failures, cases.count, cases.worst


def check_communication_classes(rank):
    """RingComm and A2AComm, and a call without the comparison of arguments."""
    cases, ranks = Cases(), dist.get_world_size()
    for group in (dist.group.WORLD, None):
        ring = RingComm(group)
        k, v = ring.send_recv_kv(torch.full((3,), float(rank)), torch.full((2, 2), -float(rank)))
        if ranks > 1:
            cases.refuses("not awaited", AttentionError, "were not awaited", ring.commit)
        ring.wait()
        before = float((rank - 1) % ranks)
        expected = [torch.full((3,), before).double(), torch.full((2, 2), -before).double()]
        cases.compare("ring", [k, v], expected)
        everyone = A2AComm(group)
        received = [torch.full((p + 1, 2), float("nan")) for p in range(ranks)]
        everyone.all_to_all([torch.full((rank + 1, 2), 10.0 * rank + p) for p in range(ranks)], received)
        everyone.wait()
        expected = [torch.full((p + 1, 2), 10.0 * p + rank).double() for p in range(ranks)]
        cases.compare("all to all", received[:4], expected[:4])
    cases.refuses("too few", AttentionError, "one tensor per rank", everyone.all_to_all, [k], [k])
    q, k, v = tensors(2, *[(1, 4 * ranks, 2, 4)] * 3)
    exact = single_device(*(x.double() for x in (q, k, v)))
    with environment(MEGATILE_ATTENTION_CHECK="0"):
        out = hamilton_attention(*(shard_sequence(x) for x in (q, k, v)))
    cases.compare("unchecked", [out], shards([exact], {}))
    cases.refuses("tokens", AttentionError, "gives them", unshard_sequence, out[:, rank:], layout="striped")
    return cases.failures, cases.count, cases.worst


def check_overlap(rank):
    """Kernels of a step end only when the chunks of the next are here: in turn they never would."""
    cases, ranks = Cases(), dist.get_world_size()
    q, k, v = tensors(2, *[(1, 6 * ranks, 2, 4)] * 3)
    exact = [single_device(*(x.double() for x in (q, k, v)))]
    for schedule in ("ring", "hamilton", "direct"):
        for transport in ("point_to_point", "all_to_all_single"):
            with environment(MEGATILE_ATTENTION_TRANSPORT=transport), _kernels_that_wait() as waited:
                out = hamilton_attention(*(shard_sequence(x) for x in (q, k, v)), schedule=schedule)
            cases.compare(f"{schedule} by {transport}", [out], shards(exact, {}))
            steps = make_schedule(schedule, ranks).routes.exchanges
            if waited != list(range(1, steps + 1)):
                cases.failures.append(f"{schedule} by {transport}: kernels waited for {waited}")
    return cases.failures, cases.count, cases.worst


@contextmanager
def _kernels_that_wait(seconds=20.0):
    """Yields the numbers of the exchanges that were complete before the kernels ahead of them ended."""
    started, waited = [], []
    exchange, call = Communicator.exchange, AttentionEngine._forward_call
    posted = dist.irecv

    def empty(buffer, *arguments):
        buffer.fill_(float("nan"))  # before anything can arrive
        return posted(buffer, *arguments)

    def noted(self, *arguments):
        started.append(exchange(self, *arguments))
        return started[-1]

    def slow(self, *arguments):
        end = time.monotonic() + seconds
        while len(waited) < len(started) and time.monotonic() < end:
            pending = started[-1]
            here = not any(x.isnan().any() for x in pending.received.values())
            if here and all(peer is not None or work.is_completed() for work, peer in pending.works):
                waited.append(len(started))
        return call(self, *arguments)

    dist.irecv, Communicator.exchange, AttentionEngine._forward_call = empty, noted, slow
    try:
        yield waited
    finally:
        dist.irecv, Communicator.exchange, AttentionEngine._forward_call = posted, exchange, call


def dies_in_the_middle(rank, schedule, victim, causal, backward):
    """One rank ends while the others work; they must name it."""
    x = torch.randn(1, 16, 4, 8, requires_grad=backward)

    def attend():
        layout = make_schedule(schedule, dist.get_world_size()).layout(causal).name
        out = hamilton_attention(x, x, x, schedule=schedule, causal=causal, layout=layout)
        if backward:
            out.sum().backward()

    attend()
    if rank == victim:
        owner, name = (Gradients, "_call") if backward else (AttentionEngine, "_forward_call")
        original = getattr(owner, name)

        def deadly(self, *args):
            deadly.calls += 1
            if deadly.calls == (1 if schedule == "ulysses" else 2):
                os._exit(17)
            return original(self, *args)

        deadly.calls = 0
        setattr(owner, name, deadly)
    for _ in range(3):
        attend()


def goes_missing(rank, victim, how, schedule, own_timeout):
    """One rank is lost in some way; of the others: seconds until the error, its text, the ranks it names."""
    x = torch.randn(1, 16, 4, 8)
    with environment(MEGATILE_ATTENTION_TIMEOUT=own_timeout):
        hamilton_attention(x, x, x, schedule=schedule)
        if rank == victim:
            _lose(how)
        start = time.monotonic()
        try:
            hamilton_attention(x, x, x, schedule=schedule)
        except PeerError as error:
            return time.monotonic() - start, str(error), error.ranks
    return None


def _lose(how):
    """Before the call, or in the middle of it."""
    means = {
        "sleeps": lambda: time.sleep(600),
        "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "exits": lambda: os._exit(0),
        "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }
    name, _, when = how.partition(", ")
    if when:
        AttentionEngine._forward_call = lambda *_: means[name]()
    else:
        means[name]()


def is_slow(rank, victim, seconds):
    """One rank comes late, but in time; and once more, so that nothing of the first time remains."""
    x = torch.randn(1, 8, 2, 8)
    for _ in range(2):
        if rank == victim:
            time.sleep(seconds)
        hamilton_attention(x, x, x, schedule="ring")
    return "done"


def never_calls(rank, victim, seconds):
    """One rank does not take part; the others must name it after their timeout."""
    x = torch.randn(1, 8, 2, 8)
    if rank == victim:
        time.sleep(60)  # it is ended before
        return
    with environment(MEGATILE_ATTENTION_TIMEOUT=seconds):
        hamilton_attention(x, x, x)
