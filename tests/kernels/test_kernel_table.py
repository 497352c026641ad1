"""The tables of compiled kernels: what a block of weights costs, and that the committed tables are of these kernels."""

import csv
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_eval.arch.paths import data_root
from gemm_eval.device import CLASSES, compiler_version, disassemble, find_main_loop, parse_sass
from gemm_eval.device.sass import Instruction, class_of, nvdisasm_version
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.kernels import Variant, WeightMode
from gemm_eval.kernels.families import families, family_of
from gemm_eval.kernels.families.base import ceil_div
from gemm_eval.kernels.families.gemv import team_warps_of
from gemm_eval.kernels.registry import compile_kernel
from tools import kernel_table
from tools.kernel_table import (
    COLUMNS,
    _describe_all,
    block_counts,
    describe_kernel,
    sources_digest,
    table_targets,
    table_variants,
    write_kernel_tables,
)

FOLDER = data_root() / "kernels" / "w4a16"
TABLES = sorted(FOLDER.glob("*.csv"))
NUM_FRESH = 6
# kernels of a table that spill, and bytes that one of them writes or reads: with NVRTC 13.0
MOST_SPILLED = {"sm_80": 3, "sm_89": 3, "sm_90a": 4, "sm_100": 1, "sm_120": 3}
MOST_SPILL_BYTES = 36
MOST_GROUPED_SPILLED, MOST_GROUPED_SPILL_BYTES = 120, 136
SPILL_ON_BLACKWELL = {("8", "32", "16", "32"), ("1", "128", "4", "16")}
COLUMN = ((WeightMode.COLUMN, 0),)
GROUP = ((WeightMode.GROUP, 128),)
MXFP4, NVFP4 = ((WeightMode.MXFP4, 32),), ((WeightMode.NVFP4, 16),)


@pytest.fixture
def tools() -> None:
    try:
        compiler_version()
        nvdisasm_version()
    except GemmEvalError as error:
        pytest.skip(str(error))


MULTISTAGE = ("w4a16_sm80", "w4a16_sm80_grouped")
EVERYWHERE = {"w4a16_gemv", "w4a16_gemv_mma", "w4a16_gemv_mma_grouped", *MULTISTAGE}
WGMMA = ("w4a16_sm90", "w4a16_sm90_cluster", "w4a16_sm90_grouped")


def read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def of_file(file: Path) -> tuple[str, DType]:
    target, _, activation = file.stem.partition("-")
    return target, DType(activation)


def identity(variant: Variant) -> dict[str, str]:
    config, family = variant.config, family_of(variant.config)
    return {
        **{name: str(getattr(config, name)) for name in COLUMNS[:9]}, "schedule": config.schedule.name.lower(),
        "mode": variant.mode.name.lower(), "group_size": str(variant.group_size),
        "num_threads": str(family.num_threads(variant)), "smem_bytes": str(family.smem_bytes(variant)),
    }  # fmt: skip


def num_tensor(variant: Variant) -> Fraction:
    """Tensor core instructions that a block of 64 columns x 64 k and the tile's tokens take, by their sizes."""
    config = variant.config
    if config.family == "w4a16_gemv":
        return Fraction(0)
    if config.family in WGMMA:  # m64nNk16, one instruction in each of four warps
        return Fraction(4 * 4)
    of_block = Fraction(4 * 4 * (config.cta_m // 8))  # m16n8k16
    if config.family in MULTISTAGE:
        return of_block
    columns_of_warp = config.cta_n // team_warps_of(variant)
    offsets = 0 if variant.mode.is_fp4 else 16  # for each warp so many columns more
    return of_block * Fraction(columns_of_warp + offsets, columns_of_warp)


def num_half(variant: Variant) -> int:
    """Operations on pairs that bring 64 x 64 weights from 4 bits to 16, by the warps of a CTA that each do it."""
    config = variant.config
    of_word = 8 if variant.mode is WeightMode.GROUP_ZERO else 4  # a word is 8 weights; with the scale in mode GROUP
    of_params = 0
    if variant.mode is WeightMode.GROUP:  # scales as they are multiplied, and what is added, by 16 columns and group
        of_params = 4 * (4 if variant.activation is DType.BF16 else 3) * (2 if variant.group_size == 32 else 1)
    repeats = 1
    if config.family in MULTISTAGE:
        repeats = config.cta_m // family_of(config).macros(variant)["WARP_M"]
    return (64 * 64 // 8 // 32 * of_word + of_params) * repeats


def num_copies(variant: Variant) -> Fraction:
    """Copies of 16 bytes a lane that bring a block of weights, with its tokens and scales: warp instructions."""
    config = variant.config
    if config.family in WGMMA:  # another warp copies
        return Fraction(0)
    of_modes = {WeightMode.COLUMN: 0, WeightMode.GROUP: 2, WeightMode.GROUP_ZERO: 4}
    scale_bytes = 1 if variant.mode.is_fp4 else of_modes[variant.mode]
    is_sm80 = config.family in MULTISTAGE
    warps = config.num_warps if is_sm80 else team_warps_of(variant)
    step_k = config.cta_k if is_sm80 else 64
    columns = config.cta_n if is_sm80 else config.cta_n // warps  # w4a16_gemv*: a warp copies its own scales
    groups = max(1, step_k // variant.group_size) if variant.group_size else 0
    scales = ceil_div(groups * columns * scale_bytes, 16 * 32 * (warps if is_sm80 else 1))
    tokens = ceil_div(config.cta_m * step_k * 2, 16 * 32 * warps)
    weights = config.cta_n * step_k // 2 // (16 * 32 * warps)
    return Fraction(warps * 64 * 64 * (scales + tokens + weights), config.cta_n * step_k)


def a_kernel_of(family: str, target: str, activation: str, modes: Any, **fields: int) -> Variant:
    return next(
        variant
        for variant in table_variants(target, activation, modes)
        if variant.config.family == family and fields.items() <= variant.config._asdict().items()
    )


def main_loop_of(variant: Variant, target: str) -> Sequence[Instruction]:
    family = family_of(variant.config)
    work = kernel_table.main_loop(variant).work
    instructions = parse_sass(disassemble(compile_kernel(family, variant, target).cubin))
    return find_main_loop(instructions, lambda instruction: instruction.name == work)


# the committed tables


def test_every_target_has_its_tables() -> None:
    assert {file.stem for file in TABLES} == {
        f"{target}-{act}" for target in table_targets() for act in ("fp16", "bf16")
    }


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_a_table_is_of_the_kernels_of_the_registry_and_of_these_sources(file: Path) -> None:
    target, activation = of_file(file)
    rows = read(file)
    expected = [identity(variant) for variant in table_variants(target, activation)]
    meta = yaml.safe_load((FOLDER / "meta.yaml").read_text(encoding="utf-8"))["tables"][file.stem]

    assert list(rows[0]) == list(COLUMNS)
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert {row["family"] for row in rows} == EVERYWHERE | (set(WGMMA) if target == "sm_90a" else set())
    assert (meta["cuda_sources_sha256"], meta["num_rows"]) == (sources_digest(target), len(rows))


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_work_and_copies_are_those_of_the_arithmetic_and_few_kernels_spill(file: Path) -> None:
    """What a kernel is given of registers was chosen on Hopper: other compilers' targets need a few more."""
    target, activation = of_file(file)
    rows = read(file)
    for row, variant in zip(rows, table_variants(target, activation), strict=True):
        assert float(row["tensor"]) == pytest.approx(float(num_tensor(variant)), abs=1e-4), row
        assert float(row["copy"]) == pytest.approx(float(num_copies(variant)), abs=1e-4), row
        assert float(row["total"]) == pytest.approx(sum(float(row[name]) for name in CLASSES), abs=1e-3), row
        if variant.config.family in {*MULTISTAGE, *WGMMA}:
            assert float(row["half"]) >= num_half(variant), row
            assert float(row["load_shared"]) >= 4, row
        assert (float(row["producer"]) > 0) == (variant.config.family in WGMMA)
    spilled = [row for row in rows if row["spill_bytes"] != "0"]
    plain = [row for row in spilled if not row["family"].endswith("_grouped")]
    grouped = [row for row in spilled if row["family"].endswith("_grouped")]  # they keep what a tile's group is
    for found, most, most_bytes in (
        (grouped, MOST_GROUPED_SPILLED, MOST_GROUPED_SPILL_BYTES), (plain, MOST_SPILLED[target], MOST_SPILL_BYTES),
    ):  # fmt: skip
        assert len(found) <= most
        assert all(int(row["spill_bytes"]) <= most_bytes for row in found)
    if target in {"sm_100", "sm_120"}:
        assert {row["family"] for row in plain} <= {"w4a16_gemv", "w4a16_gemv_mma"}
        kinds = {(row["cta_m"], row["cta_n"], row["num_warps"], row["group_size"]) for row in plain}
        assert kinds <= SPILL_ON_BLACKWELL


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("i", [0, 3, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 4, 5))])
def test_fresh_kernels_are_those_of_the_tables(i: int) -> None:
    meta = yaml.safe_load((FOLDER / "meta.yaml").read_text(encoding="utf-8"))["tables"]
    of_other_compilers = {table["nvrtc"] for table in meta.values()} - {compiler_version()}
    if of_other_compilers:
        pytest.skip(f"tables are of NVRTC {of_other_compilers}, this is {compiler_version()}")
    file = TABLES[i % len(TABLES)]
    target, activation = of_file(file)
    rows = read(file)
    at = (2 * i + 1) * len(rows) // (2 * NUM_FRESH) + i  # all families and modes
    while rows[at]["family"] == "w4a16_gemv_mma_grouped":  # counted on earlier sources: notes of meta.yaml
        at += 1
    fresh = describe_kernel(list(table_variants(target, activation))[at], target)
    assert {name: str(value) for name, value in fresh.items()} == rows[at]


# what is counted


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("family", "activation", "modes", "fields"),
    [
        ("w4a16_gemv", "fp16", GROUP, {"cta_m": 2, "cta_n": 64}),
        ("w4a16_gemv_mma", "bf16", COLUMN, {"cta_m": 16, "cta_n": 128, "num_warps": 8}),
        ("w4a16_sm80", "fp16", GROUP, {"cta_m": 128, "cta_n": 128, "num_warps": 8}),
        ("w4a16_sm90", "fp16", COLUMN, {"cta_m": 16, "cta_n": 256}),
        ("w4a16_gemv_mma", "fp16", MXFP4, {"cta_m": 16, "cta_n": 128, "num_warps": 8}),
        ("w4a16_sm80", "bf16", NVFP4, {"cta_m": 128, "cta_n": 128, "num_warps": 8}),
        ("w4a16_sm90", "bf16", MXFP4, {"cta_m": 16, "cta_n": 256}),
    ],
)
@pytest.mark.parametrize("target", ["sm_90a", *(pytest.param(t, marks=pytest.mark.slow) for t in ("sm_100", "sm_120"))])
def test_a_block_takes_what_the_source_says(
    family: str, activation: str, modes: Any, fields: dict[str, int], target: str
) -> None:
    if target not in families()[family].targets.values():
        pytest.skip(f"{family} is not compiled for {target}")
    variant = a_kernel_of(family, target, activation, modes, **fields)
    row = describe_kernel(variant, target)

    assert row["tensor"] == num_tensor(variant)
    if family == "w4a16_gemv":
        # 64 x 64 weights times 2 tokens, sums of tokens by lane, and three more for a token, column of a lane and group
        assert row["single"] == 64 * 64 * 2 / 32 + 2 * 16 + 2 * 2 * 8
        assert row["load_matrix"] == 2 * 2
        assert row["copy"] >= 4  # 16 bytes a lane for each 16 columns
    else:
        loads = {"w4a16_sm80": 4 * 4, "w4a16_gemv_mma": 4, "w4a16_sm90": 4}[family]  # 16 bytes of weights each
        assert row["load_shared"] == loads * (1 if modes is COLUMN else 2)
    if family in {"w4a16_sm80", "w4a16_sm90"}:
        assert row["half"] == num_half(variant)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_89", marks=pytest.mark.slow), "sm_100", "sm_120"])
def test_every_instruction_of_a_main_loop_has_a_class_or_is_known_to_have_none(target: str) -> None:
    """Generations name instructions otherwise: what is not known would be counted, but as of no unit."""
    for family in ("w4a16_gemv", "w4a16_gemv_mma", "w4a16_sm80"):
        variant = a_kernel_of(family, target, "bf16", ((WeightMode.GROUP_ZERO, 64),), cta_n=64)
        others = [one for one in main_loop_of(variant, target) if class_of(one) == "other"]
        assert {one.name for one in others if one.guard != "@!PT"} <= {"NOP", "LDC", "S2R"}


def test_another_loop_than_the_sources_is_refused() -> None:
    sass = """
.L_x_0:
        /*0000*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0010*/               @P0 BRA `(.L_x_0) ;
        /*0020*/                   EXIT ;
"""
    variant = a_kernel_of("w4a16_sm80", "sm_80", "fp16", GROUP, cta_m=16, cta_n=64)
    with pytest.raises(GemmEvalError, match="must have 16 HMMA, this one has 1"):
        block_counts(variant, sass)


# writing tables


def test_nothing_is_compiled_for_other_targets() -> None:
    with pytest.raises(
        InvalidOptionError, match="target must be one of sm_120, sm_100, sm_90a, sm_89, sm_80, got 'sm_75'"
    ):
        list(table_variants("sm_75", "fp16"))
    with pytest.raises(InvalidOptionError, match="jobs must be >= 1, got 0"):
        list(write_kernel_tables(Path("nowhere"), [], jobs=0))


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_two_processes_find_the_same() -> None:
    variants = [a_kernel_of(family, "sm_90a", "fp16", GROUP) for family in ("w4a16_gemv_mma", "w4a16_sm90")]

    assert _describe_all(variants, "sm_90a", jobs=2) == _describe_all(variants, "sm_90a", jobs=1)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(target: str, activation: DType | str, modes: Any = GROUP) -> Iterator[Variant]:
        yield from list(table_variants(target, activation, modes))[:2]

    monkeypatch.setattr(kernel_table, "table_variants", few)
    monkeypatch.setattr(kernel_table, "describe_kernel", lambda variant, target: dict.fromkeys(COLUMNS, 1))
    monkeypatch.setattr(kernel_table, "compiler_version", lambda: "13.0")
    monkeypatch.setattr(kernel_table, "nvdisasm_version", lambda: "13.5")


@pytest.mark.usefixtures("described")
def test_the_command_writes_tables_and_what_made_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new"
    for activation in ("fp16", "bf16"):
        kernel_table.main(["--target", "sm_80", "--activation", activation, "--out", str(out)])
        assert f"sm_80-{activation}.csv: 2 kernels" in capsys.readouterr().out

    meta = yaml.safe_load((out / "meta.yaml").read_text(encoding="utf-8"))["tables"]
    assert set(meta) == {"sm_80-fp16", "sm_80-bf16"}  # the second keeps what is known of the first
    assert meta["sm_80-fp16"]["nvrtc"] == "13.0"
    assert meta["sm_80-fp16"]["command"] == f"python -m tools.kernel_table --target sm_80 --activation fp16 --out {out}"
    assert len(read(out / "sm_80-bf16.csv")) == 2
