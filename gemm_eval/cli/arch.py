"""The commands on architectures: `arch list`, `arch show` and `arch check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.options import JsonOption, argument, command, complete_archs, group

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

    archs = [load_arch(name) for name in list_archs()]
    if json:
        from gemm_eval.cli.output import print_json

        print_json({"archs": [_summary(arch) for arch in archs]})
    else:
        from gemm_eval.cli.render_arch import print_arch_list

        print_arch_list(archs)


@command(app)
def show(
    name: Annotated[
        str,
        argument("Preset name or YAML file.", "NAME|FILE", complete=complete_archs),
    ],
    json: JsonOption = False,
) -> None:
    """Show an architecture: every number with its unit and where it comes from, and the peaks that follow.

    Examples:

    gemm-eval arch show h200-sxm

    gemm-eval arch show my_chip.yaml --json
    """
    from gemm_eval.arch import load_arch

    arch = load_arch(name)
    if json:
        from gemm_eval.cli.output import print_json
        from gemm_eval.cli.render_arch import unit_of

        units = {field: unit_of(field) for field in type(arch).model_fields if unit_of(field)}
        print_json({"arch": arch.model_dump(mode="json"), "units": units, "derived": _derived(arch)})
    else:
        from gemm_eval.cli.render_arch import print_arch

        print_arch(arch)


@command(app)
def check(
    names: Annotated[
        list[str],
        argument("Preset names or YAML files.", "NAME|FILE...", complete=complete_archs),
    ],
    json: JsonOption = False,
) -> None:
    """Check that specs are valid and reproduce their published figures within 1%; exit with 1 if one does not.

    A number without kind and source is noted, which fails nothing.

    Examples:

    gemm-eval arch check my_chip.yaml
    """
    from gemm_eval.arch import CheckFinding, check_arch, load_arch
    from gemm_eval.errors import ArchValidationError

    checked: list[tuple[str, list[CheckFinding]]] = []
    for name in names:
        try:
            findings = check_arch(load_arch(name))
        except ArchValidationError as error:  # an invalid spec is an answer here; a missing file is not
            findings = [CheckFinding("spec", False, str(error))]
        checked.append((name, findings))
    is_sound = all(finding.ok for _, findings in checked for finding in findings)
    if json:
        from gemm_eval.cli.output import print_json

        documents = [
            {
                "arch": name,
                "ok": all(finding.ok for finding in findings),
                "findings": [finding._asdict() | {"is_note": finding.is_note} for finding in findings],
            }
            for name, findings in checked
        ]
        print_json({"ok": is_sound, "archs": documents})
    else:
        from gemm_eval.cli.render_arch import print_findings

        print_findings(checked)
    if not is_sound:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _summary(arch: ArchSpec) -> dict[str, Any]:
    from gemm_eval.arch import GpuSpec

    summary = {
        "name": arch.name,
        "type": arch.type,
        "title": arch.title,
        "default_dtype": str(arch.default_dtype),
        "peak_tflop_per_s": arch.peak_tflop_per_s(),
        "dram_gb_per_s": arch.dram_gb_per_s,
    }
    if isinstance(arch, GpuSpec):
        return summary | {"sm_arch": arch.sm_arch, "num_sms": arch.num_sms, "l2_bytes": arch.l2_bytes}
    return summary | {
        "num_cores": arch.num_cores,
        "sram_total_bytes": arch.num_cores * arch.sram_bytes,
        "is_coarse": arch.is_coarse,
    }


def _derived(arch: ArchSpec) -> dict[str, Any]:
    from gemm_eval.arch import GpuSpec

    dtypes = arch.tensor_flop_per_cycle if isinstance(arch, GpuSpec) else arch.cube_steps_per_cycle
    peaks = {"peak_tflop_per_s": {str(dtype): arch.peak_tflop_per_s(dtype) for dtype in dtypes}}
    if isinstance(arch, GpuSpec):
        return peaks | {
            "burst_tflop_per_s": {str(dtype): arch.tensor_tflop_per_s(dtype, "burst") for dtype in dtypes},
            "sustained_tflop_per_s": {str(dtype): arch.tensor_tflop_per_s(dtype, "sustained") for dtype in dtypes},
            "dram_achievable_gb_per_s": arch.dram_achievable_gb_per_s,
            "l2_gb_per_s": arch.l2_gb_per_s,
        }
    return peaks | {
        "sram_total_bytes": arch.num_cores * arch.sram_bytes,
        "sram_usable_bytes": arch.sram_usable_bytes,
    }
