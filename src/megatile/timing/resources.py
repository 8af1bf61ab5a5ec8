"""What a Plan costs on an HDA: engines, memories and paths through the fabric, as resources and times.

Everything is integer picoseconds. A *resource* is whatever only one transfer or command can use at a
time (a link, a port of a switch, a memory that several units share, an engine that several units
share).
"""

from __future__ import annotations

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.hda import HDA
from megatile.hda.model import Control
from megatile.plan import model as pm
from megatile.timing.fabric import (
    serialise_ps,
)
from megatile.timing.machine_timing import TimingError
from megatile.timing.origins import Origin, origins
from megatile.timing.transfer_paths import TransferPaths
from megatile.timing.transports import (
    channels_taken,
    head_cost,
    launch_floor_ps,
)


def host_link_ps(control: Control) -> int:
    link = control.host_link
    return 0 if link is None else serialise_ps(control.message, link.bandwidth)


def control_ps(hda: HDA, position: int = 0) -> int:
    """Return one message of the host: over its link and every station down to the level at a position."""
    control = hda.control or Control()
    wire = host_link_ps(control) + (control.host_link.latency_ps if control.host_link else 0)
    return wire + sum(s.overhead_ps for s in control.launch if hda.level(s.level).position >= position)


class Resources(TransferPaths):
    """What a plan costs on an HDA: its units (`placement`), memories (`memory_layers`), engines
    (`engine_times`) and paths (`transfer_paths`), and here launches and collectives."""

    @cached_in_owner
    def start_ps(self, unit: int) -> int:
        """Return when a unit starts: the launch has travelled the control path, after the install of its
        queues."""
        own = [c for c in self.plan.channels if c.transport is None or not self._by_kernel(c.transport)]
        return self.begin_ps + self.control_ps() * (2 if own and not self.installed else 1)

    def host_link_ps(self) -> int:
        """Return how long a message of the host occupies its link: the next one follows."""
        return host_link_ps(self._control) if self.view.control and self.control else 0

    def control_ps(self) -> int:
        """Return one message of the host to a unit."""
        return control_ps(self.hda, self.level.position) if self.view.control and self.control else 0

    def whole_ps(self, messages_ps: int, launch: bool = True) -> int:
        """Return the time of the plan whose commands take so long. Collectives follow one another; the host's
        launch runs beside the one before, so it shows only where it is the longer of the two."""
        kernel = self.plan.kernel if launch else None
        least = 0 if kernel is None else launch_floor_ps(self.hda, self.plan.transport(kernel), self.scale)
        return max(least, messages_ps)

    def head_ps(self, statement: pm.Start, nbytes: int) -> int:
        """Return how long a rank is held up while the kernel of a collective starts."""
        transport = self.plan.transport(statement.transport)
        return head_cost(self.hda, transport, statement.collective, statement.ranks, nbytes, self.scale)

    def kernel_units(self, statement: pm.Start) -> int:
        """Return how many compute units of a device the kernel of a collective takes: one for each
        channel."""
        scales = {scale.name for scale in self.hda.scales}
        if "block" not in scales or not self._by_kernel(statement.transport):
            return 0
        taken = channels_taken(self.hda, self.plan.transport(statement.transport), self.scale)
        every = self.hda.level(self.hda.scale("block").level).total // self.hda.level("device").total
        return min(taken, every - 1)

    def collective_ps(self, statement: pm.Collective, members: tuple[int, ...], nbytes: int) -> int:
        """Return what a barrier, or a reduction or broadcast done by the network itself, adds for a group."""
        if len(members) == 1:
            return 1
        group = next(group for group in self.plan.groups if group.name == statement.group)
        away, widest = self.on(group.transport, nbytes)._reach(statement.group, members)
        if statement.kind == "barrier":
            return 2 * away
        if statement.kind == "all_reduce":
            self._check_reduction(statement, members)
        return (2 if statement.kind == "all_reduce" else 1) * away + serialise_ps(nbytes, widest)

    @cached_in_owner
    def _reach(self, group: str, members: tuple[int, ...]) -> tuple[int, float]:
        """Return the longest latency from a group's first member to the others, and the least bandwidth."""
        others = np.array(members[1:], dtype=np.int64)
        root = np.full(len(others), members[0])
        routes = self.fabric.alike(self.level.name, self.spots[root], self.spots[others], lengths=True)
        far = [group for group in routes if group.network is not None][-1:]
        routes = far + [group for group in routes if group.network is None]
        ends = [(members[0], int(others[group.pairs[0]])) for group in routes]
        away = max(self.message_ps(*pair, 0) for pair in ends)
        return away, min(self._wires(*pair)[1] for pair in ends)

    def _check_reduction(self, statement: pm.Collective, members: tuple[int, ...]) -> None:
        route = self.hda.route(self.hardware(members[0]), self.hardware(members[-1]))
        for leg in route.legs:
            if statement.reduction not in leg.network.in_network_reduction:
                able = ", ".join(leg.network.in_network_reduction) or "nothing"
                raise TimingError(
                    f"network '{leg.network.name}' of machine '{self.hda.name}' does not reduce "
                    f"'{statement.reduction}' by itself (it reduces {able})",
                    place=statement.source,
                    advice="use a collective algorithm, or another machine",
                )

    def origins(self) -> dict[str, Origin]:
        """By class of commands (``gemm on tensor``, ``copies``, ``messages``, ``launch``), where their times
        come from."""
        return origins(self)
