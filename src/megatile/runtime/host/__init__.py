"""The host side of simulated machines: addresses, memory, tensors, workers, groups. `context.host` begins."""
