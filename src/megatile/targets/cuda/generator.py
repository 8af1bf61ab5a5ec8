"""From a Program to CUDA C++: one kernel per dispatched region, and the host function that launches them.

Every statement is done by a *team* of threads together: all threads of the unit at whose scale it stands. A
team meets (``__syncthreads``, named barriers, ``__syncwarp``) where a statement needs what others wrote.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any

from megatile.core.expr import Const, Symbol
from megatile.ir import nodes as n
from megatile.ir.passes.resolve_views import without_views
from megatile.ir.program import Program
from megatile.lowering.phases import rasterised
from megatile.targets.common.elements import Value
from megatile.targets.common.errors import CompileError
from megatile.targets.common.scope import Scope, Text
from megatile.targets.common.writer import NUMBERS, Source, Writer
from megatile.targets.cuda.elements import change
from megatile.targets.cuda.fragments import Staged
from megatile.targets.cuda.layouts import WARP, Team
from megatile.targets.cuda.scope import DeviceAllocation, DeviceScope, Hazards, shared_limit, threads
from megatile.targets.cuda.statements import STATEMENTS

_FOLDER = File(__file__).parent
DEVICE = (_FOLDER / "device.h").read_text(encoding="utf-8").replace("NUMBERS", NUMBERS)
EMULATE = (_FOLDER / "emulate.h").read_text(encoding="utf-8")
_LOCAL = """shared tid failure launch arguments row column top left lane warp ri ci mi ni qi hi ki xs ys
sums words held slot fetch ahead out other mine acc kept at copy old was threadIdx blockIdx main std"""
_KEYWORDS = """alignas alignof and asm auto bool break case catch char class const constexpr continue decltype
default delete do double else enum explicit export extern false float for friend goto if inline
int long mutable namespace new noexcept not nullptr operator or private protected public
register return short signed sizeof static struct switch template this throw true try typedef
typename union unsigned using virtual void volatile while xor"""
_NAMED = re.compile(r"(\w+)(?=\(|##)|(?:define|struct) (\w+)|(\bu\d+)")
_TAKEN = {word for found in _NAMED.findall(DEVICE + EMULATE) for word in found if word} | set(
    (_LOCAL + " " + _KEYWORDS).split()
)
MAX_THREADS = 1024
"""Of a block, by the rules of CUDA, whatever the device."""
_HOST = (
    n.Let, n.ReadScalar, n.If, n.Loop, n.ScaleRegion, n.Alloc, n.Reshape, n.Hint, n.Fence, n.Print,
    n.Breakpoint, n.Break, n.Continue, n.Return,
)  # fmt: skip
_SILENT = (n.Alloc, n.Reshape, n.Hint)


@dataclass(frozen=True)
class CudaSource(Source):
    """Generated CUDA C++, and what is needed to call it; ``phases`` are its kernels."""

    launch_bytes: int = 0


@dataclass
class _Kernel:
    """The kernel that is being written: the depth of its CUDA block, and its threads."""

    instance: int
    threads: int
    shared: int
    together: bool
    """Whether its blocks wait for each other."""
    reserve: int = 0


class DeviceWriter(Writer):
    change = staticmethod(change)
    rules = STATEMENTS
    storages: DeviceAllocation

    def __init__(self, program: Program):
        super().__init__(program, _TAKEN)
        named = any(scale.name == self.launch.device_scale for scale in self.launch.scales)
        device = self.launch.device_scale if named else self.launch.host
        for scale in self.launch.scales[: self.launch.depth(device)]:
            if scale.count > 1:
                raise CompileError(
                    f"'{program.name}' runs on {scale.count} units of scale '{scale.name}', and CUDA source "
                    "is for one device",
                    advice="use one device, or target='cpu' (mt.launch for processes)",
                )
        self.kernels: list[str] = []
        self.kernel: _Kernel | None = None
        self.pipelines = 0
        """Pipelined loops around what is being written, which count the groups of cp.async themselves."""
        self.meetings: dict[Any, tuple[int, int]] = {}
        """Where units meet in the launch's memory: places, and bytes."""

    def meeting(self, depth: int, *key: Any) -> str:
        """The meetings of a kind, one for each unit at a depth, which may be the first of its line."""
        if (depth, key) not in self.meetings:
            size = -(-8 * math.prod(s.count for s in self.launch.scales[:depth]) // 128) * 128
            self.meetings[depth, key] = self.storages.launch_bytes, size
            self.storages.launch_bytes += size
        return f"(struct meeting *)(launch + {self.meetings[depth, key][0]})"

    def placed(self, program: Program) -> DeviceAllocation:
        return DeviceAllocation(program)

    # --- the whole --------------------------------------------------------------------------------

    def source(self) -> CudaSource:
        text = Text(1)
        path = {s.name: Const(0) for s in self.launch.scales if s.count == 1}
        scope = DeviceScope(self, text, path, 0)  # type: ignore[arg-type]
        with self.variables(scope, self.program.body):
            self.statements(scope, self.program.body)
        tables = [f"TABLE {t}[] = {{{', '.join(map(str, v))}}};" for v, t in self.tables.items()]
        flags = [f"  CLEAR(launch + {s.offset}, {s.bytes(self.launch)});" for s in self.flags("launch")]
        flags += [f"  CLEAR(launch + {at}, {size});" for at, size in self.meetings.values()]
        given = [
            f"  {self.storages.table[p.name].c_type} *const {self.name(p.name)} = "
            f"({self.storages.table[p.name].c_type} *)arguments[{i}]; (void){self.name(p.name)};"
            for i, p in enumerate(self.program.params)
        ]
        head = _HEAD.format(name=self.program.name, machine=self.program.machine)
        entry = [
            "#ifndef __CUDACC_RTC__",
            "/* Launches the kernels one after the other: `arguments` are the tensors, each at a multiple of "
            f"16 bytes, and `launch` {self.storages.launch_bytes} bytes, on the device. */",
            'extern "C" void megatile_launch(void **arguments, char *launch, struct failure *failure) {',
            *given,
            *flags,
            *text.lines,
            "}",
            "#endif",
        ]
        made = _tidied("\n".join([*tables, "", *self.functions, *entry, ""]))
        kernels = tuple(self.kernels)
        return CudaSource(
            f"{head}\n{DEVICE}\n{made}", tuple(self.sites), kernels, launch_bytes=self.storages.launch_bytes
        )

    # --- statements -------------------------------------------------------------------------------

    def statements(self, scope: Scope, body: tuple[n.Node, ...]) -> None:
        assert isinstance(scope, DeviceScope)
        for node in body:
            with self.at(node, scope.text, comment=not isinstance(node, _SILENT)):
                if self.kernel is None and not isinstance(node, _HOST):
                    self._alone(scope, node)
                    continue
                rule = self.rules.get(type(node))
                if rule is None:
                    raise CompileError(
                        f"{type(node).__name__} cannot be written as CUDA yet", advice="use target='cpu'"
                    )
                for one in n.walk((node,)) if isinstance(node, n.Parallel) else (node,):
                    _check_peer(one)
                self.ordered(scope, node)
                if isinstance(node, (n.Break, n.Continue, n.Return)):
                    scope.finish_copies()
                rule(scope, node)
        scope.finish_copies()

    def ordered(self, scope: DeviceScope, node: n.Node) -> None:
        """The team meets first if the statement touches what others of it may still be at."""
        if self.kernel is None:
            return
        touched = list(
            self.touched(n.walk((node,)) if isinstance(node, (n.Parallel, n.ScaleRegion)) else (node,))
        )
        if scope.hazards.meets(touched):
            scope.sync()
        scope.hazards.add(touched)

    def touched(self, nodes: Any) -> list[tuple[str, bool]]:
        """The memory that statements read and write, not that of one thread."""
        found = []
        for node in nodes:
            for access, region in n.regions(node):
                base = self.storages.names[region.source].base
                if base in self.storages.mbarriers:
                    continue
                if self.storages.table[base].home in ("instance", "launch", "argument"):
                    found.append((base, access != "read"))
                    if access == "update":
                        found.append((base, False))
        return found

    def staged(self, scope: DeviceScope, node: n.Loop) -> Staged | None:
        """The copies of a loop that are done ahead: into shared memory, of the unit whose loop it is."""
        plan = self.storages.staged.get(id(node))
        if plan is None or scope.team is None:
            return None
        table, names = self.storages.table, self.storages.names
        mine = [
            c
            for c in plan.copies
            if table[c.to.source].home == "instance" and names[c.to.source].owner_depth == scope.depth
            and names[c.to.source].copies == 1
        ]  # fmt: skip
        return replace(plan, copies=tuple(mine)) if mine else None

    # --- regions ----------------------------------------------------------------------------------

    def team(self, depth: int) -> Team:
        """The threads of a unit at a depth of the kernel."""
        assert self.kernel is not None
        every = self.kernel.threads
        size = every // math.prod(s.count for s in self.launch.scales[self.kernel.instance : depth])
        if size == every:
            return Team(size, "tid", "__syncthreads();" if size > 1 else "")
        if size == 1:
            return Team(1, "0", "")
        index = f"(tid % {size})"
        if WARP % size == 0:
            return Team(size, index, f"__syncwarp(lanes({size}));")
        if size % WARP == 0 and every // size <= 15:
            return Team(size, index, f"named_sync(1 + tid / {size}, {size});")
        raise CompileError(
            f"units of {size} threads, {every // size} in a block, cannot meet on a GPU",
            advice="use warps of 32 threads, and at most 15 larger units in a block",
        )

    def region(self, scope: DeviceScope, node: n.ScaleRegion) -> None:
        low, high = scope.depth, self.launch.depth(node.scale)
        if self.kernel is None and self.launch.is_dispatched(low, high):
            instance = min(high, self.launch.depth(self.launch.dispatch))
            key = id(node)
            shared, together = self.storages.sizes.get(key, 0), key in self.storages.together
            self._dispatched(scope, node, (low, instance, high), shared, together)
            return
        count = math.prod(s.count for s in self.launch.scales[low:high])
        if self.kernel is None:
            with self.units(scope, low, high) as inner:
                self._unit(inner, node.body)
            return
        team = self.team(high)
        rank = f"(tid / {team.size}{f' % {count}' if scope.crew.size < self.kernel.threads else ''})"
        with scope.text.block(), self.units(scope, low, high, rank=rank) as inner:
            assert isinstance(inner, DeviceScope)
            inner.team, inner.hazards, inner.rank = team, Hazards(), rank
            self._unit(inner, node.body)

    def _alone(self, scope: DeviceScope, node: n.Node) -> None:
        """A statement of the device itself: a kernel of one block."""
        if isinstance(node, n.Atomic) and node.result is not None:
            scope.crew  # noqa: B018  (the old value would be a variable of that kernel: refused here)
        body = n.ScaleRegion(self.launch.host, (node,), span=node.span)
        self._dispatched(scope, body, (scope.depth, scope.depth, scope.depth))

    def _dispatched(
        self,
        scope: DeviceScope,
        node: n.ScaleRegion,
        depths: tuple[int, int, int],
        shared: int = 0,
        together: bool = False,
    ) -> None:
        """The instances of a region are CUDA blocks."""
        low, instance, high = depths
        alone = low == high
        name = self.fresh("alone_" if alone else f"{self.name(self.program.name)}_")
        self.kernel = _Kernel(instance, 256 if alone else threads(self.launch, instance), shared, together)
        if self.kernel.threads > MAX_THREADS:
            raise CompileError(
                f"a block of {self.kernel.threads} threads is more than a GPU has ({MAX_THREADS})",
                advice="use fewer threads, or smaller clusters",
            )
        inner = DeviceScope(self, Text(1), dict(scope.path), low, {}, dict(scope.ranges), (low, high))
        fields = self.captured(scope, inner, node)
        block = self._ordered(inner, node, low, instance) if not together else "blockIdx.x"
        with self.units(inner, low, instance, rank=block) as unit:
            assert isinstance(unit, DeviceScope)
            unit.team, unit.rank = self.team(instance), f"(long){block}"
            self._flags(unit, node)
            if instance < high:
                self.region(unit, replace(node, scale=self.launch.scales[high - 1].name))
            else:
                self._unit(unit, node.body)
        made, self.kernel = self.kernel, None
        if made.shared + made.reserve > shared_limit():
            self._too_large(node, made.shared + made.reserve)
        touched = [(s.name, self.name(s.name), s) for s in self._touched_storages(node.body)]
        tensors = [(plain, s) for _, plain, s in touched if s.home == "argument"]
        parameters = [f"{s.c_type} *{plain}" for plain, s in tensors]
        parameters += [
            "char *launch",
            "struct failure *failure",
            *(f"{kind} {field}" for kind, field, _ in fields),
        ]
        self.kernels.append(name)
        self.functions += [
            f"KERNEL {name}({', '.join(parameters)}) {{",
            "  SHARED;",
            "  const int tid = threadIdx.x;",
            *(line for _, plain, s in touched for line in self._declared(plain, s)),
            *inner.text.lines,
            "}",
            "",
        ]
        count = math.prod(s.count for s in self.launch.scales[low:instance])
        site = self.failure_site(
            "deadlock", "deadlock: {} threads of a block wait for each other, and none can go on"
        )
        values = [plain for plain, _ in tensors] + ["launch", "failure", *(value for _, _, value in fields)]
        sizes = f"{count}, {made.threads}, {made.shared + made.reserve}"
        launched = "LAUNCH_TOGETHER" if together else "LAUNCH"
        scope.text.add(f"{launched}({name}, {sizes}, {site}, {', '.join(values)});")

    def _ordered(self, scope: DeviceScope, node: n.ScaleRegion, low: int, instance: int) -> str:
        """The C of a block's number, in the order in which hints let blocks begin."""
        scales = self.launch.scales[low:instance]
        begun = Symbol("begun")
        number = rasterised(begun, scales[-1].extents, node.body) if scales else begun
        if number is begun or math.prod(s.count for s in scales) != scales[-1].count:
            return "blockIdx.x"
        name, scope.ranges["begun"] = self.fresh("block_"), (0, scales[-1].count - 1)
        scope.vars["begun"] = Value("(long)blockIdx.x", "int")
        scope.text.add(f"const long {name} = {scope.whole(number)};")
        return name

    def reserve(self, size: int) -> str:
        """Shared memory for one statement, after the tiles."""
        assert self.kernel is not None
        self.kernel.reserve = max(self.kernel.reserve, size)
        return f"(shared + {self.kernel.shared})"

    def _touched_storages(self, body: tuple[n.Node, ...]) -> list[Any]:
        names = {self.storages.names[r.source].base for node in n.walk(body) for _, r in n.regions(node)}
        return [s for name, s in self.storages.table.items() if name in names]

    def _declared(self, plain: str, storage: Any) -> list[str]:
        kind = storage.c_type
        if storage.home == "registers":
            layout = self.storages.fragments.layouts[storage.name]
            shape = "x".join(map(str, storage.shape))
            return [f"  {kind} {plain}[{layout.registers}]; // {storage.dtype} {shape}, {layout}"]
        if storage.home == "local":
            return [f"  {kind} {plain}[{max(storage.size, 1)}];"]
        memory = {"instance": "shared", "launch": "launch"}.get(storage.home)
        return [f"  {self.storages.tile(storage, plain, f'{memory} + {storage.offset}')}"] if memory else []

    def _flags(self, scope: DeviceScope, node: n.ScaleRegion) -> None:
        mine = {a.name for a in n.walk(node.body) if isinstance(a, n.Alloc) and a.flag}
        for storage in self.flags("instance"):
            if storage.name in mine:
                phased = storage.name in self.storages.mbarriers
                size = storage.bytes(self.launch) // (8 if phased else 4)
                loop = f"for (int i = tid; i < {size}; i += {scope.crew.size})"
                loop = loop if size > scope.crew.size else f"if (tid < {size})"
                index = "i" if size > scope.crew.size else "tid"
                at = f"(({storage.c_type} *)(shared + {storage.offset}))[{index}]"
                count = phased and self.storages.arrivals(storage.name)
                scope.text.add(f"{loop} mbarrier_init(&{at}, {count});" if phased else f"{loop} {at} = 0;")
                scope.hazards.add([(storage.name, True)])
        if scope.hazards.written:
            scope.sync()

    def _too_large(self, node: n.ScaleRegion, size: int) -> None:
        held = [s for s in self._touched_storages(node.body) if s.home == "instance"]
        largest = max(held, key=lambda s: s.bytes(self.launch), default=None)
        raise CompileError(
            f"the tiles of this region take {size} bytes of shared memory, and a block has {shared_limit()}"
            + (f"; the largest is '{largest.name}'" if largest else ""),
            place=node.place,
            advice="use smaller tiles or fewer stages",
        )


_DEREFERENCED = re.compile(r"\(\*\(&(\w+\[[^\[\]]*\])\)\)")
_STORED = re.compile(r"^(\s*(?:if \(.*\) )?)\*\(&(\w+\[[^\[\]]*\])\) = ", re.M)


_NUMBERS = re.compile(r"(?<!if )(?<!while )(?<!switch )(?<![\w>\]])\((\d+)\)")


def _tidied(text: str) -> str:
    """``(*(&c[r]))`` is ``c[r]``, and ``(64)`` is ``64``."""
    return _NUMBERS.sub(r"\1", _STORED.sub(r"\1\2 = ", _DEREFERENCED.sub(r"\1", text)))


_HEAD = """// CUDA C++ of the tile program '{name}', built for machine '{machine}'; written by megatile.
// Never run on a GPU: checked on the CPU only, where emulate.h gives threads, barriers, shuffles, cp.async
// and mma their meaning. For sm_80 and later: nvcc -std=c++17 -arch=sm_80 -c FILE.cu
"""


def generate_cuda(program: Program) -> CudaSource:
    """The CUDA C++ of a Program."""
    return DeviceWriter(without_views(program)).source()


def _check_peer(node: n.Node) -> None:
    """Blocks reach into blocks; not smaller units into larger ones, and not by atomics."""
    atomic = isinstance(node, (n.Atomic, n.AtomicRegion))
    if (atomic and n.remote(node)) or (
        (atomic or isinstance(node, (n.Copy, n.Signal))) and getattr(node, "scale", None)
    ):
        raise CompileError(
            "one-sided communication from a smaller scale cannot be written as CUDA yet",
            advice="use target='cpu'",
        )
