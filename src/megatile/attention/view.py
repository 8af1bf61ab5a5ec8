"""Who does the work of an attention plan: `AttentionKernels`, for ``simulate(plan, machine=…, timing=…)``.

Kernels take the times of ``kernel_times``, which become the efficiency of the tensor engines. Exchanges are
kernels too, as those of collectives: they feed all links at once, with the start-up and the loss of the
``protocol`` section.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from megatile.attention.kernel_times import efficiency
from megatile.attention.plans import Divided
from megatile.core.dtypes import itemsize
from megatile.core.frozen import Frozen
from megatile.hda import HDA
from megatile.hda.model import Engine
from megatile.timing.library import Library, links_of, moving_kernel
from megatile.timing.view import Origin, Timing, View

PACKETS = 64
NO_TIME = 1e30
"""Operations per second of an engine that takes no time."""


@dataclass(frozen=True)
class AttentionKernels(Timing):
    """``share`` of the tensor engines' peak is reached (None: kernels take no time, so that what remains is
    communication); others may go first on a link after ``granule`` bytes."""

    share: float | None
    granule: int

    @classmethod
    def of(
        cls, hda: HDA, divided: Divided, communication: float = 0.0, scale: str = "device"
    ) -> AttentionKernels:
        """The kernels of a schedule beside data that travel so long (s)."""
        share = efficiency(hda, divided, communication, scale)
        return cls(float(f"{share:.6g}"), _granule(divided))

    @classmethod
    def without_compute(cls, divided: Divided) -> AttentionKernels:
        return cls(None, _granule(divided))

    def view(self, hda: HDA, scale: str) -> View:
        found = Library("bulk").view(hda, scale)
        if hda.protocol is None:
            found = found.with_engine(moving_kernel(hda, scale))
        level = hda.level(hda.scale(scale).level)
        start_ps = hda.protocol.start_ps if hda.protocol is not None else 0
        networks = {}
        for network in hda.networks:
            seen = found.networks.get(network.name, network)
            # Every exchange is a kernel of its own, so its messages pay the start that collectives pay once.
            # They start together: on a port that several share, the starts must not follow one another, so
            # they are latency of the links.
            outside = hda.level(network.level).position > level.position
            more = start_ps // links_of(network) if outside else 0
            networks[network.name] = replace(seen, latency_ps=seen.latency_ps + more, granule=self.granule)
        figures = hda.kernel("attention")
        said = hda.spec.kernels[0].source if figures is not None else "no figures in the machine file"
        origins = {**found.origins, "tensor": Origin("measured" if figures else "assumed", str(said))}
        engines = tuple(map(self._computing, found.engines))
        return replace(found, networks=networks, engines=engines, origins=origins, roofline=False)

    def _computing(self, engine: Engine) -> Engine:
        if engine.kind != "tensor":
            return engine
        if self.share is not None:
            return replace(engine, efficiency=self.share)
        rates = Frozen(dict.fromkeys(engine.throughput, NO_TIME))
        return replace(engine, efficiency=1.0, throughput=rates, startup_ps=0)


def _granule(divided: Divided) -> int:
    """Switches send packets of several messages in turn; 64 of them for what a rank holds are fine enough."""
    problem, ranks = divided.problem, divided.schedule.ranks
    token = 2 * problem.groups * problem.dim * itemsize(problem.dtype) * problem.batch
    return max(4096, problem.keys * token // (PACKETS * ranks))
