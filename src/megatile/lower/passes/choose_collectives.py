"""What algorithm does each collective."""

from __future__ import annotations

from dataclasses import dataclass

from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.lower.collectives import algorithm_of
from megatile.lower.inline import check_algorithm
from megatile.lower.passes.survey import annotated, survey
from megatile.lower.streams import Frame


@dataclass(frozen=True)
class ChooseCollectives:
    """Name the algorithm of each collective: the fastest of the library for these units and this size, or
    what ``algorithm=`` asks for.

    ``collective("allreduce", "device", …)`` → ``collective("allreduce", "device", …, algorithm="ring")``.
    Besides the library's there are ``shared`` (units inside one instance, which share its memory),
    ``multicast`` (the network spreads it), ``gets`` (every unit gets the parts of the others, where these are
    uneven or merged by a function) and ``local`` (one unit).
    """

    machine: HDA
    name: str = "choose_collectives"

    def apply(self, program: Program) -> Program:
        every = list(n.each(n.Collective, program.body))
        if not every:
            return program
        found: dict[int, str] = {}

        def between(frame: Frame, node: n.Collective) -> None:
            if id(node) not in found:
                found[id(node)] = algorithm_of(frame, node)

        def inside(frames: list[Frame], node: n.Collective) -> None:
            check_algorithm(node)  # whichever it is: they share the instance's memory
            found[id(node)] = "shared"

        survey(program, self.machine, {n.Collective: between}, inside)
        # Units that take different sides of a branch meet at the same collective, seen on one of them.
        same = {node: found[id(node)] for node in every if id(node) in found}
        found |= {id(node): same[node] for node in every if node in same}
        return annotated(program, {key: {"algorithm": name} for key, name in found.items()})
