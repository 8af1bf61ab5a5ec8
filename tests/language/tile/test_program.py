"""``language/tile/program.py``: ``@T.program``."""

import io

import numpy as np
import pytest
from tests.language.tile.shared import zeros

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError


def test_output_and_record_of_a_run() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=2) as b:
            T.print("here", b)
            T.fill(X[b * 2 : b * 2 + 2], b)

    text = io.StringIO()
    result = mt.run(p, zeros(4), output=text, record=True)
    assert text.getvalue() == "[block 0] here 0\n[block 1] here 1\n"
    assert result.last_write("X", 3) == result.last_write("X", (3,))
    for index, copy, message in (
        ((4,), 0, "'X' has no element \\(4,\\)"),
        ((0, 0), 0, "1 dimensions, 2 indices"),
        ((0,), 1, "has no copy 1"),
    ):
        with pytest.raises(MegatileError, match=message):
            result.last_write("X", *index, copy=copy)
    fixed = zeros(4)
    fixed.flags.writeable = False
    with pytest.raises(MegatileError, match="'X' is written, and its array is read-only.*copy"):
        mt.run(p, fixed)


def test_the_program_as_text() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=2, threads=128) as b:
            x = T.alloc((4,), "f32")
            T.copy(x, X[b * 4])
            for i in T.Parallel(4):
                x[i] = x[i] * 2.0 + 1.0
            T.copy(X[b * 4], x)

    assert str(p) == (
        "def p(X: f32[8]):\n"
        '    machine("dgx-h100")\n'
        "    launch(node=implied(1), device=1, cluster=implied(1), cta_pair=implied(1), block=2, "
        'warpgroup=implied(1), warp=implied(4), thread=32, dispatch="block", host="device")\n'
        '    with scale("block"):\n'
        '        x = alloc((4,), "f32", "registers", "block")\n'
        "        copy(x[0::4], X[anchor(block.x * 4, 4)])\n"
        "        for i in parallel(4):\n"
        "            x[i] = x[i] * 2.0 + 1.0\n"
        "        copy(X[anchor(block.x * 4, 4)], x[0::4])\n"
    )


@pytest.mark.parametrize(
    "name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"]
)
def test_torch_tensors_of_every_type(name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)

    @T.program
    def p(X: T.Tensor((8,), kind), Y: T.Tensor((8,), kind)):
        with T.Kernel(block=1):
            T.copy(Y, X)

    x, y = torch.arange(8).to(kind), torch.zeros(8).to(kind)
    mt.run(p, x, y)
    assert torch.equal(x.float(), y.float())


def test_arguments_need_annotations() -> None:
    with pytest.raises(
        ProgramError, match="(?s)argument 'n' of 'p' has no T.Tensor annotation.*a function around it.*\\^"
    ) as caught:

        @T.program
        def p(n):
            pass

    assert "def p(n):" in str(caught.value)
    assert caught.value.__traceback__.tb_next.tb_next is None


def test_annotations_that_are_text() -> None:
    size = 4

    def kernel(A: "T.Tensor((size,), 'f32')"):
        with T.Kernel(block=1):
            T.fill(A, 3)

    a = np.zeros(4, np.float32)
    mt.run(T.program(kernel), a)
    assert (a == 3).all()

    def broken(A: "T.Tensor((sise,), 'f32')"):
        pass

    with pytest.raises(ProgramError, match="the annotations of 'broken' cannot be read: name 'sise'"):
        T.program(broken)


def test_a_program_without_a_launch() -> None:
    @T.program
    def p(A: T.Tensor((4,), "f32")):
        pass

    with pytest.raises(ProgramError, match=r"'p' has no launch.*with T.Kernel"):
        p.build()


def test_unknown_symbol() -> None:
    @T.program
    def p(A: T.Tensor((T.dynamic("M"),), "f32")):
        with T.Kernel(block=1):
            T.clear(A)

    assert "symbols(M)" in str(p)
    assert "f32[7]" in str(p.build(M=7))
    with pytest.raises(ProgramError, match="'N' is not a symbolic extent of 'p'"):
        p.build(N=4)


def test_text_of_a_launch_with_symbolic_extents() -> None:
    @T.program
    def p(A: T.Tensor((T.dynamic("M"), T.dynamic("N")), "f32")):
        with T.Kernel(block=A.shape[0]):
            T.clear(A)

    assert str(p).endswith("symbolic extents; show it with print(p.build(M=..., N=...))")
    assert "f32[7, 2]" in str(p.build(M=7, N=2))
