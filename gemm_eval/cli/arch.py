"""The commands on archs: `arch list`, `show` and `check`; and `measure`, GEMMs on this machine's GPU or CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import gemm_eval
from gemm_eval.cli.options import JsonOption, argument, command, complete_archs, give, group, option
from gemm_eval.cli.values import Group

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec


arch = group("List, show and check architectures.")


@command(arch, "list", needs_words=False)
def list_(json: JsonOption = False) -> None:
    """List the presets of each kind: cores or SMs, peak for the default type, DRAM in GB/s (1e9), SRAM or L2 in MiB.

    Examples:

    gemm-eval arch list
    """
    from gemm_eval.cli.render_arch import print_arch_list

    archs = [gemm_eval.load_arch(name) for name in gemm_eval.list_archs()]
    give(json, lambda: {"archs": list(map(_summary, archs))}, lambda: print_arch_list(archs))


@command(arch)
def show(
    name: Annotated[str, argument("Preset name or YAML file.", "NAME|FILE", complete=complete_archs)],
    json: JsonOption = False,
) -> None:
    """Show an architecture: every number with its unit and source, and the peaks that follow.

    Examples:

    gemm-eval arch show h200-sxm

    gemm-eval arch show my_chip.yaml --json
    """
    from gemm_eval.cli.render_arch import print_arch, unit_of

    arch = gemm_eval.load_arch(name)
    units = {field: unit_of(field) for field in type(arch).model_fields if unit_of(field)}
    give(
        json,
        lambda: {"arch": arch.model_dump(mode="json"), "units": units, "derived": _derived(arch)},
        lambda: print_arch(arch),
    )


@command(arch)
def check(
    names: Annotated[list[str], argument("Preset names or YAML files.", "NAME|FILE...", complete=complete_archs)],
    json: JsonOption = False,
) -> None:
    """Check that specs are valid and reproduce their published figures within 1%; exit with 1 if one does not.

    A number without kind and source is noted, which fails nothing.

    Examples:

    gemm-eval arch check my_chip.yaml
    """
    from gemm_eval.arch import CheckFinding, check_arch, load_arch
    from gemm_eval.cli.render_arch import print_findings

    checked: list[tuple[str, list[CheckFinding]]] = []
    for name in names:
        try:
            checked.append((name, check_arch(load_arch(name))))
        except gemm_eval.ArchValidationError as error:  # an invalid spec is an answer here; a missing file is not
            checked.append((name, [CheckFinding("spec", False, str(error))]))
    oks = [all(finding.ok for finding in findings) for _, findings in checked]
    documents = [
        {"arch": name, "ok": ok, "findings": [finding._asdict() | {"is_note": finding.is_note} for finding in findings]}
        for (name, findings), ok in zip(checked, oks, strict=True)
    ]
    give(json, lambda: {"ok": all(oks), "archs": documents}, lambda: print_findings(checked))
    if not all(oks):
        raise typer.Exit(1)


def _summary(arch: ArchSpec) -> dict[str, Any]:
    summary = {
        "name": arch.name, "type": arch.type, "title": arch.title, "default_dtype": str(arch.default_dtype),
        "peak_tflop_per_s": arch.peak_tflop_per_s(), "dram_gb_per_s": arch.dram_gb_per_s,
    }  # fmt: skip
    if arch.type == "gpu":
        return summary | {"sm_arch": arch.sm_arch, "num_sms": arch.num_sms, "l2_bytes": arch.l2_bytes}
    sram_bytes = arch.num_cores * arch.sram_bytes
    return summary | {"num_cores": arch.num_cores, "sram_total_bytes": sram_bytes, "is_coarse": arch.is_coarse}


def _derived(arch: ArchSpec) -> dict[str, Any]:
    if arch.type == "multicore":
        return {
            "peak_tflop_per_s": {str(dtype): arch.peak_tflop_per_s(dtype) for dtype in arch.cube_steps_per_cycle},
            "sram_total_bytes": arch.num_cores * arch.sram_bytes,
            "sram_usable_bytes": arch.sram_usable_bytes,
        }
    dtypes = list(arch.tensor_flop_per_cycle)
    return {
        "peak_tflop_per_s": {str(dtype): arch.peak_tflop_per_s(dtype) for dtype in dtypes},
        "burst_tflop_per_s": {str(dtype): arch.tensor_tflop_per_s(dtype, "burst") for dtype in dtypes},
        "sustained_tflop_per_s": {str(dtype): arch.tensor_tflop_per_s(dtype, "sustained") for dtype in dtypes},
        "dram_achievable_gb_per_s": arch.dram_achievable_gb_per_s,
        "l2_gb_per_s": arch.l2_gb_per_s,
    }


class _Measure(Group):
    """Options without the name of a command are those of `measure gpu`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words."""
        is_of_gpu = bool(args) and args[0].startswith("-") and args[0] not in ("--help", "-h")
        return super().parse_args(ctx, ["gpu", *args] if is_of_gpu else args)


measure = group(
    "Time GEMMs on this machine: on its NVIDIA GPU, or on its CPU through numpy.\n\n"
    "gemm-eval measure --out DIR is measure gpu --out DIR.",
    cls=_Measure,
)


@dataclass(frozen=True)
class GpuOptions:
    """Options of a measurement on a GPU: its GEMMs, the way of timing, the file."""

    out: Annotated[Path, option("Folder for the data set, its meta file and the work file.")]
    kernel: Annotated[str, option(
        "Library to time: cublas (fp16, bf16), torch (fp16, bf16, fp32, tf32, fp8, fp8-full, which sums in fp32, or "
        "int8: what PyTorch runs), cublaslt (fp8, int8), grouped (bf16; PyTorch's grouped GEMM) or w4a16 and w4a8, our "
        "own for 4-bit weights (fp16, bf16: of C). Default: cublas, with --draw torch.", show_default=False
    )] = ""  # fmt: skip
    dtype: Annotated[str, option("fp16, bf16, fp32, tf32, fp8, fp8-full or int8.")] = "fp16"
    draw: Annotated[int | None, option(
        "Time so many random GEMMs of torch instead of a set, round and odd, in three layouts and in batches, with all "
        "operands out of L2."
    )] = None  # fmt: skip
    seed: Annotated[int, option("Seed of --draw.")] = 0
    shape_sets: Annotated[list[str] | None, option(
        "model-zoo (default), model-zoo-few, batched, unaligned, experts, smoke; for grouped: grouped (default), "
        "grouped-repeat, grouped-smoke; for w4a16: w4a16 (default), w4a16-spread, w4a16-wide, w4a16-blind, "
        "w4a16-blind-modes, w4a16-blind-2, w4a16-full, w4a16-full-2, w4a16-full-3, w4a16-few-waves, w4a16-check, "
        "w4a16-modes, w4a16-fp4, w4a16-wide-modes, w4a16-smoke; repeat for several.", "--set"
    )] = None  # fmt: skip
    top: Annotated[
        int | None, option("w4a16: number of the most promising configs of each GEMM. Default: every legal config.")
    ] = None
    num_random: Annotated[int, option("w4a16, with --top: number of other configs, drawn at random.", "--random")] = 0
    cublas: Annotated[bool, option("w4a16: also time cuBLAS on the same GEMMs.", "--dense/--no-dense")] = True
    quick: Annotated[
        bool, option("Three replays of a millisecond each, for campaigns over many kernels.", "--quick")
    ] = False
    l2: Annotated[str, option(
        "cold: weights come from memory; warm: from L2 where they fit; cold-all: like --draw.", show_default=False
    )] = ""  # fmt: skip
    clock: Annotated[str, option("burst: at boost clock; sustained: under constant load.")] = "burst"
    budget_seconds: Annotated[
        float | None, option("Stop before so many seconds and write the results; a rerun continues.")
    ] = None
    gpu_name: Annotated[str | None, option("Name for the files. Default: from the driver's name.")] = None
    pool_gib: Annotated[float, option("Size of the pool of random weights, in GiB.")] = 4.0
    trace: Annotated[bool, option("Record kernel names; those of w4a16 are known.", "--trace/--no-trace")] = True
    show: Annotated[bool, option("Print the GEMMs to measure, and the approximate time.", "--list")] = False


@command(measure, "gpu")
def measure_gpu(ctx: typer.Context, asked: GpuOptions) -> None:
    """Time GEMMs on this machine's NVIDIA GPU and write a data set: latency in us of one GEMM.

    A rerun measures what the work file in the folder does not hold yet.

    With --draw these are GEMMs unlike those of any model: sizes from 1 to 18,000, log-uniform.

    With --kernel grouped these are grouped GEMMs, the experts of mixtures: groups of different rows in one call.

    With --kernel w4a16 each GEMM is timed with every legal config of our kernels, or with --top and --random some; a
    second data set has cuBLAS on the same GEMMs, and a table compares them.

    Examples:

    gemm-eval measure gpu --kernel cublas --dtype fp16 --quick --out timings

    gemm-eval measure gpu --draw 500 --seed 1 --dtype bf16 --out timings

    gemm-eval measure gpu --kernel w4a16 --top 8 --out timings
    """
    from gemm_eval.cli.measure_run import measure_this_gpu

    measure_this_gpu(ctx, asked)


@command(measure, "host", needs_words=False)
def measure_host(
    out: Annotated[Path | None, option(
        "Folder for the spec and the tables. Default: host in this user's data folder.", metavar="DIR",
        show_default=False
    )] = None,
    threads: Annotated[
        int | None, option("Number of threads, one a core. Default: all cores.", show_default=False)
    ] = None,
    budget_s: Annotated[float, option("Approximate total time in seconds.")] = 90.0,
    dtype: Annotated[str, option("fp32, or fp64, whose timings are written without a spec.")] = "fp32",
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Make this machine's CPU an arch, from its cores, caches, vector units, bandwidths and timings of numpy's GEMMs.

    Writes a spec for --arch FILE, whose few rates that only timings tell are fitted, and how far it is from the timings
    on weights (N, K) that a fit has not seen; beside it the timings, for validate multicore, and the bandwidths of the
    memories. Keep the machine quiet meanwhile. Needs the extra host.

    Examples:

    gemm-eval measure host

    gemm-eval measure host --dtype fp32 --budget-s 30 --out host
    """
    from gemm_eval.cli.measure_run import measure_this_host

    measure_this_host(out, threads, budget_s, dtype, as_json=json)
