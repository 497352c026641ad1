"""Tiles that Triton's `fused_moe` kernel runs with: SGLang's tuned tables, and its rule without one.

Tables are data (``arch/kernels/moe_triton``, whose ``meta.yaml`` names their source), used as SGLang 0.5.10 and 0.5.14
use them (``fused_moe_triton_config.py``: ``get_moe_configs``, ``get_default_config``, ``try_get_optimal_moe_config``).
"""

import csv
from functools import cache
from typing import NamedTuple

from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.workload import GemmTypes

_DEFAULT_WARPS, _DEFAULT_STAGES = 4, 3  # what Triton takes for a GPU of NVIDIA where a config does not say
_LOW_SMEM_BYTES = 128 * 1024  # below it SGLang 0.5.14 takes smaller tiles for fp8

SGLANG_RELEASES = {
    # the first is the Triton that the release runs on; 0.5.10 names the others itself, and not 3.3.0
    "0.5.10": ("3.5.1", "3.4.0", "3.3.1", "3.2.0", "3.1.0"),
    "0.5.14": ("3.6.0", "3.5.1", "3.4.0", "3.3.1", "3.3.0", "3.2.0", "3.1.0"),
}
"""Releases of SGLang whose rules are known, and the versions of Triton whose tables each looks into, in order."""


class TritonTile(NamedTuple):
    """Constants with which `fused_moe` is compiled and launched."""

    block_m: int  # rows of a program, padded for each expert
    block_n: int
    block_k: int
    group_m: int  # blocks of rows that take turns over one block of columns (1: all columns of a block in a row)
    num_warps: int = _DEFAULT_WARPS
    num_stages: int = _DEFAULT_STAGES


class _Table(NamedTuple):
    since: str  # the release that has it first
    tiles: dict[int, TritonTile]  # by the number of tokens, ascending


def triton_tile(
    arch: GpuSpec, num_experts: int, inter: int, types: GemmTypes, num_tokens: int, *, release: str = "0.5.14"
) -> TritonTile:
    """Return the tile that `fused_moe` takes for both GEMMs of a layer.

    A table holds for one GPU, number of experts, columns and types; of those tuned with several versions of Triton the
    one of the running version counts, else that of the newest. In it the line of the nearest number of tokens counts,
    the lower one of two that are as near. The second GEMM has a table of its own for few shapes, which AIConfigurator's
    collector (collector/sglang/collect_moe.py) does not use: its timings hand one tile to both.

    Args:
        inter: columns of one of gate and up on a rank.
        num_tokens: of the layer, before each goes to its experts.

    Raises:
        InvalidOptionError: no such release.
        UnsupportedError: types that the kernel does not take.
    """
    if release not in SGLANG_RELEASES:
        raise InvalidOptionError(f"release must be one of {', '.join(SGLANG_RELEASES)}, got {release!r}")
    name, tables = triton_types(types), _tables(arch.name)
    for version in SGLANG_RELEASES[release]:
        table = tables.get((name, num_experts, inter, 1, version))
        if table is not None and _order(table.since) <= _order(release):
            nearest = min(table.tiles, key=lambda tokens: abs(tokens - num_tokens))  # of two the first, the lower
            return table.tiles[nearest]
    return _default(arch, name, num_experts, num_tokens, release)


@cache
def known_tiles(types: str, sm_arch: str) -> tuple[TritonTile, ...]:
    """Return every tile that a table of some GPU of a generation has for these types, and those of the rules.

    The first of tiles that differ in `group_m` alone stands for them.
    """
    spacious = load_arch("h200-sxm", GpuSpec)
    tiles = [_default(spacious, types, 1, num_tokens, "0.5.14") for num_tokens in (1, 2)]
    for path in sorted((data_root() / "kernels" / "moe_triton").glob("*.csv")):
        if load_arch(path.stem, GpuSpec).sm_arch == sm_arch:
            tables = [table for key, table in _tables(path.stem).items() if key[0] == types]
            tiles += [tile for table in tables for tile in table.tiles.values()]
    return tuple({tile._replace(group_m=1): tile for tile in reversed(tiles)}.values())


def triton_types(types: GemmTypes) -> str:
    """Return the name that the tables have for the types of a GEMM.

    Raises:
        UnsupportedError: the kernel has none for them.
    """
    a, b = types.a, types.b
    grouped = b.scale is not None and b.scale.group_size is not None
    blocks = grouped and b.scale is not None and (b.scale.group_size, b.scale.group_n) == (128, 128)
    if a.dtype in (DType.BF16, DType.FP16):
        if b.dtype is a.dtype and b.scale is None:
            return "16bit"
        if b.dtype is DType.INT8 and not grouped:
            return "w8a16"
    for dtype, name in ((DType.FP8, "fp8"), (DType.INT8, "int8")):
        if a.dtype is dtype and b.dtype is dtype and (blocks or not grouped):
            return f"{name}_block" if blocks else name
    raise UnsupportedError(
        f"Triton's fused_moe takes bf16 and fp16, fp8 and int8 (one scale a tensor or channel, or 1 x 128 and "
        f"128 x 128), and int8 weights; got {a.dtype} inputs and {b.dtype} weights"
    )


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@cache
def _tables(arch_name: str) -> dict[tuple[str, int, int, int, str], _Table]:
    """Return the tables of a GPU by types, experts, columns, GEMM and version of Triton."""
    path = data_root() / "kernels" / "moe_triton" / f"{arch_name}.csv"
    tables: dict[tuple[str, int, int, int, str], _Table] = {}
    if not path.is_file():
        return tables
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = row["types"], int(row["num_experts"]), int(row["inter"]), int(row["gemm"]), row["triton"]
            table = tables.setdefault(key, _Table(row["since"], {}))
            table.tiles[int(row["num_tokens"])] = TritonTile(*(int(row[name]) for name in TritonTile._fields))
    return tables


def _default(arch: GpuSpec, types: str, num_experts: int, num_tokens: int, release: str) -> TritonTile:
    """Return the tile of SGLang's rule without a table."""
    few = num_tokens <= num_experts
    if types == "fp8_block":
        return TritonTile(64, 128, 128, 32, 4, 3)
    if types in ("fp8", "fp8_channel"):
        if arch.smem_per_cta_bytes < _LOW_SMEM_BYTES and _order(release) >= _order("0.5.14"):
            return TritonTile(32, 64, 256, 1, 4, 4) if few else TritonTile(64, 128, 256, 64, 4, 2)
        return TritonTile(64, 128, 128, 1, 4, 4) if few else TritonTile(128, 256, 128, 32, 8, 4)
    return TritonTile(16, 32, 64, 1) if few else TritonTile(64, 64, 32, 8)
