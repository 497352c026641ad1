"""The commands on architectures: `arch list`, `arch show` and `arch check`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemm_eval.cli._options import EXIT_CODES, JsonOption

__all__ = ["app"]

EXIT_CHECK_FAILED = 1

app = typer.Typer(no_args_is_help=True, help="List, show and check architectures.", epilog=EXIT_CODES)


@app.command("list", epilog=EXIT_CODES)
def list_(json: JsonOption = False) -> None:
    """List the presets: cores, peak for the default type in TFLOP/s, DRAM in GB/s (1e9), SRAM of all cores in MiB."""
    from gemm_eval.arch import list_archs, load_arch

    archs = [load_arch(name) for name in list_archs()]
    if json:
        from gemm_eval.cli._output import print_json

        documents = [
            {
                "name": arch.name,
                "title": arch.title,
                "num_cores": arch.num_cores,
                "default_dtype": str(arch.default_dtype),
                "peak_tflop_per_s": arch.peak_tflop_per_s(),
                "dram_gb_per_s": arch.dram_gb_per_s,
                "sram_total_bytes": arch.num_cores * arch.sram_bytes,
                "is_coarse": arch.is_coarse,
            }
            for arch in archs
        ]
        print_json({"archs": documents})
    else:
        from gemm_eval.cli._render_arch import print_arch_list

        print_arch_list(archs)


@app.command(no_args_is_help=True, epilog=EXIT_CODES)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="Preset name or YAML file.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Show an architecture: every number with its unit and where it comes from, and the peaks that follow."""
    from gemm_eval.arch import load_arch

    arch = load_arch(name)
    if json:
        from gemm_eval.cli._output import print_json
        from gemm_eval.cli._render_arch import unit_of

        derived = {
            "peak_tflop_per_s": {str(dtype): arch.peak_tflop_per_s(dtype) for dtype in arch.cube_steps_per_cycle},
            "sram_total_bytes": arch.num_cores * arch.sram_bytes,
            "sram_usable_bytes": arch.sram_usable_bytes,
        }
        units = {field: unit_of(field) for field in type(arch).model_fields if unit_of(field)}
        print_json({"arch": arch.model_dump(mode="json"), "units": units, "derived": derived})
    else:
        from gemm_eval.cli._render_arch import print_arch

        print_arch(arch)


@app.command(no_args_is_help=True, epilog=EXIT_CODES)
def check(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME|FILE...", help="Preset names or YAML files.", show_default=False)
    ],
    json: JsonOption = False,
) -> None:
    """Check that specs are valid and reproduce their published figures within 1%; exit with 1 if one does not.

    A number without kind and source is noted, which fails nothing.
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
        from gemm_eval.cli._output import print_json

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
        from gemm_eval.cli._render_arch import print_findings

        print_findings(checked)
    if not is_sound:
        raise typer.Exit(EXIT_CHECK_FAILED)
