"""Tensors of the host namespace: arrays of the host, or shards in the memories of one device.

Reads by the host (``numpy()``, ``data``, indexing, ``repr``, the source of ``copy_``) wait for the worker's
own launches, never for collectives that others have yet to join: that could wait forever.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.runtime.host.joint_launch import HeldLaunch
from megatile.runtime.host.placement import PlacedShard, TensorHandle

if TYPE_CHECKING:
    from megatile.runtime.host.context import RuntimeContext
    from megatile.sim import Launch


class TensorError(MegatileError, RuntimeError):
    """A tensor that cannot be used like this."""


class TensorIndexError(MegatileError, IndexError):
    """Elements that a tensor does not have."""


class ShapeMismatch(MegatileError, ValueError):
    """Shapes that do not go together."""


class Device(str):
    """``cpu``, or a device by number: ``ahbm:1`` has ``type`` and ``index``."""

    @property
    def type(self) -> str:
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]
        number = self.partition(":")[2]
        return int(number) if number else None


class Stored:
    """A tensor as it lies: ``handle`` is None for one of the host, whose contents are ``_data``; else it has
    one row per shard (a list of arrays where they are uneven), or is None where only times are found
    out."""

    def __init__(
        self,
        context: RuntimeContext,
        shape: tuple[int, ...],
        dtype: str,
        data: Any,
        handle: TensorHandle | None = None,
    ) -> None:
        self.context, self.shape, self.dtype, self.handle = context, shape, dtype, handle
        self._data = data
        self.writer: Launch | None = None
        """The last work that writes it."""
        self.copy_made_by = ""
        if handle is not None:
            self._finalizer = weakref.finalize(self, _release, context, handle)

    @property
    def writers(self) -> tuple[Launch, ...]:
        """The work after which it holds what was last written."""
        self.settle()
        return () if self.writer is None else (self.writer,)

    # what it is

    @property
    def _handle(self) -> TensorHandle | None:
        """KernBench's name for ``handle``."""
        return self.handle

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel() * itemsize(self.dtype)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    @property
    def name(self) -> str:
        return self.handle.name if self.handle else "host tensor"

    @property
    def device(self) -> Device:
        return Device("cpu" if self.handle is None else f"{self.context.backend}:{self.device_index}")

    @property
    def is_cuda(self) -> bool:
        return self.handle is not None

    def dim(self) -> int:
        return self.ndim

    @property
    def device_index(self) -> int:
        return self._there().shards[0].sip

    @property
    def shards(self) -> tuple[PlacedShard, ...]:
        return self._there().shards

    @property
    def va_base(self) -> int | None:
        """The first virtual address."""
        return self._there().va_base

    def _there(self) -> TensorHandle:
        """Return the handle, if there is one and its memory was not given back."""
        if self.handle is None:
            raise TensorError(
                "a tensor of the host has no shards",
                advice="torch.empty(...).copy_(tensor) puts it on a device",
            )
        if self.handle.freed:
            raise TensorError(f"tensor '{self.handle.name}' is used after it was freed")
        return self.handle

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        if self.handle is not None and self.handle.freed:
            return f"tensor('{self.name}', freed)"
        where = f"tensor(shape={self.shape}, dtype={self.dtype}, device={self.device}"
        if self._data is None:
            return where + ", without data)"
        values = self._read().astype(np.float64)
        mean = float(values.mean()) if values.size else 0.0
        return f"{where}, mean={mean:.6g}, norm={float(np.linalg.norm(values)):.6g})"

    # contents

    @property
    def data(self) -> Any:
        """The contents as a NumPy array of the host; see :meth:`numpy`."""
        return self.numpy()

    def numpy(self) -> Any:
        """Return a copy of the contents in the host's memory, which takes the time of the transfer."""
        return np.array(self._read())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy().astype(dtype or numpy_dtype(self.dtype), copy=False)

    def _read(self, nbytes: int | None = None) -> Any:
        """Return the contents, once the worker's launches are done and the bytes have come over the host's
        link."""
        if self.handle is None:
            return self._data
        array = self.contents()
        if self.context.debug and self.context.distributed.unfinished_on(self):
            self.context.warn(f"'{self.name}' is read before a collective on it is complete")
        pieces = 1 if nbytes is not None else pieces_of(self.shards, self.shape)
        self.context.host_copy(f"read {self.name}", self.nbytes if nbytes is None else nbytes, pieces, self)
        return array

    def settle(self) -> None:
        """Run the launch that is held until somebody needs this tensor, if there is one."""
        if isinstance(self.writer, HeldLaunch):
            self.writer.settle()

    def contents(self) -> Any:
        """Return what the device holds, at no cost: for the runtime itself."""
        self.settle()
        handle = self._there()
        if self._data is None:
            raise TensorError(
                f"tensor '{self.name}' has no contents: this host computes times only",
                advice="mt.host(..., data=True)",
            )
        if len(handle.shards) == 1:
            return np.asarray(self._data[0]).reshape(self.shape)
        return handle.unpack(self._data)

    def set_contents(self, array: Any) -> None:
        """Replace what the device holds, at no cost: for the runtime itself."""
        self.settle()
        handle = self._there()
        if self._data is not None:
            self._data = _packed(handle, np.asarray(array, dtype=numpy_dtype(self.dtype)).reshape(self.shape))

    def given(self, array: Any) -> None:
        """Take contents from the host."""
        self.set_contents(array)
        if self.context.op_log is not None and self._data is not None:
            self.context.op_log.written(self)

    def rows(self, numbers: Sequence[int] | None = None) -> Any:
        """Return one row per shard (or per shard of these numbers), as a plan takes them; shards that differ
        in shape are no rows."""
        self.settle()
        if numbers is not None and not (self._there().even and len(numbers) == len(self.shards)):
            return np.stack([self._data[n] for n in numbers])
        if not self._there().even:
            raise TensorError(
                f"the shards of '{self.name}' are uneven: {sorted({s.spec.shape for s in self.shards})}",
                advice="choose a shape that divides by the number of cubes and PEs",
            )
        return self._data

    def set_rows(self, numbers: Sequence[int] | None, rows: Any) -> None:
        """Replace what `rows` gives."""
        if numbers is None or (self._there().even and len(numbers) == len(self.shards)):
            self._data = rows
        else:
            for number, row in zip(numbers, rows, strict=True):
                self._data[number] = row

    @property
    def home(self) -> tuple[Any, int]:
        """The tensor whose memory it is, and at which of its elements it begins."""
        return self, 0

    def check_writable(self) -> None:
        """Refuse to write what torch would share with another tensor and is a copy here."""
        if self.copy_made_by:
            raise TensorError(
                f"'{self.name}' is a copy made by {self.copy_made_by}: what is written to it would not reach "
                "the tensor that it was made from",
                advice="clone() it first, or write to the tensor itself",
            )

    def __getitem__(self, index: Any) -> Any:
        """Return the elements as a tensor of the host (a number if there is one); they may span shards."""
        found = self._at(self._data if self.handle is None else self.contents(), index)
        if self.handle is not None:
            self._read(int(np.size(found)) * itemsize(self.dtype))
        return self.context.from_numpy(np.array(found)) if np.ndim(found) else found

    def _at(self, array: Any, index: Any) -> Any:
        try:
            return array[index]
        except IndexError as problem:
            raise TensorIndexError(f"'{self.name}' {self.shape}: {problem}") from None

    def __setitem__(self, index: Any, value: Any) -> None:
        self.check_writable()
        given = value._read() if isinstance(value, Stored) else value
        if self.handle is None:
            self._at(self._data, index)
            self._data[index] = given
            return
        if self._data is None:
            self.context.host_copy(f"write {self.name}", 0, 1, self)
            return
        whole = np.array(self.contents())
        self._at(whole, index)
        try:
            whole[index] = given
        except ValueError as problem:
            raise ShapeMismatch(f"'{self.name}' {self.shape}: {problem}") from None
        count = int(np.size(whole[index])) * itemsize(self.dtype)
        self.context.host_copy(f"write {self.name}", count, 1, self)
        self.given(whole)

    def item(self) -> Any:
        if self.numel() != 1:
            raise TensorError(f"a tensor with {self.numel()} elements is not one number")
        return self._read().reshape(-1)[0].item()

    def tolist(self) -> Any:
        return self._read().tolist()


def _release(context: RuntimeContext, handle: TensorHandle) -> None:
    if not handle.freed:
        context.release(handle)


def _packed(handle: TensorHandle, array: Any) -> Any:
    """Return one row per shard; a list where rows differ in shape."""
    if len(handle.shards) == 1:
        return np.array(array)[None]
    if not handle.even:
        return handle.pack(array)
    rows = np.empty((len(handle.shards), *handle.shards[0].spec.shape), array.dtype)
    for row, shard in zip(rows, handle.shards, strict=True):
        row[...] = array[shard.slices]
    return rows


def empty_rows(handle: TensorHandle, fill: float | None) -> Any:
    element = numpy_dtype(handle.dtype)
    make = np.empty if fill is None else np.zeros
    shapes = [s.spec.shape for s in handle.shards]
    if handle.even:
        return make((len(shapes), *shapes[0]), element)
    return [make(shape, element) for shape in shapes]


def _runs(shard: PlacedShard, shape: tuple[int, ...]) -> int:
    """Into how many runs of the host's array a shard falls."""
    whole, count = True, 1
    for held, extent in zip(reversed(shard.slices), reversed(shape), strict=True):
        if not whole:
            count *= held.stop - held.start
        whole = whole and held.stop - held.start == extent
    return max(1, count)


def pieces_of(shards: tuple[PlacedShard, ...], shape: tuple[int, ...]) -> int:
    """Return the most runs that one PE's DMA engine has to bring to their places."""
    each: Counter[tuple[int, int]] = Counter()
    for shard in shards:
        each[shard.cube, shard.pe] += _runs(shard, shape)
    return max(each.values(), default=1)
