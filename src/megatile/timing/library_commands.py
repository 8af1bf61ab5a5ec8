"""Library kernels as commands of a Plan: ``library_kernel(x, kernel="gemm", shape="m=64 n=8192 k=8192", …)``.

The command names the kernel, its extents, the scheme of its weights and the library; its time is that of
`predict_kernel`. A ``host`` kernel is a stated time: ``shape="ns=364000"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.errors import MegatileError, Place
from megatile.hda import HDA
from megatile.timing.database import predict_kernel
from megatile.timing.formulas import KernelTime
from megatile.timing.machine_timing import Origin, TimingError

LIBRARY_KERNEL = "library_kernel"
HOST = "host"
MESSAGE = "message_ps"
"""Attribute of a kernel that sends: what of its time the message after it takes in the Plan."""


def kernel_time(
    hda: HDA, library: str, kernel: str, scheme: str, kv_dtype: str, extents: Mapping[str, int]
) -> KernelTime:
    """Return the time of one kernel of a library, with its origin and error bar."""
    given: dict[str, Any] = dict(extents)
    if kernel == HOST:
        return KernelTime(given["ns"] / 1e3, Origin("measured", f"host time of '{library}'"))
    return predict_kernel(
        kernel,
        machine=hda,
        dtype=scheme,
        kv_dtype=kv_dtype or None,
        library=library or None,
        captured=True,
        **given,
    )


def shape_text(extents: Mapping[str, int]) -> str:
    """Return extents as the ``shape`` of a command: ``m=64 n=8192 k=8192``."""
    return " ".join(f"{name}={value}" for name, value in extents.items())


def command_ps(hda: HDA, attributes: tuple[tuple[str, Any], ...], place: Place | None = None) -> int:
    """Return the picoseconds of a ``library_kernel`` command with these attributes; at least 1."""
    message = dict(attributes).get(MESSAGE, 0)
    if not isinstance(message, int):
        raise TimingError(f"library_kernel: {MESSAGE} must be a whole number, got {message!r}", place=place)
    return max(1, round(command_time(hda, attributes, place).time_us * 1e6) - message)


def command_origin(hda: HDA, attributes: tuple[tuple[str, Any], ...]) -> Origin:
    """Return where the time of a ``library_kernel`` command comes from."""
    return command_time(hda, attributes).origin


def command_time(hda: HDA, attributes: tuple[tuple[str, Any], ...], place: Place | None = None) -> KernelTime:
    """Return the time of a ``library_kernel`` command."""
    given = {name: str(value) for name, value in attributes}
    try:
        extents = tuple((n, int(v)) for n, _, v in (word.partition("=") for word in given["shape"].split()))
        names = (
            given.get("library", ""),
            given["kernel"],
            given.get("scheme", "bf16"),
            given.get("kv_dtype", ""),
        )
        return _time(hda, *names, extents)
    except (KeyError, ValueError) as problem:
        if isinstance(problem, MegatileError):
            raise
        raise TimingError(
            f"library_kernel: cannot read {given}: {problem}", place=place,
            advice='kernel="gemm", shape="m=64 n=64 k=64", scheme="bf16", library="vllm"',
        ) from None  # fmt: skip


@cached_in_owner
def _time(hda: HDA, library: str, kernel: str, scheme: str, kv: str, extents: tuple[Any, ...]) -> KernelTime:
    return kernel_time(hda, library, kernel, scheme, kv, dict(extents))
