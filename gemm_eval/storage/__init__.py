"""Whatever lies on a disk for longer than a call: where, whose, written whole, read with a bound, locked, set aside.

Nothing here knows what the files are about. Importing this package costs nothing.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.storage.aside import set_aside
    from gemm_eval.storage.atomic import is_temporary, place_new, staged, write_text, write_whole
    from gemm_eval.storage.cache import DEFAULT_MAX_BYTES, DEFAULT_TIMEOUT_S, DiskCache, default_path
    from gemm_eval.storage.checked import read_bounded, read_checked, write_checked
    from gemm_eval.storage.folders import cache_dir, make_folder, why_unsafe
    from gemm_eval.storage.lock import FileLock
    from gemm_eval.storage.tensor_file import StoredTensor, TensorFile, write_tensors

__all__ = [
    "DEFAULT_MAX_BYTES",
    "DEFAULT_TIMEOUT_S",
    "DiskCache",
    "FileLock",
    "StoredTensor",
    "TensorFile",
    "cache_dir",
    "default_path",
    "is_temporary",
    "make_folder",
    "place_new",
    "read_bounded",
    "read_checked",
    "set_aside",
    "staged",
    "why_unsafe",
    "write_checked",
    "write_tensors",
    "write_text",
    "write_whole",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".aside": ("set_aside",),
        ".atomic": ("is_temporary", "place_new", "staged", "write_text", "write_whole"),
        ".cache": ("DEFAULT_MAX_BYTES", "DEFAULT_TIMEOUT_S", "DiskCache", "default_path"),
        ".checked": ("read_bounded", "read_checked", "write_checked"),
        ".folders": ("cache_dir", "make_folder", "why_unsafe"),
        ".lock": ("FileLock",),
        ".tensor_file": ("StoredTensor", "TensorFile", "write_tensors"),
    },
)
