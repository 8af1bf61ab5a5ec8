"""The engine as machine code, which is made once per machine."""

from __future__ import annotations

import sys
from typing import Any

from megatile.core.cached import cached
from megatile.records.machine_code import MachineCode
from megatile.sim import plain

_LOADED: list[Any] = []


def is_compiled() -> bool:
    """Return whether the compiled engine is loaded in this process."""
    return bool(_LOADED)


@cached(most=1)
def compiled() -> Any:
    """Return the engine as machine code, with ``run(array)``; the plain one where llvmlite is absent."""
    try:
        import llvmlite.binding  # noqa: F401
    except ImportError:
        return plain.engine()
    _LOADED.append(MachineCode(plain.FUNCTIONS))
    return _LOADED[-1]


def main() -> None:
    """Make the machine code now; set-ups call this so that the first simulation need not wait."""
    compiled()
    print(
        f"engine: {'machine code is ready' if is_compiled() else 'llvmlite is absent, runs uncompiled'}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
