"""Which tiles Triton's `fused_moe` kernel runs with: SGLang's tuned tables and its rule without one, and vLLM's rule.

Tables are data (``arch/kernels/moe_triton``, whose ``meta.yaml`` names their source). How they are used is that of
SGLang 0.5.10 and 0.5.14 (``fused_moe_triton_config.py``: ``get_moe_configs``, ``get_default_config``,
``try_get_optimal_moe_config``) and, without a table, of vLLM (vllm/model_executor/layers/fused_moe/fused_moe.py at
13cb3e4: ``get_default_config``):

- A table holds for one GPU, number of experts, columns (`inter` on a rank) and types. Of tables tuned with several
  versions of Triton the one of the running version counts, else that of the newest.
- In a table the line of the nearest number of tokens counts, the lower one of two that are as near: tokens of the
  layer, before each goes to its `topk` experts. `topk` itself plays no part.
- The second GEMM has a table of its own for few shapes, else it has the first one's tile. Rows are padded to `block_m`
  once for both, so `block_m` is the first one's in any case. AIConfigurator's collector (collector/sglang/
  collect_moe.py) hands one tile to both GEMMs: its timings are those of ``own_down_table=False``.
"""

from __future__ import annotations

import csv
from functools import cache
from typing import Literal, NamedTuple

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

_TYPES = ("16bit", "fp8", "fp8_channel", "fp8_block", "int8", "int8_block", "w8a16")


class TritonTile(NamedTuple):
    """What `fused_moe` is compiled and launched with.

    Attributes:
        block_m, block_n, block_k: rows (padded for each expert), columns and the step along K of a program.
        group_m: blocks of rows that take turns over one block of columns (1: all columns of a block of rows in a row).
        num_warps, num_stages: of a program.
    """

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    num_warps: int = _DEFAULT_WARPS
    num_stages: int = _DEFAULT_STAGES


class _Key(NamedTuple):
    """What names a table of a GPU."""

    types: str
    num_experts: int
    inter: int
    gemm: int
    triton: str


class _Table(NamedTuple):
    """The lines of a table, and since which release there is one."""

    since: str
    tiles: dict[int, TritonTile]  # by the number of tokens, ascending


def triton_tile(
    arch: GpuSpec | str,
    num_experts: int,
    inter: int,
    types: GemmTypes | str,
    num_tokens: int,
    topk: int,
    gemm: Literal[1, 2],
    *,
    release: str = "0.5.14",
    engine: Literal["sglang", "vllm"] = "sglang",
    own_down_table: bool = True,
) -> TritonTile:
    """Return the tile that `fused_moe` takes.

    Args:
        arch: GPU, or its name.
        num_experts: experts of a rank.
        inter: columns of one of gate and up on a rank; GEMM 1 has twice as many, GEMM 2's K is `inter`.
        types: of the GEMM, or their name in the tables (``16bit``, ``fp8``, ``fp8_channel``, ``fp8_block``, ``int8``,
            ``int8_block``, ``w8a16``) or a shorthand (``bf16``).
        num_tokens: of the layer.
        topk: experts of a token. No rule reads it yet.
        gemm: 1 (gate and up) or 2 (down).
        release: of SGLang.
        engine: ``vllm`` is its rule without a table; its tables are not known here.
        own_down_table: whether a table for GEMM 2 is used where there is one.

    Raises:
        InvalidOptionError: a size below 1, another `gemm`, `release` or name of types.
        UnsupportedError: types that the kernel does not take.
        ArchNotFoundError: no such GPU.
    """
    del topk
    spec = _gpu(arch)
    name = _check(types, release, gemm, num_experts=num_experts, inter=inter, num_tokens=num_tokens)
    if engine == "vllm":
        return _vllm_default(name, num_experts, num_tokens)
    table = _find(spec.name, name, num_experts, inter, 1, release)
    tile = _default(spec, name, num_experts, num_tokens, release) if table is None else _nearest(table[1], num_tokens)
    if gemm == 2 and own_down_table:
        down = _find(spec.name, name, num_experts, inter, 2, release)
        if down is not None:
            return _nearest(down[1], num_tokens)._replace(block_m=tile.block_m)
    return tile


@cache
def known_tiles(types: str, sm_arch: str) -> tuple[TritonTile, ...]:
    """Return every tile that a table of some GPU of a generation has for these types, and those of the rules.

    The first of tiles that differ in `group_m` alone stands for them.
    """
    found = [_default_of(types, num_tokens) for num_tokens in (1, 2)]
    for path in sorted((data_root() / "kernels" / "moe_triton").glob("*.csv")):
        if _gpu(path.stem).sm_arch == sm_arch:
            found += [
                tile for key, table in _tables(path.stem).items() if key.types == types for tile in table.tiles.values()
            ]
    return tuple({tile._replace(group_m=1): tile for tile in reversed(found)}.values())


def _default_of(types: str, num_tokens: int) -> TritonTile:
    """The rule's tile for two experts, on a GPU of much shared memory."""
    return _default(load_arch("h200-sxm", GpuSpec), types, 1, num_tokens, "0.5.14")


def triton_tile_source(
    arch: GpuSpec | str, num_experts: int, inter: int, types: GemmTypes | str, gemm: int = 1, *, release: str = "0.5.14"
) -> str:
    """Return where SGLang has a tile from: ``"table of Triton 3.2.0"``, or ``"rule"`` where no table is known.

    Raises:
        InvalidOptionError, UnsupportedError, ArchNotFoundError: as `triton_tile`.
    """
    name = _check(types, release, gemm, num_experts=num_experts, inter=inter)
    spec = _gpu(arch)
    for which in (2, 1) if gemm == 2 else (1,):
        found = _find(spec.name, name, num_experts, inter, which, release)
        if found is not None:
            return f"table of Triton {found[0]}"
    return "rule"


def swaps_operands(arch: GpuSpec, types: GemmTypes | str, tile: TritonTile) -> bool:
    """Whether the kernel multiplies B^T x A^T, so that columns of B are the tensor core's rows.

    It does for fp8 on Hopper where rows are few: wgmma has 64 rows at least (``should_enable_swap_ab`` in SGLang's
    fused_moe_triton_kernels.py).

    Raises:
        InvalidOptionError, UnsupportedError: as `triton_tile`.
    """
    is_fp8 = _types_name(types).startswith("fp8")
    return is_fp8 and arch.sm_arch == "sm_90" and tile.block_m < 64 <= tile.block_n


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


def _gpu(arch: GpuSpec | str) -> GpuSpec:
    spec = load_arch(arch) if isinstance(arch, str) else arch
    if not isinstance(spec, GpuSpec):
        raise UnsupportedError(f"Triton's fused_moe runs on GPUs; got {spec.name}")
    return spec


def _types_name(types: GemmTypes | str) -> str:
    if isinstance(types, GemmTypes):
        return triton_types(types)
    name = "16bit" if types in ("bf16", "fp16") else types
    if name not in _TYPES:
        raise InvalidOptionError(f"types must be GemmTypes or one of bf16, fp16, {', '.join(_TYPES)}; got {types!r}")
    return name


def _check(types: GemmTypes | str, release: str, gemm: int, **sizes: int) -> str:
    """Return the name of the types."""
    if release not in SGLANG_RELEASES:
        raise InvalidOptionError(f"release must be one of {', '.join(SGLANG_RELEASES)}, got {release!r}")
    if gemm not in (1, 2):
        raise InvalidOptionError(f"gemm must be 1 (gate and up) or 2 (down), got {gemm!r}")
    for name, value in sizes.items():
        if value < 1:
            raise InvalidOptionError(f"{name} must be >= 1, got {value}")
    return _types_name(types)


def _find(
    arch_name: str, types: str, num_experts: int, inter: int, gemm: int, release: str
) -> tuple[str, dict[int, TritonTile]] | None:
    """The version of Triton and the lines of the table that a release takes; None: there is none."""
    tables = _tables(arch_name)
    for triton in SGLANG_RELEASES[release]:
        table = tables.get(_Key(types, num_experts, inter, gemm, triton))
        if table is not None and _order(table.since) <= _order(release):
            return triton, table.tiles
    return None


def _nearest(tiles: dict[int, TritonTile], num_tokens: int) -> TritonTile:
    return tiles[min(tiles, key=lambda known: abs(known - num_tokens))]  # of two the first, which is the lower


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@cache
def _tables(arch_name: str) -> dict[_Key, _Table]:
    path = data_root() / "kernels" / "moe_triton" / f"{arch_name}.csv"
    tables: dict[_Key, _Table] = {}
    if not path.is_file():
        return tables
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = _Key(row["types"], int(row["num_experts"]), int(row["inter"]), int(row["gemm"]), row["triton"])
            table = tables.setdefault(key, _Table(row["since"], {}))
            table.tiles[int(row["num_tokens"])] = TritonTile(*(int(row[name]) for name in TritonTile._fields))
    return tables


def _default(arch: GpuSpec, types: str, num_experts: int, num_tokens: int, release: str) -> TritonTile:
    """SGLang's rule without a table."""
    few = num_tokens <= num_experts
    if types == "fp8_block":
        return TritonTile(64, 128, 128, 32, 4, 3)
    if types in ("fp8", "fp8_channel"):
        if arch.smem_per_cta_bytes < _LOW_SMEM_BYTES and _order(release) >= _order("0.5.14"):
            return TritonTile(32, 64, 256, 1, 4, 4) if few else TritonTile(64, 128, 256, 64, 4, 2)
        return TritonTile(64, 128, 128, 1, 4, 4) if few else TritonTile(128, 256, 128, 32, 8, 4)
    return TritonTile(16, 32, 64, 1) if few else TritonTile(64, 64, 32, 8)


def _vllm_default(types: str, num_experts: int, num_tokens: int) -> TritonTile:
    """vLLM's: fp8 with a scale a tensor is like 16 bits."""
    if types == "fp8_block":
        return TritonTile(64, 128, 128, 32, 4, 3)
    return TritonTile(16, 32, 64, 1) if num_tokens <= num_experts else TritonTile(64, 64, 32, 8)
