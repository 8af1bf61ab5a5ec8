"""DTensor: a tensor divided over a mesh of ranks, whose operations insert the collectives they need.

    mesh = init_device_mesh("ahbm", (2, 2), mesh_dim_names=("dp", "tp"))
    w = distribute_tensor(array, mesh, [Replicate(), Shard(1)])
    y = x @ w                                   # sharding propagates; what does not fit is redistributed
    y.full_tensor()

For every operation a table of rules says which placements of the operands along one dimension of the mesh
need no communication and what the result is then. Where the operands fit none, the rules whose redistribution
is predicted to be cheapest are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.dtypes import dtype as dtype_name
from megatile.core.placement import Partial, Replicate, Shard, runs
from megatile.parallel.mesh import DeviceMesh, Placement
from megatile.parallel.redistribute import Path, State, local_shape, plan_path, redistributed
from megatile.parallel.state import ParallelError
from megatile.runtime.host import ops
from megatile.runtime.host.tensor import Tensor

Rule = tuple[tuple[Placement, ...], Placement]
"""Placements of the operands along one dimension of the mesh, and of the result."""
R = Replicate()


def _operator(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: _pointwise(name, self, other)


def _function(name: str) -> Callable[[Any], Any]:
    return lambda self: _run(_one_by_one(self.ndim), [self], lambda x: ops.unary(name, x), self.shape)


class DTensor:
    """``shape`` is global; the local tensor is this rank's part, or its term of a sum."""

    def __init__(
        self, local: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]
    ) -> None:
        self._local, self.device_mesh = local, device_mesh
        self.placements: State = tuple(placements)
        self.shape = tuple(int(extent) for extent in shape)

    @property
    def dtype(self) -> str:
        return self._local.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __repr__(self) -> str:
        return f"DTensor(shape={self.shape}, dtype={self.dtype}, placements={list(self.placements)})"

    @classmethod
    def from_local(
        cls,
        local: Tensor,
        device_mesh: DeviceMesh,
        placements: Sequence[Placement],
        *,
        shape: Sequence[int] | None = None,
    ) -> DTensor:
        """Return a DTensor of what every rank has; without ``shape`` all parts are taken to be equally
        large."""
        state = _checked(device_mesh, placements, local.ndim)
        if shape is None:
            extents = list(local.shape)
            for number, placement in enumerate(state):
                if isinstance(placement, Shard):
                    extents[placement.dim] *= device_mesh.size(number)
            shape = extents
        found = cls(local, device_mesh, state, shape)
        mine = local_shape(found.shape, device_mesh, state, device_mesh.get_coordinate())
        if mine != tuple(local.shape):
            raise ParallelError(
                f"a local tensor of {tuple(local.shape)} is not {mine}, this rank's part of {tuple(shape)}"
            )
        return found

    def to_local(self) -> Tensor:
        return self._local

    def full_tensor(self) -> Tensor:
        """Return all elements on every rank."""
        return self.redistribute(placements=[R] * self.device_mesh.ndim).to_local()

    def redistribute(
        self, device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] = ()
    ) -> DTensor:
        """Return the same elements under other placements, by the path that is predicted to be cheapest."""
        target = self._target(device_mesh, placements)
        if target == self.placements:
            return self
        return DTensor(redistributed(self, target), self.device_mesh, target, self.shape)

    def explain(self, placements: Sequence[Placement]) -> Path:
        """Return the steps that ``redistribute`` would take, with their predicted times."""
        return plan_path(self, self._target(None, placements))

    def _target(self, device_mesh: DeviceMesh | None, placements: Sequence[Placement]) -> State:
        if device_mesh is not None and device_mesh is not self.device_mesh:
            raise ParallelError("a DTensor stays on its mesh", advice="distribute full_tensor() on the other")
        return _checked(self.device_mesh, placements, self.ndim, allow=self.placements)

    # operations

    def __matmul__(self, other: DTensor) -> DTensor:
        return matmul(self, other)

    __add__ = __radd__ = _operator("add")
    __sub__ = _operator("sub")
    __mul__ = __rmul__ = _operator("mul")

    def __truediv__(self, other: Any) -> DTensor:
        return self * (1 / other) if not isinstance(other, DTensor) else _pointwise("div", self, other)

    relu, gelu, silu, exp = map(_function, ("relu", "gelu", "silu", "exp"))

    def sum(self, dim: int | None = None) -> DTensor:
        return _reduce("sum", self, dim)

    def max(self, dim: int | None = None) -> DTensor:
        return _reduce("max", self, dim)

    def mean(self, dim: int | None = None) -> DTensor:
        count = self.shape[dim] if dim is not None else int(np.prod(self.shape))
        return self.sum(dim) * (1 / count)

    def softmax(self, dim: int = -1) -> DTensor:
        """Over the last dimension, which must be whole on every rank."""
        if dim % self.ndim != self.ndim - 1:
            raise ParallelError("softmax is over the last dimension here", advice="transpose it there first")
        return _run(_one_by_one(self.ndim - 1), [self], ops.softmax, self.shape)

    def transpose(self, dim0: int, dim1: int) -> DTensor:
        dims = list(range(self.ndim))
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
        return self.permute(*dims)

    @property
    def T(self) -> DTensor:
        return self.permute(*reversed(range(self.ndim)))

    def permute(self, *dims: int) -> DTensor:
        """Return dimensions in another order; the division goes with them."""
        order = tuple(d % self.ndim for d in dims)
        state = tuple(Shard(order.index(p.dim)) if isinstance(p, Shard) else p for p in self.placements)
        local = ops.transposed(self._local, order)
        return DTensor(local, self.device_mesh, state, [self.shape[d] for d in order])

    def view(self, *shape: int) -> DTensor:
        """Another shape. Divided dimensions stay divided if they begin a group of merged or split ones."""
        extents = ops.resolved(shape, prod(self.shape))
        moved = _moved_dims(self.shape, extents)
        kept, state = list(self.placements), list(self.placements)
        for number, (p, parts) in enumerate(zip(self.placements, self.device_mesh.shape, strict=True)):
            if isinstance(p, Shard):
                to = moved.get(p.dim)
                if to is not None and self.shape[p.dim] % parts == 0 == extents[to] % parts:
                    state[number] = Shard(to)  # both dimensions are cut between the same elements
                else:
                    kept[number] = state[number] = R
        x = self.redistribute(placements=kept)
        mine = local_shape(extents, self.device_mesh, tuple(state), self.device_mesh.get_coordinate())
        return DTensor(ops.relaid(x._local, shape=mine), self.device_mesh, state, extents)

    reshape = view


@no_none
def distribute_tensor(
    tensor: Any,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    src_data_rank: int | None = 0,
    dp: Any = None,
    dtype: Any = None,
) -> DTensor:
    """Divide a tensor or array over a mesh; ``dp`` says how its parts lie on their devices.

    As in torch, the rank ``src_data_rank`` of every dimension of the mesh scatters or broadcasts what it has;
    with None every rank takes its part of what it has itself, and nothing is sent.
    """
    host, whole = device_mesh.torch, tensor if isinstance(tensor, Tensor) else np.asarray(tensor)
    state = _checked(device_mesh, placements, whole.ndim)
    kind, shape = (
        dtype or (whole.dtype if isinstance(whole, Tensor) else dtype_name(whole.dtype)),
        whole.shape,
    )
    lies = {} if dp is None else {"dp": dp}
    if src_data_rank is None:
        array = np.asarray(whole.numpy() if isinstance(whole, Tensor) else whole)
        at = device_mesh.get_coordinate()
        held = runs(state, shape, device_mesh.shape, at)
        local = array[tuple(slice(start, stop) for start, stop in held)]
        first = all(at[n] == 0 for n, p in enumerate(state) if isinstance(p, Partial))
        local = local if first else np.zeros_like(local)
        return DTensor(host.empty(local.shape, dtype=kind, **lies).copy_(local), device_mesh, state, shape)
    sent = host.empty(shape, dtype=kind).copy_(whole)
    for number, placement in enumerate(state):
        sent = _from_source(sent, device_mesh, number, placement, src_data_rank)
    if lies:
        sent = host.empty(sent.shape, dtype=kind, **lies).copy_(sent)
    return DTensor(sent, device_mesh, state, shape)


def _from_source(local: Any, mesh: DeviceMesh, number: int, placement: Placement, source: int) -> Any:
    """Give every rank along a dimension of the mesh its part of what the source has."""
    group, dist, place = mesh.get_group(number), mesh.torch.distributed, mesh.get_local_rank(number)
    ranks = mesh.ranks_along(number)
    if not 0 <= source < len(ranks):
        raise ParallelError(f"src_data_rank {source} is not among the {len(ranks)} ranks of a dimension")
    if isinstance(placement, Shard) and local.numel() and local.shape[placement.dim] % len(ranks) == 0:
        parts = local.chunk(len(ranks), placement.dim)
        mine = mesh.torch.empty(parts[0].shape, dtype=local.dtype)
        dist.scatter(mine, list(parts) if place == source else None, src=ranks[source], group=group)
        return mine
    dist.broadcast(local, src=ranks[source], group=group)
    if isinstance(placement, Partial) and place:
        return mesh.torch.zeros(local.shape, dtype=local.dtype)
    if isinstance(placement, Shard):
        (held,) = runs((Shard(0),), (local.shape[placement.dim],), (len(ranks),), (place,))
        return local.narrow(placement.dim, int(held[0]), int(held[1] - held[0]))
    return local


def _filled(name: str) -> Callable[..., DTensor]:
    @no_none
    def made(
        *size: Any, dtype: Any = "f32", device_mesh: DeviceMesh, placements: Sequence[Placement]
    ) -> DTensor:
        shape = ops.extents(size)
        state = _checked(device_mesh, placements, len(shape))
        if any(isinstance(p, Partial) for p in state):
            raise ParallelError(f"{name} cannot be Partial", advice="use Shard or Replicate")
        mine = local_shape(shape, device_mesh, state, device_mesh.get_coordinate())
        return DTensor(getattr(device_mesh.torch, name)(mine, dtype=dtype), device_mesh, state, shape)

    made.__name__, made.__doc__ = name, f"Make a DTensor; every rank makes its own part with ``{name}``."
    return made


zeros, ones, empty = map(_filled, ("zeros", "ones", "empty"))


def _checked(mesh: DeviceMesh, placements: Sequence[Placement], ndim: int, allow: State = ()) -> State:
    state = []
    if len(placements) != mesh.ndim:
        raise ParallelError(f"{len(placements)} placements for a mesh of {mesh.ndim} dimensions")
    for p in placements:
        if isinstance(p, Shard):
            if not -ndim <= p.dim < ndim:
                raise ParallelError(f"a tensor of {ndim} dimensions has no dimension {p.dim} to divide")
            p = Shard(p.dim % ndim)
        elif not isinstance(p, (Replicate, Partial)):
            raise ParallelError(
                f"{p!r} is not a placement", advice="use Shard(dim), Replicate() or Partial()"
            )
        state.append(p)
    if allow:
        new = [p for p, old in zip(state, allow, strict=True) if isinstance(p, Partial) and p != old]
        if new:
            raise ParallelError(
                "nothing can be made Partial by redistribute", advice="use Shard or Replicate"
            )
    return tuple(state)


# propagation


def _run(
    rules: Iterable[Rule], operands: list[DTensor], compute: Callable[..., Tensor], shape: Sequence[int]
) -> DTensor:
    """Bring the operands to placements that a rule takes, the cheapest ones, and compute locally."""
    mesh = operands[0].device_mesh
    if any(x.device_mesh is not mesh for x in operands):
        raise ParallelError("operands lie on different meshes")
    here = [x.placements for x in operands]
    choices = [
        (chosen, [tuple(rule[0][i] for rule in chosen) for i in range(len(operands))])
        for chosen in product(list(rules), repeat=mesh.ndim)
    ]
    # Where the operands fit as they are, nothing else needs to be predicted.
    choices = [c for c in choices if c[1] == here] or [c for c in choices if all(map(_reachable, here, c[1]))]

    def cost(choice: tuple[tuple[Rule, ...], list[State]]) -> tuple[int, int]:
        """Return time of redistributions; of equals the one that leaves least to do and divides the work."""
        chosen, states = choice
        time = sum(plan_path(x, state).time_ps for x, state in zip(operands, states, strict=True))
        return time, sum(_rank(rule[1]) for rule in chosen)

    chosen, states = min(choices, key=cost)
    moved = [x.redistribute(placements=state) for x, state in zip(operands, states, strict=True)]
    return DTensor(compute(*(x.to_local() for x in moved)), mesh, tuple(rule[1] for rule in chosen), shape)


def _reachable(here: State, there: State) -> bool:
    return all(not isinstance(b, Partial) or a == b for a, b in zip(here, there, strict=True))


def _rank(placement: Placement) -> int:
    return 0 if isinstance(placement, Shard) else 1 if isinstance(placement, Partial) else 2


@no_none
def matmul(a: DTensor, b: DTensor) -> DTensor:
    """Multiply matrices: ``mk,kn->mn``."""
    return einsum("mk,kn->mn", a, b)


@no_none
def einsum(equation: str, a: DTensor, b: DTensor) -> DTensor:
    """Return two tensors multiplied and summed over letters that the result lacks: ``bmk,kn->bmn``."""
    left, right, out = _letters(equation, a, b)
    rules: list[Rule] = [((R, R), R)]
    for letter in dict.fromkeys(left + right):
        one = Shard(left.index(letter)) if letter in left else R
        two = Shard(right.index(letter)) if letter in right else R
        rules.append(((one, two), Shard(out.index(letter)) if letter in out else Partial()))
    rules += [((Partial(), R), Partial()), ((R, Partial()), Partial())]
    extents = dict(zip(left + right, a.shape + b.shape, strict=True))
    return _run(rules, [a, b], lambda x, y: _contract(x, y, left, right, out), [extents[c] for c in out])


def _letters(equation: str, a: DTensor, b: DTensor) -> tuple[str, str, str]:
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    left, comma, right = inputs.partition(",")
    named = all(len(set(part)) == len(part) and part.isalpha() for part in (left, right)) and arrow and comma
    if not named or not set(out) <= set(left + right) or len(set(out)) != len(out):
        raise ParallelError(f"'{equation}' is not a product of two tensors", advice="write it like mk,kn->mn")
    if (len(left), len(right)) != (a.ndim, b.ndim):
        raise ParallelError(f"'{equation}' does not fit tensors of {a.ndim} and {b.ndim} dimensions")
    for letter in set(left) & set(right):
        sizes = a.shape[left.index(letter)], b.shape[right.index(letter)]
        if sizes[0] != sizes[1]:
            raise ParallelError(
                f"'{equation}': {letter} is {sizes[0]} in one tensor and {sizes[1]} in the other"
            )
    return left, right, out


def _contract(x: Tensor, y: Tensor, left: str, right: str, out: str) -> Tensor:
    """Return the local product: matrices, one for each of the letters that both have and the result keeps."""
    lengths = dict(zip(left + right, tuple(x.shape) + tuple(y.shape), strict=True))
    batch = [c for c in left if c in right and c in out]
    inner = [c for c in left if c in right and c not in out]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    if any(c not in out for c in rows + columns):
        raise ParallelError("a letter of one tensor alone must be in the result")

    def count(letters: list[str]) -> int:
        return int(np.prod([lengths[c] for c in letters], dtype=np.int64))

    b, m, k, n = map(count, (batch, rows, inner, columns))
    if (batch, "".join(rows + inner), "".join(inner + columns), "".join(rows + columns)) == (
        [],
        left,
        right,
        out,
    ) and (x.ndim == y.ndim == 2):
        return ops.matmul(x, y)

    def laid(t: Tensor, letters: str, order: list[str], shape: tuple[int, ...]) -> Tensor:
        return ops.transposed(t, [letters.index(c) for c in order], shape=shape)

    many = laid(x, left, batch + rows + inner, (b * m, k))
    other = laid(y, right, batch + inner + columns, (b * k, n))
    parts = [
        ops.matmul(ops.taken(many, 0, i * m, i * m + m), ops.taken(other, 0, i * k, i * k + k))
        for i in range(b if b > 1 else 0)
    ]
    found = ops.joined(parts) if parts else ops.matmul(many, other)
    order = batch + rows + columns
    back, split = [order.index(c) for c in out], [lengths[c] for c in order]
    return ops.transposed(found, back, split, shape=tuple(lengths[c] for c in out))


def _one_by_one(dims: int, operands: int = 1) -> list[Rule]:
    """Apply an operation by element (or row): all operands and the result have one placement."""
    alike: list[Placement] = [R, *map(Shard, range(dims))]
    return [((p,) * operands, p) for p in alike]


def _pointwise(name: str, a: DTensor, b: Any) -> DTensor:
    if not isinstance(b, DTensor):
        linear: list[Rule] = [((Partial(),), Partial())] if name == "mul" else []
        return _run([*_one_by_one(a.ndim), *linear], [a], lambda t: ops.binary(name, t, float(b)), a.shape)
    if a.shape == b.shape:
        pairs = _one_by_one(a.ndim, 2)
        if name in ("add", "sub"):
            pairs.append(((Partial(), Partial()), Partial()))
    elif b.ndim == 1 and b.shape[0] == a.shape[-1]:
        last = a.ndim - 1
        pairs = [((R, R), R), ((Shard(last), Shard(0)), Shard(last))]
        pairs += [((Shard(d), R), Shard(d)) for d in range(last)]
    else:
        raise ParallelError(f"{name} of {a.shape} and {b.shape} does not fit")
    if name in ("mul", "div"):
        pairs.append(((Partial(), R), Partial()))
    return _run(pairs, [a, b], lambda x, y: ops.binary(name, x, y), a.shape)


def _reduce(name: str, x: DTensor, dim: int | None) -> DTensor:
    if dim is None:
        return _reduce(name, x.view(int(np.prod(x.shape))), 0)
    dim %= x.ndim
    rules: list[Rule] = [((R,), R), ((Shard(dim),), Partial(name))]
    rules += [((Shard(d),), Shard(d - (d > dim))) for d in range(x.ndim) if d != dim]
    if name == "sum":
        rules.append(((Partial(),), Partial()))
    kept = [extent for i, extent in enumerate(x.shape) if i != dim] or [1]
    return _run(rules, [x], lambda t: ops.reduced(name, t, dim), kept)


# views


def _moved_dims(old: tuple[int, ...], new: tuple[int, ...]) -> dict[int, int]:
    """Return which dimension of the new shape begins where one of the old shape begins."""
    ends, found, at = {}, {}, 1
    for number, extent in reversed(list(enumerate(new))):
        at *= extent
        ends[at] = number
    at = 1
    for number, extent in reversed(list(enumerate(old))):
        at *= extent
        if at in ends:
            found[number] = ends[at]
    return found
