"""Files that outlive a call: written whole, read with a bound, locked, set aside. Nothing here knows their contents."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.storage.arrays import ResultFile, StoredTensor, TensorFile, write_tensors
    from gemm_eval.storage.files import (
        FileLock,
        cache_dir,
        is_temporary,
        make_folder,
        read_bounded,
        read_checked,
        set_aside,
        staged,
        why_unsafe,
        write_checked,
        write_text,
        write_whole,
    )

__all__ = [
    "FileLock", "ResultFile", "StoredTensor", "TensorFile", "cache_dir", "is_temporary", "make_folder", "read_bounded",
    "read_checked", "set_aside", "staged", "why_unsafe", "write_checked", "write_tensors", "write_text", "write_whole",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
