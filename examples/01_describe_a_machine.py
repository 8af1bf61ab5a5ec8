"""A machine in a dozen lines, and questions to it."""

import megatile as mt

MACHINE = {
    "name": "tiny",
    "hw_spec": {
        "pe": [{"name": "lane", "num_units": 1}, {"name": "core", "num_units": 8}],
        "pe_groups": [{"name": "chip", "num_units": 16}, {"name": "board", "num_units": 4}],
    },
    "hw_abstr": [
        {"name": "thread", "target": "lane"},
        {"name": "block", "target": "core"},
        {"name": "device", "target": "chip"},
    ],
    "networks": [
        {"name": "mesh", "level": "chip", "topology": "mesh", "bandwidth": "16 GB/s", "latency": "2 ns"},
        {"name": "ring", "level": "board", "topology": "ring", "bandwidth": "25 GB/s", "latency": "300 ns"},
    ],
}


def main() -> None:
    tiny = mt.HDA.from_dict(MACHINE)
    print(tiny)
    for scale in tiny.scales:
        print(f"  {scale.name:8} {tiny.count(scale.name):5}")
    route = tiny.route("core:0", "core:10")
    print(f"core 0 to core 10: {route}, {route.latency_ps / 1000:g} ns")
    print(f"two halves of the board: {tiny.bisection('device') / 1e9:g} GB/s each way")

    MACHINE["networks"][0]["topology"] = "mehs"  # type: ignore[index]
    try:
        mt.HDA.from_dict(MACHINE)
    except mt.MegatileError as error:
        print(f"a mistake: {error}")


if __name__ == "__main__":
    main()
