"""Functions over tables as machine code, translated from the same source by LLVM.

Without rows (`desugar`) they are plain integer arithmetic on one array, so a small translator is enough:
every value is a 64-bit integer, ``s[x]`` is a load or store at the address of the array, and all functions
become one module that LLVM optimises as a whole. (Numba needs forty times as long for the same functions: it
infers types and optimises every function together with all it calls.) The object code is kept on disk, under
a hash of the sources, so that it is made once per machine; where nothing can be written, once per process.
"""

from __future__ import annotations

import ast
import ctypes
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from megatile.core.cached import cache_directory, read_cached, write_cached
from megatile.records.functions import Functions

MODEL = ("large", "static") if platform.machine() in ("x86_64", "AMD64") else ("small", "pic")
"""Code model and relocations. The parts of an object may be loaded with an arena of gigabytes between them,
where distances of 32 bits do not reach: LLVM would end the process."""
ByHand = Mapping[str, Callable[[Any], None]]
"""Functions that are not arithmetic on integers: what writes the LLVM of each."""


class MachineCode:
    """The function ``run`` of some functions, and all that it calls, as machine code."""

    def __init__(self, functions: Functions) -> None:
        import llvmlite.binding as llvm

        self._state = functions.layout.state.fields
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(functions.answer)
        self._answers_at = ctypes.cast(self._callback, ctypes.c_void_p).value
        with suppress(RuntimeError):  # newer releases do it by themselves
            llvm.initialize()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        host = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), llvm.llvm_version_info
        path = cache_directory() / f"{functions.folder.name}-{functions.key(*map(str, (*host, *MODEL)))}.o"
        address, code = 0, read_cached(path)
        if code is not None:
            with suppress(RuntimeError):
                address = self._load(code)
        if not address:
            machine = _target_machine()
            by_hand = {"prefetch": _prefetch, "call_python": self._call_python, **functions.by_hand}
            module = llvm.parse_assembly(str(translate([node for _, node in functions.nodes()], by_hand)))
            module.verify()
            _optimise(module, machine)
            code = machine.emit_object(module)
            write_cached(path, code)
            address = self._load(code)
        self._run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)

    def _load(self, code: bytes) -> int:
        """Return the address of ``run`` in object code, 0 if it has none or is none of this machine."""
        import llvmlite.binding as llvm

        machine = _target_machine()  # it goes with the compiler that it is given to
        sample = machine.emit_object(llvm.parse_assembly("define i64 @run() { ret i64 0 }"))
        if code[:20] != sample[:20]:  # llvmlite would crash
            return 0
        self.jit = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.jit.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.jit.finalize_object()
        return int(self.jit.get_function_address("run"))

    def run(self, memory: Any) -> int:
        memory[self._state["callback"].at] = self._answers_at
        return int(self._run(memory.__array_interface__["data"][0]))

    def _call_python(self, function: Any) -> None:
        """``call_python(s)``: call the function at ``callback`` with ``owner``."""
        from llvmlite import ir

        word = ir.IntType(64)
        b = ir.IRBuilder(function.append_basic_block())

        def entry(name: str) -> Any:
            at = word(8 * self._state[name].at)
            return b.load(b.inttoptr(b.add(function.args[0], at), word.as_pointer()))

        pointer = b.inttoptr(entry("callback"), ir.FunctionType(word, [word]).as_pointer())
        b.ret(b.call(pointer, [entry("owner")]))


def _target_machine() -> Any:
    import llvmlite.binding as llvm

    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True,
        codemodel=MODEL[0], reloc=MODEL[1],
    )  # fmt: skip


def _optimise(module: Any, machine: Any) -> None:
    import llvmlite.binding as llvm

    if hasattr(llvm, "create_pass_builder"):
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
    else:  # releases before 0.44
        builder = llvm.create_pass_manager_builder()
        builder.opt_level, builder.inlining_threshold = 2, 225
        manager = llvm.create_module_pass_manager()
        builder.populate(manager)
        manager.run(module)


# --- translation -------------------------------------------------------------------------------------------

_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_ARITHMETIC = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip


def translate(functions: list[ast.FunctionDef], by_hand: ByHand) -> Any:
    """Functions without records, as one LLVM module."""
    from llvmlite import ir

    module = ir.Module("functions")
    word = ir.IntType(64)
    declared = {
        f.name: ir.Function(module, ir.FunctionType(word, [word] * len(f.args.args)), f.name)
        for f in functions
    }
    marks = {"inlined": "alwaysinline", "apart": "noinline"}
    for node in functions:
        declared[node.name].linkage = "external" if node.name == "run" else "internal"
        mark = marks.get(getattr(node.decorator_list[0], "id", ""))
        if mark is not None:
            declared[node.name].attributes.add(mark)
    for node in functions:
        if node.name in by_hand:
            by_hand[node.name](declared[node.name])
        else:
            _Function(node, declared)
    return module


def _prefetch(function: Any) -> None:
    """``prefetch(s, row, field)``: the processor fetches the line of a field, and nobody waits for it."""
    from llvmlite import ir

    word, number, line = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [line, number, number, number])
    b = ir.IRBuilder(function.append_basic_block())
    address = b.add(function.args[0], b.mul(b.add(function.args[1], function.args[2]), word(8)))
    fetch = function.module.declare_intrinsic("llvm.prefetch", [line], kind)
    b.call(fetch, [b.inttoptr(address, line), number(1), number(3), number(1)])
    b.ret(word(0))


class _Function:
    """Translates one function; all names are 64-bit integers on the stack, which LLVM puts into registers."""

    def __init__(self, node: ast.FunctionDef, functions: dict[str, Any]) -> None:
        from llvmlite import ir

        self.ir, self.word = ir, ir.IntType(64)
        self.node, self.functions = node, functions
        self.function = functions[node.name]
        self.entry = self.function.append_basic_block("entry")
        self.b = ir.IRBuilder(self.entry)
        self.loops: list[tuple[Any, Any]] = []
        self.names: dict[str, Any] = {}
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for name in [a.arg for a in node.args.args] + sorted(names):
            if name not in self.names:
                self.names[name] = self.b.alloca(self.word, name=name)
        for argument, value in zip(node.args.args, self.function.args, strict=True):
            self.b.store(value, self.names[argument.arg])
        self.block(node.body)
        if not self.b.block.is_terminated:
            self.b.ret(self.word(0))

    def fail(self, node: ast.AST) -> Exception:
        return SyntaxError(f"{self.node.name}: {ast.unparse(node)} cannot be translated")

    # statements

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self.b.block.is_terminated:
                return
            getattr(self, f"on_{type(statement).__name__}")(statement)

    def on_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def on_Assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        self.put(target, self.value(node.value))

    def on_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Subscript):
            at = self.place(node.target)
            old = self.tagged(self.b.load(at), node.target)
            self.tagged(self.b.store(self.binary(node.op, old, self.value(node.value)), at), node.target)
        else:
            name = ast.Name(node.target.id, ast.Load())  # type: ignore[union-attr]
            self.put(node.target, self.binary(node.op, self.value(name), self.value(node.value)))

    def put(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.b.store(value, self.names[target.id])
        else:
            self.tagged(self.b.store(value, self.place(target)), target)

    def place(self, node: ast.expr) -> Any:
        """Return the address of ``s[x]``."""
        if not isinstance(node, ast.Subscript):
            raise self.fail(node)
        offset = self.b.mul(self.value(node.slice), self.word(8))
        return self.b.inttoptr(self.b.add(self.value(node.value), offset), self.word.as_pointer())

    def tagged(self, access: Any, node: Any) -> Any:
        """Return a load or store of ``s[x]`` that says what others cannot touch: an entry at the head of the
        arena is no other one and no row, and the engine does not move tables."""
        module, head = self.function.module, getattr(node, "head", "")
        if head.startswith("table"):
            access.set_metadata("invariant.load", module.add_metadata([]))
        kind = module.add_metadata([head or "a row", module.add_metadata(["the arena"]), self.word(0)])
        access.set_metadata("tbaa", module.add_metadata([kind, kind, self.word(0)]))
        return access

    def on_Return(self, node: ast.Return) -> None:
        self.b.ret(self.word(0) if node.value is None else self.value(node.value))

    def on_If(self, node: ast.If) -> None:
        then, orelse, after = (self.function.append_basic_block() for _ in range(3))
        self.b.cbranch(self.truth(node.test), then, orelse)
        for block, body in ((then, node.body), (orelse, node.orelse)):
            self.b.position_at_end(block)
            self.block(body)
            if not self.b.block.is_terminated:
                self.b.branch(after)
        self.b.position_at_end(after)

    def on_While(self, node: ast.While) -> None:
        self.loop(lambda: self.truth(node.test), node.body, None)

    def on_For(self, node: ast.For) -> None:
        """``for i in range(...)``; the bounds are found once."""
        if not (isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", "") == "range"):
            raise self.fail(node)
        bounds = [self.value(a) for a in node.iter.args]
        start, stop = bounds if len(bounds) == 2 else (self.word(0), bounds[0])
        with self.b.goto_block(self.entry):
            count = self.b.alloca(self.word)
        self.b.store(start, count)

        def more() -> Any:
            now = self.b.load(count)
            self.put(node.target, now)
            return self.b.icmp_signed("<", now, stop)

        def step() -> None:
            self.b.store(self.b.add(self.b.load(count), self.word(1)), count)

        self.loop(more, node.body, step)

    def loop(self, more: Any, body: list[ast.stmt], step: Any) -> None:
        test, inside, again, after = (self.function.append_basic_block() for _ in range(4))
        self.b.branch(test)
        self.b.position_at_end(test)
        self.b.cbranch(more(), inside, after)
        self.b.position_at_end(inside)
        self.loops.append((again, after))
        self.block(body)
        self.loops.pop()
        if not self.b.block.is_terminated:
            self.b.branch(again)
        self.b.position_at_end(again)
        if step is not None:
            step()
        self.b.branch(test)
        self.b.position_at_end(after)

    def on_Break(self, node: ast.Break) -> None:
        self.b.branch(self.loops[-1][1])

    def on_Continue(self, node: ast.Continue) -> None:
        self.b.branch(self.loops[-1][0])

    def on_Pass(self, node: ast.Pass) -> None:
        pass

    # expressions

    def truth(self, node: ast.expr) -> Any:
        return self.b.icmp_signed("!=", self.value(node), self.word(0))

    def value(self, node: ast.expr) -> Any:
        return getattr(self, f"of_{type(node).__name__}")(node)

    def of_Constant(self, node: ast.Constant) -> Any:
        return self.word(int(node.value))  # type: ignore[arg-type]

    def of_Name(self, node: ast.Name) -> Any:
        return self.b.load(self.names[node.id])

    def of_Subscript(self, node: ast.Subscript) -> Any:
        return self.tagged(self.b.load(self.place(node)), node)

    def of_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) != 1:
            raise self.fail(node)
        sides = self.value(node.left), self.value(node.comparators[0])
        return self.b.zext(self.b.icmp_signed(_COMPARISONS[type(node.ops[0])], *sides), self.word)

    def of_BoolOp(self, node: ast.BoolOp) -> Any:
        """As Python does it: what comes later is looked at only where it decides."""
        with self.b.goto_block(self.entry):
            kept = self.b.alloca(self.word)
        after = self.function.append_basic_block()
        wanted = isinstance(node.op, ast.And)
        for part in node.values:
            self.b.store(self.value(part), kept)
            rest = self.function.append_basic_block()
            sides = (rest, after) if wanted else (after, rest)
            self.b.cbranch(self.b.icmp_signed("!=", self.b.load(kept), self.word(0)), *sides)
            self.b.position_at_end(rest)
        self.b.branch(after)
        self.b.position_at_end(after)
        return self.b.load(kept)

    def of_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self.b.zext(self.b.icmp_signed("==", self.value(node.operand), self.word(0)), self.word)
        return self.b.sub(self.word(0), self.value(node.operand))

    def of_IfExp(self, node: ast.IfExp) -> Any:
        with self.b.goto_block(self.entry):
            kept = self.b.alloca(self.word)
        then, orelse, after = (self.function.append_basic_block() for _ in range(3))
        self.b.cbranch(self.truth(node.test), then, orelse)
        for block, part in ((then, node.body), (orelse, node.orelse)):
            self.b.position_at_end(block)
            self.b.store(self.value(part), kept)
            self.b.branch(after)
        self.b.position_at_end(after)
        return self.b.load(kept)

    def of_BinOp(self, node: ast.BinOp) -> Any:
        return self.binary(node.op, self.value(node.left), self.value(node.right))

    def binary(self, op: ast.operator, a: Any, b: Any) -> Any:
        name = _ARITHMETIC.get(type(op))
        if name is not None:
            return getattr(self.b, name)(a, b)
        # Division rounds down, and the remainder has the sign of the divisor.
        rest = self.b.srem(a, b)
        off = self.b.and_(
            self.b.icmp_signed("!=", rest, self.word(0)),
            self.b.icmp_signed("<", self.b.xor(rest, b), self.word(0)),
        )
        if isinstance(op, ast.Mod):
            return self.b.add(rest, self.b.select(off, b, self.word(0)))
        return self.b.sub(self.b.sdiv(a, b), self.b.zext(off, self.word))

    def of_Call(self, node: ast.Call) -> Any:
        name = getattr(node.func, "id", "")
        values = [self.value(a) for a in node.args]
        if name in ("min", "max"):
            return self.b.select(self.b.icmp_signed("<" if name == "min" else ">", *values), *values)
        if name == "load_float":
            offset = self.b.mul(values[1], self.word(8))
            return self.b.load(self.b.inttoptr(self.b.add(values[0], offset), self.word.as_pointer()))
        if name not in self.functions:
            raise self.fail(node)
        return self.b.call(self.functions[name], values)
