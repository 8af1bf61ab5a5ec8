"""NVIDIA's own compiler takes the source: examples to PTX for compute_80, where NVRTC is installed."""

import ctypes
import ctypes.util
import importlib.util
from pathlib import Path

import pytest
from tests.targets.cuda.test_compile import gemm
from tests.targets.cuda.test_examples import ONE_DEVICE, example

import megatile as mt


def library() -> ctypes.CDLL:
    names = []
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found else []:
        for builtins in Path(folder).glob("cu*/lib/libnvrtc-builtins.so*"):  # NVRTC asks for it by name
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        names += [str(p) for p in sorted(Path(folder).glob("cu*/lib/libnvrtc.so*"))]
    names += [name for name in [ctypes.util.find_library("nvrtc")] if name]
    names += [str(p) for p in sorted(Path("/usr/local").glob("cuda*/lib64/libnvrtc.so"))]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    pytest.skip("needs NVRTC (pip install nvidia-cuda-nvrtc-cu12)")


def to_ptx(source: str) -> str:
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    options = [b"--gpu-architecture=compute_80", b"--std=c++17"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    kind = "ProgramLog" if status else "PTX"
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{kind}")(program, text)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert status == 0, text.value.decode()[:2000]
    return text.value.decode()


@pytest.mark.parametrize("number", ONE_DEVICE)
def test_examples_compile(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    sources = []
    module = example(number)

    def kept(prog, *arrays, machine, **_):
        sources.append(mt.compile(prog, target="cuda", machine=machine).source)
        raise StopIteration

    monkeypatch.setattr(module.mt, "run", kept)
    with pytest.raises(StopIteration):
        module.main()
    assert ".entry" in to_ptx(sources[0])


def test_tensor_cores_and_copies_in_the_background_are_used() -> None:
    text = to_ptx(mt.compile(gemm(256, 256, 256, 64, 64, 32, "bf16", stages=3), target="cuda").source)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
    assert "cp.async.cg.shared.global" in text
    assert "cp.async.wait_group" in text
