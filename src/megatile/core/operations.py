"""All operations on tiles, with what they are made of: see ``basic_operations.py``.

>>> "gemm" in OPERATIONS, "nest" in OPERATIONS
(True, True)
"""

from megatile.core import attention_operations, elementwise
from megatile.core.basic_operations import (
    OPERATIONS,
    REDUCTIONS,
    Array,
    Operation,
    OperationError,
    Shape,
    apply,
    broadcast_shapes,
    cast,
    spoken_operation,
    work_of,
)

__all__ = [
    "OPERATIONS",
    "REDUCTIONS",
    "Array",
    "Operation",
    "OperationError",
    "Shape",
    "apply",
    "attention_operations",
    "broadcast_shapes",
    "cast",
    "elementwise",
    "spoken_operation",
    "work_of",
]
