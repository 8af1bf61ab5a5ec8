"""Collectives, messages and groups of four ranks, line by line (`tests.expected`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.expected import digest, line, tried

import megatile as mt
from megatile.core.errors import MegatileError

Check = Callable[[str, dict[str, Any]], None]
CALLS = re.split(r" ; |\n", """
d.all_reduce(x) or x ; d.all_reduce(x, op=d.ReduceOp.MAX) or x ; d.all_reduce(x, op='MIN') or x
d.all_reduce(x, op='no') ; d.broadcast(x, 2) or x ; d.broadcast(x, 9) ; d.broadcast(x, -1)
d.reduce(x, 1) or x ; d.reduce(x, 1, op=d.ReduceOp.MAX) or x ; d.all_gather_into_tensor(big, x) or big
d.all_gather_into_tensor(x, x) ; d.all_gather(four, x) or four ; d.all_gather(four[:3], x)
d.gather(x, four if me == 2 else None, dst=2) or four ; d.gather(x, four, dst=2)
d.scatter(x, four if me == 1 else None, src=1) or x ; d.scatter(x, four, src=1)
d.reduce_scatter_tensor(x, big) or x ; d.reduce_scatter_tensor(big, x) ; d.reduce_scatter(x, four) or x
d.all_to_all_single(y, x) or y ; d.all_to_all_single(y, x, [1, 1, 1, 1], [1, 1, 1, 1]) or y
d.all_to_all_single(y, x, [4, 0, 0, 0]) ; d.all_to_all_single(y, x, [me, 4 - me, 0, 0], None)
d.all_to_all(four, four) or four ; d.all_to_all(four[:2], four) ; d.barrier()
d.all_reduce(x, async_op=True).wait() and x ; d.all_reduce(x, group=pair) or x
d.all_reduce(x, group=odd) or x ; d.broadcast(x, 0, group=pair) or x ; d.get_rank(pair)
d.get_world_size(odd) ; d.get_process_group_ranks(pair) ; d.get_rank() ; d.get_global_rank(odd, 1)
d.get_global_rank(odd, 2) ; d.get_group_rank(odd, 3) ; d.get_group_rank(odd, 0) ; d.get_world_size()
d.get_backend() ; d.get_backend(pair) ; d.is_initialized() ; d.is_available() ; repr(pair)
d.new_group([0, 9]) ; d.new_group([0, 0]) ; d.new_group([]) ; d.new_subgroups(2) ; d.new_subgroups(3)
d.new_subgroups(0) ; d.new_subgroups(1.5) ; d.new_subgroups(1) ; d.new_subgroups(4)
d.new_subgroups_by_enumeration([[0, 3], [1, 2]]) ; d.new_subgroups_by_enumeration([[0, 3], [3, 2]])
(d.send(x, 1) if me == 0 else d.recv(x, 0) if me == 1 else None) or x
(d.send(x, (me + 1) % 4) or d.recv(y, (me + 3) % 4)) and y
(d.isend(x, 1).wait() if me == 0 else d.irecv(x, 0).wait() if me == 1 else None) and x ; d.send(x, me)
d.send(x, 7) ; d.recv(x, -1)
(d.send(x, 1, tag=3) if me == 0 else d.recv(x, 0, tag=3) if me == 1 else None) or x
d.all_gather_object([None] * 4, me) ; d.broadcast_object_list(objects, 1) or objects
d.gather_object(me, objects if me == 2 else None, 2) or objects
d.scatter_object_list(objects[:1], ['a', 'b', 'c', 'd'], 0) or objects ; d.all_reduce(h) or h
d.all_reduce(np.ones(3)) ; d.all_reduce(e) or e ; d.all_reduce(half) or half
d.all_gather_into_tensor(big, half) ; d.all_reduce(x) if me else d.broadcast(x, 0)
d.all_reduce(x if me else y[:2]) ; d.monitored_barrier() ; d.init_process_group('nope')
d.destroy_process_group() or d.is_initialized() ; d.destroy_process_group(pair) or x
""".strip())  # fmt: skip


def text_of(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " & ".join(map(text_of, value))
    if hasattr(value, "numpy"):
        array = np.asarray(value.numpy(), np.float64)
        return " ".join(f"{number:g}" for number in array.ravel()) if array.size <= 4 else digest(array)
    return str(value)


@pytest.mark.parametrize("machine", ["ahbm", "dgx-h100"])
def test_ranks(machine: str, expected: Check) -> None:
    found: dict[str, Any] = {}
    for text in CALLS if machine == "ahbm" else CALLS[::4]:
        said: dict[int, str] = {}
        with mt.host(machine, sips=4) if machine == "ahbm" else mt.host(machine) as torch:

            def worker(rank: int, text: str = text, torch: Any = torch, said: Any = said) -> None:
                torch.accelerator.set_device_index(rank)
                torch.distributed.init_process_group(world_size=4, rank=rank)
                d = torch.distributed
                number = np.arange(4) + 10 * rank
                makes: dict[str, Callable[[], Any]] = {
                    "d": lambda: d, "me": lambda: rank, "np": lambda: np,
                    "objects": lambda: [rank, None, 2, 3],
                    "x": lambda: torch.tensor(number, dtype="f32"), "y": lambda: torch.zeros(4, dtype="f32"),
                    "big": lambda: torch.tensor(np.arange(16) + rank, dtype="f32"),
                    "e": lambda: torch.zeros(0, dtype="f32"), "half": lambda: torch.ones(4, dtype="f16"),
                    "four": lambda: [torch.tensor(number + i, dtype="f32") for i in range(4)],
                    "pair": lambda: d.new_group([0, 1]), "odd": lambda: d.new_group([1, 3]),
                    "h": lambda: torch.from_numpy(np.ones(3, "f4")),
                }  # fmt: skip
                names = {name: make() for name, make in makes.items() if re.search(rf"\b{name}\b", text)}
                before = torch.time_ns
                try:
                    answer = tried(lambda: text_of(eval(text, names)))  # noqa: S307
                except (TypeError, ValueError, AttributeError, IndexError) as error:
                    answer = type(error).__name__
                said[rank] = f"{answer} @{torch.time_ns - before:g}"

            try:
                torch.multiprocessing.spawn(worker, nprocs=4)
            except MegatileError as error:
                said[-1] = tried(lambda error=error: (_ for _ in ()).throw(error).__next__())
            moved = [str(one) for one in torch.communications]
        found[f"{machine}, {text}"] = line(said=[said.get(rank, "") for rank in (*range(4), -1)], moved=moved)
    expected("ranks", found)
