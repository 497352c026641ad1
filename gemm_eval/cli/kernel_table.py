"""The command `kernel-table`: writes what our W4A16 kernels take and issue, as the cost model reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["kernel_table"]

_ACTIVATIONS = ("fp16", "bf16")


def kernel_table(
    out: Annotated[Path, typer.Option(help="Folder for the tables, such as arch/kernels/w4a16.")],
    target: Annotated[
        list[str] | None, typer.Option(help="What to compile for, such as sm_90a; may be repeated. Default: all.")
    ] = None,
    activation: Annotated[
        list[str] | None, typer.Option(help="Type of A and C: fp16 or bf16; may be repeated. Default: both.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Kernels to compile at once.")] = 1,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave rows that are there: an edit did not change those kernels' code. A sample is checked."
        ),
    ] = False,
) -> None:
    """Compile all W4A16 kernels in all modes, and write what they take and what their main loops issue.

    One CSV file for each target and activation. Needs NVRTC and nvdisasm, but no GPU; a table takes some 15 minutes
    where its kernels are not in the cache.

    Examples:

    gemm-eval kernel-table --out tables --target sm_90a --jobs 8
    """
    from gemm_eval.cli.output import print_line
    from gemm_eval.kernels import parse_activation, table_targets, write_kernel_tables

    wanted = [(to, parse_activation(of)) for to in target or table_targets() for of in activation or _ACTIVATIONS]
    options = [*(f" --target {name}" for name in target or ()), *(f" --activation {name}" for name in activation or ())]
    command = f"gemm-eval kernel-table{''.join(options)} --out {out.as_posix()}"
    for file, num_rows in write_kernel_tables(out, wanted, jobs=jobs, command=command, keep=keep):
        print_line(f"{file}: {num_rows} kernels")
