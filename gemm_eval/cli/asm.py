"""The command `asm`: what the machine code or the PTX of a kernel says about its speed, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemm_eval.cli.completion import complete_gpus
from gemm_eval.cli.options import JsonOption

__all__ = ["asm"]


def asm(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="PTX, a cubin, or SASS as nvdisasm, cuobjdump or Triton writes it.", show_default=False
        ),
    ],
    arch: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="GPU preset or YAML file, for occupancy.", autocompletion=complete_gpus),
    ] = ("h200-sxm"),
    kernel: Annotated[
        str | None, typer.Option(help="Which kernel, where the file has several.", show_default=False)
    ] = None,
    smem_bytes: Annotated[
        int,
        typer.Option(min=0, help="Dynamic shared memory of a CTA: a launch says it, the file does not."),
    ] = 0,
    json: JsonOption = False,
) -> None:
    """Print the score card of a compiled kernel: what it takes of an SM, and what its main loop issues.

    Counts are instructions of one warp, of one iteration of the main loop: the innermost loop with the most tensor-core
    instructions. A cubin says most. PTX says threads and no registers, which are yet to be chosen; SASS says no
    threads, and registers only as nvdisasm writes it for some GPUs. Without both there is no occupancy. Reading a cubin
    needs nvdisasm: pip install 'gemm_eval[asm]', or triton.

    Examples:

    gemm-eval asm kernel.cubin --arch h200-sxm
    """
    from gemm_eval.arch import GpuSpec, load_arch
    from gemm_eval.autotune.asm import cycles_of_loop, occupancy_of_card, score_file
    from gemm_eval.cli.render_asm import document_of, print_card

    spec = load_arch(arch, GpuSpec)
    card = score_file(file, kernel=kernel)
    occupancy = occupancy_of_card(card, spec, smem_bytes=smem_bytes + (card.static_smem_bytes or 0))
    cycles = cycles_of_loop(card.loop, spec)
    if json:
        from gemm_eval.cli.output import print_json

        print_json(document_of(card, spec, occupancy, cycles))
    else:
        print_card(card, spec, occupancy, cycles)
