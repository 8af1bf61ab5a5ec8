"""Importing megatile costs about as much as importing NumPy."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Row, bench, fresh_interpreter, ratio_at_most


@bench("import")
def importing() -> Iterator[Row]:
    ours = fresh_interpreter("import megatile")
    numpy = fresh_interpreter("import numpy")
    yield Row("import megatile", ours, "s", numpy, "import numpy", ratio_at_most(1.2))
