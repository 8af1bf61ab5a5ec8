"""What `make demo` shows. Files go to the folder named as argument, or to out/."""

import sys
from pathlib import Path

import megatile as mt
from megatile.core.quantities import format_rate, format_time
from megatile.report.machine_picture import draw_machine


def show_machine(folder: Path) -> None:
    """A cluster from one YAML file: questions, and a picture."""
    hda = mt.machine("h100-cluster", nodes=4)
    print(f"machine     {hda}")
    route = hda.route("gpu:0", "gpu:9")
    print(f"route       gpu 0 → gpu 9: {route}, {format_time(route.latency_ps)}")
    print(f"bisection   {format_rate(hda.bisection('gpu'))} between two halves of the GPUs")
    for suffix in ("svg", "png"):
        print(f"picture     {draw_machine(hda, folder / f'machine.{suffix}')}")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    show_machine(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
