"""Collective kernels for processing elements: modules with ``kernel`` and ``kernel_args``.

What a module may bring: ``kernel(t_ptr, ..., tl)``; ``kernel_args(*, n_elem, world_size, **config)``, the
arguments between ``t_ptr`` and ``tl``; and, for topology ``none``, ``neighbors(rank, world_size)``.
"""
