"""Results that survive the process: a bounded cache of JSON texts in one SQLite file that processes share."""

from gemm_eval.storage.cache.disk import DEFAULT_MAX_BYTES, DEFAULT_TIMEOUT_S, DiskCache
from gemm_eval.storage.cache.files import default_path

__all__ = ["DEFAULT_MAX_BYTES", "DEFAULT_TIMEOUT_S", "DiskCache", "default_path"]
