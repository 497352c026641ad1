"""The command `collective`: what messages between the GPUs of a node take, by size and number of ranks."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from gemm_eval.cli.options import ArchOption, JsonOption
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

__all__ = ["collective", "sizes_of"]

_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    word: base**power
    for power, letter in enumerate("kmg", 1)
    for word, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_MAX_SIZES = 4096


def collective(
    arch: ArchOption,
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="all_reduce, all_gather, reduce_scatter, all_to_all or send.")
    ],
    sizes: Annotated[
        str,
        typer.Argument(
            metavar="SIZE,...",
            help="Bytes of one device: what it adds, contributes or sends in all: 1MiB; several: 64KiB,1MiB; each "
            "doubling of a range: 1KiB..64MiB.",
        ),
    ],
    ranks: Annotated[str, typer.Option(help="GPUs that take part; several: 2,4,8.", metavar="N,...")] = "8",
    dtype: Annotated[
        str | None, typer.Option(help="Of the elements: narrow ones are not added up by a switch.", metavar="TYPE")
    ] = None,
    library: Annotated[
        str | None,
        typer.Option(
            help="trtllm: TensorRT-LLM's kernels for all-reduces over NVLink, else NCCL; or nccl. Default: trtllm.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say what messages between the GPUs of one node take: algorithm, latency and bandwidth.

    Bus GB/s: bytes that a GPU must send, over the time. KiB, MiB, GiB are powers of 1024, KB, MB, GB of 1000.

    Examples:

    gemm-eval collective --arch h200-sxm all_reduce 1MiB --ranks 8

    gemm-eval collective --arch b200 all_gather 4KiB..256MiB --ranks 2,4,8 --library nccl
    """
    from gemm_eval.evaluate import GEMMEvaluator

    evaluator = GEMMEvaluator(arch)
    results = [
        evaluator.evaluate_collective(what, size, num, dtype=dtype, library=library)
        for num in _numbers(ranks)
        for size in sizes_of(sizes)
    ]
    if json:
        from gemm_eval.cli.output import print_json

        plain: list[Any] = [result.to_dict() for result in results]
        print_json(plain[0] if len(plain) == 1 else plain)
        return
    from gemm_eval.cli.render_collective import print_collectives

    print_collectives(results)


def sizes_of(text: str) -> list[int]:
    """Return the sizes that a list spells, in bytes; a range is doubled from its lower end on.

    Raises:
        InvalidOptionError: it spells none.
    """
    found: list[int] = []
    for part in text.split(","):
        low, dots, high = part.partition("..")
        size, last = _size(low, text), _size(high if dots else low, text)
        if last < size or size < 1:
            raise InvalidOptionError(f"sizes must be at least 1 byte and ranges must rise, got {shown(text)}")
        while size <= last:
            found.append(size)
            size *= 2
    if len(found) > _MAX_SIZES:
        raise InvalidOptionError(f"at most {_MAX_SIZES:,} sizes at once, got {len(found):,}")
    return found


def _size(word: str, text: str) -> int:
    match = _SIZE.fullmatch(word.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise InvalidOptionError(f"sizes must be bytes such as 4096, 64KiB, 1MiB or 1KiB..1MiB, got {shown(text)}")
    return round(float(match[1]) * _UNITS[match[2]])


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InvalidOptionError(f"--ranks must be integers such as 2,4,8, got {shown(text)}")
    return [int(part) for part in parts]
