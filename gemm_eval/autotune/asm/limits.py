"""How large a file may be that is scored: far larger than kernels are, and small enough to cost seconds at most."""

from __future__ import annotations

from gemm_eval.errors import InvalidInputError
from gemm_eval.words import one_line, shown

__all__ = ["MAX_FILE_BYTES", "MAX_INSTRUCTIONS", "MAX_KERNELS", "check_instructions", "check_kernels", "check_name"]

MAX_FILE_BYTES = 8 << 20
"""Of a file. A GEMM of Triton's or CUTLASS's takes 20 KB to 2 MB, as a cubin or as text."""
MAX_INSTRUCTIONS = 1 << 18
"""Of all kernels of a file; nvdisasm takes some 10 s for as many."""
MAX_INSTRUCTIONS_OF_KERNEL = 1 << 16
"""A GEMM has 500 to 10,000."""
MAX_KERNELS = 1 << 12


def check_instructions(number: int, kernel: str | None = None) -> None:
    """Refuse what has too many instructions: a kernel, or all of a file.

    Raises:
        InvalidInputError: it has.
    """
    limit = MAX_INSTRUCTIONS if kernel is None else MAX_INSTRUCTIONS_OF_KERNEL
    if number > limit:
        what = "all kernels together have" if kernel is None else f"{one_line(kernel)} has"
        raise InvalidInputError(
            f"{what} {number:,} instructions, more than {limit:,}: score fewer kernels, such as the text that "
            "cuobjdump -sass -fun NAME writes"
        )


def check_kernels(number: int) -> None:
    """Refuse a file with too many kernels.

    Raises:
        InvalidInputError: it has.
    """
    if number > MAX_KERNELS:
        raise InvalidInputError(f"more than {MAX_KERNELS:,} kernels: score a file with fewer of them")


def check_name(kernel: str) -> str:
    """Return the name of a kernel, which will be printed.

    Raises:
        InvalidInputError: it is empty, or has control characters.
    """
    if not kernel or not kernel.isprintable():
        raise InvalidInputError(f"the name of a kernel is empty or has characters that do not print: {shown(kernel)}")
    return kernel
