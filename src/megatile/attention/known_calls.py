"""Calls whose arguments were checked before: what the next call with the same ones need not do again."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.ownership import shard_tag
from megatile.attention.settings import PREFIX, VALUES
from megatile.runtime.rank_liveness import TIMEOUT_VARIABLE

MAX_KNOWN_CALLS = 256
"""Calls whose checked arguments a group remembers; all are dropped when there are more."""
_SETTINGS = (*(PREFIX + name for name in VALUES), TIMEOUT_VARIABLE)


Calls = dict[Hashable, Any]


class KnownCall:
    """The place of a call among those known; ``found`` is what was kept for it."""

    def __init__(self, calls: Calls, key: Hashable):
        self._calls, self._key = calls, key
        self.found = calls.get(key)

    def keep(self, prepared: Any) -> None:
        """``prepared`` must not refer to the group, which would never be freed."""
        if len(self._calls) >= MAX_KNOWN_CALLS:
            self._calls.clear()
        self._calls[self._key] = prepared


_KNOWN: WeakKeyDictionary[dist.ProcessGroup, Calls] = WeakKeyDictionary()
"""By group, and by everything else that the checks of arguments look at."""


def known_call(
    q: Any, k: Any, v: Any, group: dist.ProcessGroup | None, cu_seqlens: Any, options: tuple[Any, ...]
) -> KnownCall | None:
    """None for a call without a group, or with arguments that cannot be compared."""
    if group is None:
        return None
    try:
        boundaries = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens
        packed = None if boundaries is None else (*boundaries, type(cu_seqlens))
        settings = len(os.environ), *map(os.environ.get, _SETTINGS)
        tensors = _tensor_key(q), _tensor_key(k), _tensor_key(v)
        key = *tensors, torch.is_grad_enabled(), packed, *options, *map(type, options), settings
        return KnownCall(_KNOWN.setdefault(group, {}), key)
    except (AttributeError, TypeError, RuntimeError):  # the checks say what is wrong
        return None


def _tensor_key(x: Tensor) -> tuple[Hashable, ...]:
    if torch._C._functorch.is_batchedtensor(x):
        raise TypeError("torch.vmap")
    return x.shape, x.dtype, x.device, x.layout, x.requires_grad, shard_tag(x)
