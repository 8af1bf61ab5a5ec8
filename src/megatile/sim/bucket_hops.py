"""Transfers of the plain evaluator: stage by stage, every resource a server with a queue."""

from __future__ import annotations

from typing import Any

from megatile.sim.clock import Action, Clock, Gate, Server, after
from megatile.sim.program import Program
from megatile.sim.transfers import PIECES
from megatile.timing.fabric import Path


class Hops:
    """The clock, the servers, and how a transfer passes them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.clock = Clock()
        self.servers: dict[int, Server] = {}
        self._width = program.machine.fabric.widths

    def server(self, resource: int) -> Server:
        if resource not in self.servers:
            self.servers[resource] = Server(self.clock, self._width[resource])
        return self.servers[resource]

    def transfer(self, op: Any, left: Action, landed: Action, started: Action) -> None:
        """Move data along a way, piece by piece, stage by stage."""

        def begin() -> None:
            started()
            path: Path = op.path
            pieces = path.pieces(op.nbytes) if self.program.contended(path) else [op.nbytes]
            head = self.clock.now + path.startup_ps + op.delay_ps
            gates_left = [Gate() for _ in pieces]
            gates_landed = [Gate() for _ in pieces]
            after(gates_left, left)
            after(gates_landed, landed)
            for index, size in enumerate(pieces):
                number = op.number * PIECES + index
                self.hop(path, size, op.flow, number, 0, head, head, gates_left[index], gates_landed[index])
                head += path.occupied_ps(size)

        if op.resource is None:
            begin()
        else:
            key = (op.flow, op.number * PIECES, -1)
            server = self.server(op.resource)
            self.clock.ask(self.clock.now, key, lambda: server.request(op.busy_ps, begin))

    def hop(
        self,
        path: Path,
        size: int,
        flow: int,
        number: int,
        index: int,
        head: int,
        tail: int,
        left: Gate,
        landed: Gate,
    ) -> None:
        """The head reaches stage ``index`` at ``head``, the tail not before ``tail``."""
        dma, busy = path.stage_ps(size)
        if index == 0:
            tail = head + dma
            if all(s.resource is None for s in path.stages):
                self.clock.at(head + path.occupied_ps(size), left.unlock)
        if index == len(path.stages):
            extra = path.latency_ps - sum(s.latency_ps for s in path.stages)
            self.clock.at(max(tail, head) + extra, landed.unlock)
            return
        stage = path.stages[index]

        def granted(turn: int) -> None:
            if stage.resource is not None and all(s.resource is None for s in path.stages[:index]):
                before = sum(s.latency_ps for s in path.stages[:index])
                self.clock.at(max(turn, turn - before + path.occupied_ps(size)), left.unlock)
            later = max(tail, turn + busy[index]) + stage.latency_ps
            self.hop(path, size, flow, number, index + 1, turn + stage.latency_ps, later, left, landed)

        if stage.resource is None:
            granted(head)
            return
        server = self.server(stage.resource)
        self.clock.ask(
            head,
            (flow, number, index),
            lambda: server.request(busy[index], lambda: granted(self.clock.now)),
        )
