"""Importing megatile costs about as much as importing NumPy; the command line answers at once."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Row, at_most, bench, fresh_interpreter, ratio_at_most

COMMAND = """
import contextlib, sys
from megatile.__main__ import main
sys.argv = ["megatile", "{words}"]
with contextlib.suppress(SystemExit):
    main()
"""


@bench("import")
def importing() -> Iterator[Row]:
    ours = fresh_interpreter("import megatile")
    numpy = fresh_interpreter("import numpy")
    yield Row("import megatile", ours, "s", numpy, "import numpy", ratio_at_most(1.2))
    for words, bar in (("--help", 0.35), ("machines", 0.5)):
        code = COMMAND.format(words=words)
        yield Row(f"megatile {words}", fresh_interpreter(code), "s", bar=at_most(bar))
