"""Lay launches on shipped machines: counts, seats, residency, waves."""

import megatile as mt


def main() -> None:
    node = mt.machine("dgx-h100")
    launch = node.instantiate(
        [
            mt.ScaleView("gpu"),
            mt.ScaleView("block", instance_num=512, is_flatten=True),
            mt.ScaleView("thread", instance_num=256, is_flatten=True),
        ]
    )
    print(node)
    print(f"launch {launch.shape}: {launch.count('warp')} warps, {launch.count('warpgroup')} warp groups")
    for shared in (0, 64 * 1024, 200 * 1024):
        memory = {"shared": shared}
        print(
            f"  {shared // 1024:3} KiB shared: {launch.residency(memory)} a SM, {launch.waves(memory)} waves"
        )
    print(f"block 700 sits on {launch.seat('block', 700)}")

    wafer = mt.machine("cerebras-wse2")
    cores = wafer.instantiate([mt.ScaleView("core")])
    print(
        f"{wafer}: {cores.size} cores, corner to corner {wafer.route('core:0', 'core:849999').hop_count} hops"
    )


if __name__ == "__main__":
    main()
