"""The commands on architectures: `arch list`, `arch show` and `arch check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.options import JsonOption, argument, command, complete_archs, give, group

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec


EXIT_CHECK_FAILED = 1

app = group("List, show and check architectures.")


@command(app, "list", needs_words=False)
def list_(json: JsonOption = False) -> None:
    """List the presets of each kind: cores or SMs, peak for the default type, DRAM in GB/s (1e9), SRAM or L2 in MiB.

    Examples:

    gemm-eval arch list
    """
    from gemm_eval.arch import list_archs, load_arch
    from gemm_eval.cli.render_arch import print_arch_list

    archs = [load_arch(name) for name in list_archs()]
    give(json, lambda: {"archs": list(map(_summary, archs))}, lambda: print_arch_list(archs))


@command(app)
def show(
    name: Annotated[str, argument("Preset name or YAML file.", "NAME|FILE", complete=complete_archs)],
    json: JsonOption = False,
) -> None:
    """Show an architecture: every number with its unit and source, and the peaks that follow.

    Examples:

    gemm-eval arch show h200-sxm

    gemm-eval arch show my_chip.yaml --json
    """
    from gemm_eval.arch import load_arch
    from gemm_eval.cli.render_arch import print_arch, unit_of

    arch = load_arch(name)
    units = {field: unit_of(field) for field in type(arch).model_fields if unit_of(field)}
    give(
        json,
        lambda: {"arch": arch.model_dump(mode="json"), "units": units, "derived": _derived(arch)},
        lambda: print_arch(arch),
    )


@command(app)
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
    from gemm_eval.errors import ArchValidationError

    checked: list[tuple[str, list[CheckFinding]]] = []
    for name in names:
        try:
            checked.append((name, check_arch(load_arch(name))))
        except ArchValidationError as error:  # an invalid spec is an answer here; a missing file is not
            checked.append((name, [CheckFinding("spec", False, str(error))]))
    oks = [all(finding.ok for finding in findings) for _, findings in checked]
    documents = [
        {"arch": name, "ok": ok, "findings": [finding._asdict() | {"is_note": finding.is_note} for finding in findings]}
        for (name, findings), ok in zip(checked, oks, strict=True)
    ]
    give(json, lambda: {"ok": all(oks), "archs": documents}, lambda: print_findings(checked))
    if not all(oks):
        raise typer.Exit(EXIT_CHECK_FAILED)


def _summary(arch: ArchSpec) -> dict[str, Any]:
    names = ("name", "type", "title", "default_dtype", "peak_tflop_per_s", "dram_gb_per_s")
    summary = {name: getattr(arch, name) for name in names} | {
        "default_dtype": str(arch.default_dtype),
        "peak_tflop_per_s": arch.peak_tflop_per_s(),
    }
    if arch.type == "gpu":
        return summary | {"sm_arch": arch.sm_arch, "num_sms": arch.num_sms, "l2_bytes": arch.l2_bytes}
    return summary | {
        "num_cores": arch.num_cores,
        "sram_total_bytes": arch.num_cores * arch.sram_bytes,
        "is_coarse": arch.is_coarse,
    }


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
