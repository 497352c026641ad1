"""The space of mappings: what a search chooses from and what a user may replay."""

from gemm_eval.mapping.attention import AttentionMapping, AttentionOrder, AttentionPartition, AttentionTile
from gemm_eval.mapping.gpu import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.mapping.multicore import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions

__all__ = [
    "AttentionMapping",
    "AttentionOrder",
    "AttentionPartition",
    "AttentionTile",
    "Decomposition",
    "KernelConfig",
    "LoopOrder",
    "MulticoreMapping",
    "Partition",
    "RasterOrder",
    "Schedule",
    "Tile",
    "enumerate_partitions",
]
