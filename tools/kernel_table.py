"""Tables of all compiled W4A16 kernels: what each takes of an SM, and what its main loop issues for a block of weights.

    python -m tools.kernel_table --out arch/kernels/w4a16
    python -m tools.kernel_table --out tables --target sm_90a --jobs 8

One CSV file for each target and activation (that of e4m3 tokens stands in arch/kernels/w4a8); a table takes some 15
minutes where its kernels are not in the cache. It is built without a GPU, from NVRTC's machine code. Instructions are
of warps, for a block of 64 columns x 64 k of weights and all tokens of the tile, summed over the warps of a CTA that
work on that block:

* `w4a16_sm90`, `w4a16_sm90_cluster`, `w4a8_sm90`: the four warps of the warpgroup that computes the block. The warp
  that copies weights and tokens is `producer`.
* `w4a16_sm80`: all warps that dequantize it; those that differ in tokens only each do, so that counts as often.
* `w4a16_gemv` and `w4a16_gemv_mma`: the warp that owns the columns, and its part where they are fewer than 64.

The loop's bookkeeping (waits, addresses, branches) is in the counts, by its share of a block.
"""

import argparse
import csv
import datetime
import hashlib
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import yaml

from gemm_eval.arch import DeviceLimits
from gemm_eval.device import (
    CLASSES,
    class_of,
    compiler_version,
    disassemble,
    find_main_loop,
    nvdisasm_version,
    parse_sass,
)
from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.kernels.families import (
    Family,
    Variant,
    WeightMode,
    families,
    family_of,
    fp8_families,
    grouped_families,
)
from gemm_eval.kernels.families.gemv import GemvMmaFamily, StreamingFamily, team_warps_of
from gemm_eval.kernels.families.sm80 import Sm80Family
from gemm_eval.kernels.families.sm90 import Sm90Family
from gemm_eval.kernels.families.sm90_fp8 import Sm90Fp8Family
from gemm_eval.kernels.registry import COMMON, SOURCES, compile_kernel, make_variant
from gemm_eval.mapping import KernelConfig, RasterOrder
from gemm_eval.storage import write_text
from gemm_eval.words import shown

MODES: tuple[tuple[WeightMode, int], ...] = tuple((mode, group) for mode in WeightMode for group in mode.group_sizes)
"""All quantization modes: (mode, weights of a group)."""

COLUMNS = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "split_k", "num_warps", "num_stages", "schedule",
    "mode", "group_size", "num_threads", "registers", "spill_bytes", "static_smem_bytes", "smem_bytes", "min_ctas",
    "team_warps", "rasters", *CLASSES, "total", "producer",
)  # fmt: skip
"""Columns of a table. `split_k`: parts of K that are compiled in; `smem_bytes` is dynamic shared memory; `min_ctas`:
CTAs of an SM that the compiler leaves registers for; `rasters`: those that the kernel is launched with, such as
"M1 N8"; the last are instructions for a block, as said above."""

_BLOCK = 64  # columns and k of a block of weights
_PLENTY = DeviceLimits((0, 0), 1 << 10, *[1 << 30] * 6)
_DIGITS = 4
_KEY = COLUMNS[: COLUMNS.index("group_size") + 1]
_CHECKED_EVERY = 64


class MainLoop(NamedTuple):
    """An iteration of a warp's main loop, as the source has it: the machine code is counted by it.

    Attributes:
        blocks: of weights, 64 x 64, that the warps which count here finish together.
        warps: how many warps those are.
        work: opcode that marks the loop.
        num_work: how often a warp issues it.
        copy: opcode that marks the loop of a warp that does nothing but copy; empty: no warp.
        copied_blocks: 64 k of tokens that one such instruction brings.
    """

    blocks: Fraction
    warps: int
    work: str
    num_work: int
    copy: str = ""
    copied_blocks: int = 1


def main_loop(variant: Variant) -> MainLoop:
    """Return the work of an iteration of a kernel's main loop."""
    config, family = variant.config, family_of(variant.config)
    if isinstance(family, Sm90Fp8Family):  # 128 k, as two parts of the tokens where they are many
        layout = family.macros(variant)
        num_wgmma = 4 * layout["MB"] * layout["TOKEN_PARTS"]
        return MainLoop(Fraction(2 * layout["MB"]), 4, "QGMMA", num_wgmma, copy="UTMALDG", copied_blocks=2)
    if isinstance(family, Sm90Family):  # 128 k of all column blocks of a warpgroup; four wgmma for 64 k of each
        blocks = family.macros(variant)["MB"]
        return MainLoop(Fraction(2 * blocks), 4, "HGMMA", 8 * blocks, copy="UTMALDG")
    if isinstance(family, Sm80Family):  # a step of the CTA, of which a warp has its part of the tile
        layout = family.macros(variant)
        k16_steps = config.cta_k // 16 // layout["WARPS_K"]
        num_mma = layout["WARP_N"] // 16 * (layout["WARP_M"] // 8) * k16_steps
        return MainLoop(Fraction(config.cta_n * config.cta_k, _BLOCK**2), config.num_warps, "HMMA", num_mma)
    blocks_n, team = Fraction(config.cta_n, _BLOCK), team_warps_of(variant)
    if isinstance(family, GemvMmaFamily):  # 64 k of the team's columns; 16 columns more are for the offsets of integers
        strips = config.cta_n // team // 16 + (0 if variant.mode.is_fp4 else 1)
        return MainLoop(blocks_n, team, "HMMA", strips * (config.cta_m // 8) * 4)
    # around the ring; a token's 64 k come by two LDSM
    return MainLoop(blocks_n * config.num_stages, team, "LDSM", config.num_stages * config.cta_m * 2)


class BlockCounts(NamedTuple):
    """Warp instructions for a block of 64 columns x 64 k of weights, as the module says.

    `counts` are by class, in the order of `CLASSES`; `producer` is of the warp that only copies, where there is one.
    """

    counts: tuple[Fraction, ...]
    producer: Fraction

    @property
    def total(self) -> Fraction:
        """Instructions of all classes, without `producer`."""
        return sum(self.counts, Fraction(0))


def block_counts(variant: Variant, sass: str) -> BlockCounts:
    """Count what the main loop of a kernel issues for a block of weights, in what nvdisasm writes about it."""
    instructions, expected = parse_sass(sass), main_loop(variant)
    loop = find_main_loop(instructions, lambda instruction: instruction.name == expected.work)
    num_work = sum(instruction.name == expected.work for instruction in loop)
    if num_work != expected.num_work:
        raise GemmEvalError(
            f"the main loop of {variant} must have {expected.num_work} {expected.work}, this one has {num_work}"
        )
    share = expected.warps / expected.blocks
    producer = Fraction(0)
    if expected.copy:
        copying = find_main_loop(instructions, lambda instruction: instruction.name == expected.copy)
        copies = sum(instruction.name == expected.copy for instruction in copying) * expected.copied_blocks
        producer = Fraction(len(copying) * _BLOCK, copies * variant.config.cta_n)
    num = Counter(map(class_of, loop))
    return BlockCounts(tuple(share * num[name] for name in CLASSES), producer)


def describe_kernel(variant: Variant, target: str) -> dict[str, str | int | float]:
    """Compile a kernel for `target`, such as "sm_90a", and return its row of a table."""
    family = family_of(variant.config)
    compiled = compile_kernel(family, variant, target)
    result = block_counts(variant, disassemble(compiled.cubin))
    team_warps = team_warps_of(variant) if isinstance(family, StreamingFamily) else 1  # where the CTA works as one
    values = (
        *_kernel_values(variant), family.num_threads(variant), compiled.registers,
        compiled.spill_store_bytes + compiled.spill_load_bytes, compiled.static_smem_bytes,
        family.smem_bytes(variant), _min_ctas(variant), team_warps, _rasters(variant.config),
        *map(_number, result.counts), _number(result.total), _number(result.producer),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _kernel_values(variant: Variant) -> tuple[str | int, ...]:
    """Return the kernel and its mode: the first columns of its row."""
    config = variant.config
    return (
        config.family, config.cta_m, config.cta_n, config.cta_k, config.cluster_m, config.cluster_n, config.split_k,
        config.num_warps, config.num_stages, config.schedule.name.lower(), variant.mode.name.lower(),
        variant.group_size,
    )  # fmt: skip


def _min_ctas(variant: Variant) -> int:
    macros = family_of(variant.config).macros(variant)
    return macros["MIN_CTAS"] if "MIN_CTAS" in macros else macros["CTAS_PER_SM"]


def _without_raster(config: KernelConfig) -> KernelConfig:
    return config._replace(raster_order=RasterOrder.ALONG_M, raster_swizzle=1)


def _rasters(config: KernelConfig) -> str:
    """All rasters of a kernel: letter of the dimension, and swizzle."""
    same = [known for known in family_of(config).configs() if _without_raster(known) == _without_raster(config)]
    return " ".join(f"{known.raster_order.name[-1]}{known.raster_swizzle}" for known in same)


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else round(float(value), _DIGITS)


def _all_families() -> tuple[Family, ...]:
    return (*families().values(), *fp8_families().values(), *grouped_families().values())


def _families_of(target: str, tokens: DType) -> list[Family]:
    """Return the families of a table."""
    known = fp8_families().values() if tokens is DType.FP8 else (*families().values(), *grouped_families().values())
    return [family for family in known if target in family.targets.values()]


def _compiled_for(family: Family, tokens: DType) -> DType:
    """Return the activation that kernels of a table are compiled for; those of e4m3 tokens have fp16 outputs."""
    return DType.FP16 if family.name in fp8_families() else tokens


def table_targets() -> tuple[str, ...]:
    """Return the targets that kernels are compiled for, newest first."""
    known = {target: capability for family in _all_families() for capability, target in family.targets.items()}
    return tuple(sorted(known, key=known.__getitem__, reverse=True))


def table_variants(
    target: str, activation: DType | str, modes: Sequence[tuple[WeightMode, int]] = MODES
) -> Iterator[Variant]:
    """Yield each kernel that is compiled for `target` once in each mode: the raster is an argument of a launch.

    Kernels that no GPU runs in a mode are left out.
    """
    if target not in table_targets():
        raise InvalidOptionError(f"target must be one of {', '.join(table_targets())}, got {shown(target)}")
    tokens = parse_dtype(activation)
    for family in _families_of(target, tokens):
        capability = next(key for key, value in family.targets.items() if value == target)
        distinct: dict[KernelConfig, KernelConfig] = {}
        for config in family.configs():
            distinct.setdefault(_without_raster(config), config)
        for config in distinct.values():
            for mode, group_size in modes:
                variant = make_variant(config, _compiled_for(family, tokens), mode, group_size or None)
                if family.refusal(variant, None, _PLENTY._replace(compute_capability=capability)) is None:
                    yield variant


def write_kernel_tables(
    folder: Path, wanted: Sequence[tuple[str, DType]], *, jobs: int = 1, command: str = "", keep: bool = False
) -> Iterator[tuple[Path, int]]:
    """Write `<target>-<activation>.csv` for each, and `meta.yaml`, which says by which `command`; yield file and rows.

    `keep`: rows that a table already has stay, but one in 64 is compiled again, and must be the same.
    """
    if jobs < 1:
        raise InvalidOptionError(f"jobs must be >= 1, got {jobs}")
    variants = {(target, activation): list(table_variants(target, activation)) for target, activation in wanted}
    folder.mkdir(parents=True, exist_ok=True)
    for (target, activation), of_table in variants.items():
        name = f"{target}-{activation}"
        file = folder / f"{name}.csv"
        rows = _described(of_table, target, jobs, _read_rows(file) if keep else {})
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        _write_meta(folder / "meta.yaml", name, target, activation, len(rows), command)
        yield file, len(rows)


def _read_rows(file: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the rows of a table by kernel and mode."""
    if not file.is_file():
        return {}
    with file.open(encoding="utf-8", newline="") as stream:
        return {tuple(row[name] for name in _KEY): row for row in csv.DictReader(stream)}


def _described(
    variants: Sequence[Variant], target: str, jobs: int, known: Mapping[tuple[str, ...], Mapping[str, str]]
) -> list[Mapping[str, str | int | float]]:
    """Return the rows of kernels: those that are known, and the others compiled."""
    keys = [tuple(map(str, _kernel_values(variant))) for variant in variants]
    kept = [index for index, key in enumerate(keys) if key in known]
    checked = set(kept[::_CHECKED_EVERY])
    wanted = [index for index, key in enumerate(keys) if key not in known or index in checked]
    result = dict(zip(wanted, _describe_all([variants[index] for index in wanted], target, jobs), strict=True))
    for index in checked:
        if {name: str(value) for name, value in result[index].items()} != dict(known[keys[index]]):
            raise GemmEvalError(f"the row of {variants[index]} is another now: write the table without --keep")
    return [result[index] if index in result else known[key] for index, key in enumerate(keys)]


def _describe_all(variants: Sequence[Variant], target: str, jobs: int) -> list[dict[str, str | int | float]]:
    if jobs == 1:
        return [describe_kernel(variant, target) for variant in variants]
    # not threads: NVRTC now and then fails to load its own library when two start at once
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(describe_kernel, variants, [target] * len(variants)))


def _write_meta(file: Path, name: str, target: str, tokens: DType, num_rows: int, command: str) -> None:
    """Add what made a table to what is known of the others."""
    tables: dict[str, Mapping[str, object]] = {}
    if file.is_file():
        tables = (yaml.safe_load(file.read_text("utf-8")) or {}).get("tables", {})
    tables[name] = {
        "num_rows": num_rows, "nvrtc": compiler_version(), "nvdisasm": nvdisasm_version(),
        "cuda_sources_sha256": sources_digest(target, tokens),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "command": command,
    }  # fmt: skip
    write_text(file, yaml.safe_dump({"tables": dict(sorted(tables.items()))}, sort_keys=False, width=120))


def sources_digest(target: str, tokens: DType = DType.FP16) -> str:
    """SHA-256 over the names and contents of the CUDA sources that are compiled for `target` and such tokens."""
    of_target = _families_of(target, tokens)
    names = {COMMON, *(name for family in of_target for name in (*family.headers, family.source))}
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\n".encode() + (SOURCES / name).read_bytes())
    return digest.hexdigest()


def main(words: Sequence[str] | None = None) -> None:
    """Write the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables, such as arch/kernels/w4a16")
    parser.add_argument("--target", action="append", help="what to compile for; may be repeated (default: all)")
    parser.add_argument(
        "--activation", action="append", help="fp16, bf16 or fp8 (sm_90a); may be repeated (default: 16 bits)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="kernels to compile at once")
    parser.add_argument(
        "--keep", action="store_true", help="leave rows whose kernels' code an edit did not change; a sample is checked"
    )
    given = parser.parse_args(words)
    targets, activations = given.target or table_targets(), given.activation or ("fp16", "bf16")
    wanted = [(target, parse_dtype(activation)) for target in targets for activation in activations]
    options = "".join(f" --{name} {word}" for name in ("target", "activation") for word in getattr(given, name) or ())
    command = f"python -m tools.kernel_table{options} --out {given.out.as_posix()}"
    for file, num_rows in write_kernel_tables(given.out, wanted, jobs=given.jobs, command=command, keep=given.keep):
        print(f"{file}: {num_rows} kernels")


if __name__ == "__main__":
    main()
