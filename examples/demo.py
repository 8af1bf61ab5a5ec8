"""What `make demo` shows. Files go to the folder named as argument, or to out/."""

import sys
from pathlib import Path

from megatile.core.errors import MegatileError, Place, did_you_mean


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    advice = did_you_mean("bandwith", ["bandwidth", "latency", "topology"])
    place = Place("my-machine.yaml", 12, 5, "networks.nvlink", "    bandwith: 450 GB/s")
    error = MegatileError("unknown key", place=place, advice=advice)
    print(f"An error says what, where, and what to try:\n\n{error}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
