"""The text that ``mt.export(p, "tilelang")`` writes, run through our own door."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np

import megatile as mt
from megatile.compat.tilelang.source import RANKS, bind_shapes
from megatile.compat.tilelang.takeover import installed
from megatile.core.dtypes import numpy_dtype


def round_trip(program, *arrays, folder: Path, machine="dgx-h100", shapes=None, text="") -> list[np.ndarray]:
    """What arrays hold after the exported kernel ran on every rank; the arrays themselves are kept."""
    shapes = [a.shape for a in arrays] if shapes is None else shapes
    text = text or mt.export(program, "tilelang", *shapes, machine=machine)
    path = folder / "exported_kernel.py"
    path.write_text(text, encoding="utf-8")
    with installed():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = getattr(module, re.search(r"^def (\w+)", text, re.MULTILINE).group(1))
        token = RANKS.set(getattr(module, "RANKS", 1))
        try:
            shapes = [(name, kind, shape_of(module, name, array))
                      for (name, kind), array in zip(kernel.kinds.items(), arrays, strict=False)]  # fmt: skip
            built = kernel.build({}, bind_shapes(shapes, {}))
        finally:
            RANKS.reset(token)
        sys.modules.pop(path.stem, None)
    ranks = built.ranks
    names = list(kernel.kinds)
    if ranks == 1:
        held = {name: np.array(array) for name, array in zip(names, arrays, strict=True)}
    else:
        held = {name: divided(module, name, array) for name, array in zip(names, arrays, strict=False)}
    for name in names:
        if name not in held:
            kind = built.tensors[name]
            held[name] = np.zeros((ranks, *kind.shape), numpy_dtype(kind.dtype.short))
    for one in built.programs:
        mt.run(one, *[held[p.name] for p in one.params], machine=one.machine)
    if ranks == 1:
        return [held[name] for name in names]
    return [joined(module, name, array, held[name]) for name, array in zip(names, arrays, strict=False)]


def shape_of(module, name, array):
    dim = getattr(module, "DIVIDED", {}).get(name)
    shape = list(array.shape)
    if dim is not None:
        shape[dim] //= module.RANKS
    return tuple(shape)


def divided(module, name, array):
    dim = module.DIVIDED[name]
    parts = [array] * module.RANKS if dim is None else np.split(array, module.RANKS, axis=dim)
    return np.stack([np.array(part) for part in parts])


def joined(module, name, before, after):
    """A whole array: parts beside each other, or before with what any rank changed."""
    dim = module.DIVIDED[name]
    if dim is not None:
        return np.concatenate(list(after), axis=dim)
    found = np.array(before)
    for one in after:
        changed = (one != before) & ~((one != one) & (before != before))
        found[changed] = one[changed]
    return found
