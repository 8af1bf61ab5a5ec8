"""What the libraries of machines take for an all-reduce, and how the choice depends on the size."""

from megatile.collectives import predict, prove

for machine in ("dgx-h100", "mi300x-8", "h100-cluster"):
    for size in (1 << 10, 1 << 20, 1 << 26):
        found = predict("all_reduce", machine=machine, nbytes=size)
        print(
            f"{machine:<13} {size:>10} B  {found.candidate.label:<28} {found.model:<22}"
            f"{found.time_ps / 1e6:10.1f} us  {found.busbw / 1e9:6.1f} GB/s"
        )

found = predict("all_reduce", machine="dgx-h100", nbytes=4096, dtype="bf16")
print()
print(found.explanation)
print()
print("proved:", prove(found.plan, found.job))
