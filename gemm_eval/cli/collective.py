"""The command `collective`: what messages between the GPUs of a node take, by size and number of ranks."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from gemm_eval.cli.completion import complete_types
from gemm_eval.cli.options import ArchOption, InterconnectOption, JsonOption
from gemm_eval.cli.ranges import SEVERAL, check_count, parse_values
from gemm_eval.cli.tables import OutOption, check_out, flat, write_records

__all__ = ["collective", "sizes_of"]

_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    word: base**power
    for power, letter in enumerate("kmg", 1)
    for word, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def collective(
    arch: ArchOption,
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="all_reduce, all_gather, reduce_scatter, all_to_all or send.")
    ],
    sizes: Annotated[
        str,
        typer.Argument(
            metavar="SIZE,...",
            help="Bytes of one device: what it adds, contributes or sends in all: 1MiB. Several: 64KiB,1MiB or a "
            "range, 1KiB..64MiB (doubled) or 1MiB..8MiB:1MiB (in steps).",
        ),
    ],
    ranks: Annotated[str, typer.Option(help=f"GPUs that take part. {SEVERAL}", metavar="N,...")] = "8",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of the elements: narrow ones are not added up by a switch.",
            metavar="TYPE",
            autocompletion=complete_types,
        ),
    ] = None,
    library: Annotated[
        str | None,
        typer.Option(
            help="trtllm: TensorRT-LLM's kernels for all-reduces over NVLink, else NCCL; or nccl. Default: trtllm.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    interconnect: InterconnectOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Say what messages between the GPUs of one node take: algorithm, latency and bandwidth.

    Bus GB/s: bytes that a GPU must send, over the time. KiB, MiB, GiB are powers of 1024, KB, MB, GB of 1000.

    Examples:

    gemm-eval collective --arch h200-sxm all_reduce 1MiB --ranks 8

    gemm-eval collective --arch b200 all_gather 4KiB..256MiB --ranks 2,4,8 --library nccl
    """
    from gemm_eval.evaluate import GEMMEvaluator

    check_out(out)
    evaluator = GEMMEvaluator(arch)
    nums, messages = parse_values("--ranks", ranks), sizes_of(sizes)
    check_count(len(nums) * len(messages), "SIZE and --ranks")
    results = [
        evaluator.evaluate_collective(what, size, num, dtype=dtype, library=library, interconnect=interconnect)
        for num in nums
        for size in messages
    ]
    if out is not None:
        write_records(out, [flat(result.to_dict(), "problem", "breakdown") for result in results], json=json)
        return
    if json:
        from gemm_eval.cli.output import print_json

        plain: list[Any] = [result.to_dict() for result in results]
        print_json(plain[0] if len(plain) == 1 else plain)
        return
    from gemm_eval.cli.render_collective import print_collectives

    print_collectives(results)


def sizes_of(text: str) -> list[int]:
    """Return the sizes that a word spells, in bytes: numbers, units and ranges as `parse_values` reads them.

    Raises:
        InvalidOptionError: it spells none.
    """
    return parse_values("sizes", text, read=_size, form="bytes such as 4096, 64KiB,1MiB or 1KiB..1MiB")


def _size(word: str) -> int | None:
    match = _SIZE.fullmatch(word.strip().lower())
    if match is None or match[2] not in _UNITS:
        return None
    return round(float(match[1]) * _UNITS[match[2]]) or None
