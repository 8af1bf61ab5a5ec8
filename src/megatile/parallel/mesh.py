"""A grid of ranks, and how a tensor is divided along each of its dimensions; names as in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.placement import Partial, Replicate, Shard
from megatile.parallel.state import ParallelError, active, group_of

__all__ = ["DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "init_device_mesh"]

Placement = Shard | Replicate | Partial


class DeviceMesh:
    """Ranks on a grid: ``DeviceMesh("ahbm", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))``."""

    def __init__(
        self, device_type: str, mesh: Any, *, mesh_dim_names: Sequence[str] | None = None, torch: Any = None
    ) -> None:
        self.torch = active(torch)
        self.mesh = np.atleast_1d(np.asarray(mesh))
        self.device_type = device_type
        ranks = self.mesh.reshape(-1).tolist()
        world = self.torch.distributed.get_world_size()
        if self.mesh.dtype.kind not in "iu" or sorted(set(ranks)) != sorted(ranks):
            raise ParallelError(f"a mesh has every rank once, not {ranks}")
        if not ranks or not all(0 <= rank < world for rank in ranks):
            raise ParallelError(f"a mesh of ranks {ranks} does not fit {world} ranks")
        if mesh_dim_names is not None and len(mesh_dim_names) != self.mesh.ndim:
            raise ParallelError(f"{len(mesh_dim_names)} names for {self.mesh.ndim} dimensions of the mesh")
        self.mesh_dim_names = tuple(mesh_dim_names) if mesh_dim_names is not None else None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.shape)

    @property
    def ndim(self) -> int:
        return int(self.mesh.ndim)

    def size(self, mesh_dim: int | str | None = None) -> int:
        return int(self.mesh.size) if mesh_dim is None else self.shape[self.dim(mesh_dim)]

    def dim(self, mesh_dim: int | str) -> int:
        """Return the number of a dimension of the mesh, given by number or name."""
        if isinstance(mesh_dim, str):
            if mesh_dim not in (self.mesh_dim_names or ()):
                raise ParallelError(
                    f"the mesh has no dimension '{mesh_dim}'", advice=str(self.mesh_dim_names)
                )
            return (self.mesh_dim_names or ()).index(mesh_dim)
        return mesh_dim % self.ndim

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the mesh of some dimensions in which this rank stands: ``mesh["tp"]``, ``mesh["dp",
        "tp"]``."""
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        kept = [self.dim(name) for name in names]
        if kept != sorted(set(kept)):
            raise ParallelError(f"{names} are not dimensions of the mesh in their order")
        at: list[Any] = list(self.get_coordinate())
        for number in kept:
            at[number] = slice(None)
        key = (id(self), self.torch.rank, names)
        known = self.torch.__dict__.setdefault("_meshes", {})
        if key not in known:
            found = DeviceMesh(self.device_type, self.mesh[tuple(at)], mesh_dim_names=names, torch=self.torch)
            known[key] = (found, self)
        return known[key][0]

    def get_rank(self) -> int:
        return int(self.torch.rank)

    def get_coordinate(self) -> tuple[int, ...]:
        """Return where this rank stands."""
        found = np.argwhere(self.mesh == self.torch.rank)
        if not len(found):
            raise ParallelError(f"rank {self.torch.rank} is not in the mesh {self.mesh.tolist()}")
        return tuple(int(c) for c in found[0])

    def get_local_rank(self, mesh_dim: int | str = 0) -> int:
        return self.get_coordinate()[self.dim(mesh_dim)]

    def ranks_along(self, mesh_dim: int | str = 0) -> tuple[int, ...]:
        """Return the ranks that differ from this one in a dimension of the mesh only, in its order."""
        at: list[Any] = list(self.get_coordinate())
        at[self.dim(mesh_dim)] = slice(None)
        return tuple(int(rank) for rank in self.mesh[tuple(at)])

    def get_group(self, mesh_dim: int | str = 0) -> Any:
        return group_of(self.torch, self.ranks_along(mesh_dim))

    def __repr__(self) -> str:
        names = f", mesh_dim_names={self.mesh_dim_names}" if self.mesh_dim_names else ""
        return f"DeviceMesh({self.device_type!r}, {self.mesh.tolist()}{names})"


@no_none
def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    torch: Any = None,
) -> DeviceMesh:
    """Return the first ranks as a mesh of this shape, the last dimension varying fastest."""
    ranks = np.arange(int(np.prod(mesh_shape))).reshape(tuple(mesh_shape))
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, torch=torch)
