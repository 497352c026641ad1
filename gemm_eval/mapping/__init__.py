"""The space of mappings: what a search chooses from and what a user may replay."""

from gemm_eval.mapping._multicore import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions

__all__ = ["LoopOrder", "MulticoreMapping", "Partition", "Tile", "enumerate_partitions"]
