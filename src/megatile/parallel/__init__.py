"""Models divided over the devices of a simulated machine: Megatron's layers, DTensor, counts of collectives.

import megatile.parallel as tp

def worker(rank, torch):
    torch.accelerator.set_device_index(rank)
    torch.distributed.init_process_group()
    tp.initialize_model_parallel(torch.distributed.get_world_size(), torch=torch)
    up = tp.ColumnParallelLinear(64, 256, torch=torch)
    down = tp.RowParallelLinear(256, 64, torch=torch)
    y = down(tp.relu(up(x)))
"""

from megatile.parallel.comm_debug import CommDebug, comm_debug
from megatile.parallel.dtensor import (
    DTensor,
    distribute_tensor,
    einsum,
    empty,
    matmul,
    ones,
    zeros,
)
from megatile.parallel.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatile.parallel.mappings import (
    copy_to_tp_region,
    gather_from_sequence_region,
    gather_from_tp_region,
    reduce_from_tp_region,
    reduce_scatter_to_sequence_region,
    scatter_to_sequence_region,
    scatter_to_tp_region,
)
from megatile.parallel.mesh import DeviceMesh, Partial, Replicate, Shard, init_device_mesh
from megatile.parallel.state import (
    destroy_model_parallel,
    get_data_parallel_group,
    get_data_parallel_rank,
    get_data_parallel_world_size,
    get_tensor_model_parallel_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    initialize_model_parallel,
)
from megatile.parallel.styles import ColwiseParallel, Linear, RowwiseParallel, parallelize_module
from megatile.runtime.host.ops import add, attention, gelu, mul, relu, rms_norm, silu, softmax

__all__ = [
    "ColumnParallelLinear",
    "ColwiseParallel",
    "CommDebug",
    "DTensor",
    "DeviceMesh",
    "Linear",
    "Partial",
    "Replicate",
    "RowParallelLinear",
    "RowwiseParallel",
    "Shard",
    "VocabParallelEmbedding",
    "add",
    "attention",
    "comm_debug",
    "copy_to_tp_region",
    "destroy_model_parallel",
    "distribute_tensor",
    "einsum",
    "empty",
    "gather_from_sequence_region",
    "gather_from_tp_region",
    "gelu",
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_world_size",
    "init_device_mesh",
    "initialize_model_parallel",
    "matmul",
    "mul",
    "ones",
    "parallelize_module",
    "reduce_from_tp_region",
    "reduce_scatter_to_sequence_region",
    "relu",
    "rms_norm",
    "scatter_to_sequence_region",
    "scatter_to_tp_region",
    "silu",
    "softmax",
    "zeros",
]
