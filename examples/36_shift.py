"""Message passing.

MPI style: put, barrier, use.

* Without the barrier the run reports: data race on 'remote_B', read by device 1 here and written by a put
  of device 0.
* A `T.signal(flag, dst=...)` after the put and a `T.wait(flag, 1)` at the receiver do the same between two
  units.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def shift(n: int, devices: int = 8):
    @T.program
    def kernel(A: T.Tensor((devices, n), "f32"), B: T.Tensor((devices, n), "f32")):
        with T.Kernel(device=devices):
            with T.Scale("device") as dev_id, dev_num:
                local_A = T.view(A, layout=T.FullRow)
                local_B = T.view(B, layout=T.FullRow)
                remote_B = T.alloc((1, n), "f32", level="l2")
                T.copy(remote_B, local_A, dst=(dev_id + 1) % dev_num)
                T.barrier()
                T.copy(local_B, remote_B)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    devices = min(8, mt.machine(machine).count("device"))
    a = np.arange(devices * 16, dtype=np.float32).reshape(devices, 16)
    b = np.zeros_like(a)
    mt.run(shift(16, devices), a, b, machine=machine, **options)
    np.testing.assert_array_equal(b, np.roll(a, 1, axis=0))
    print(f"{devices} devices of {machine} passed their rows on: equal to np.roll")


if __name__ == "__main__":
    main()
