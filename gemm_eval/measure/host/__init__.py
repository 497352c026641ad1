"""The CPU of this machine as a multi-core chip: its cores and caches, how fast its memories and numpy's BLAS are.

>>> from gemm_eval.measure.host import detect_host
>>> detect_host().num_cores.value  # doctest: +SKIP
2
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.measure.host.cpu import check_host_packages, detect_host, pinned_blas
    from gemm_eval.measure.host.spec import write_host_files
    from gemm_eval.measure.host.timing import HostMeasurement, HostTiming, measure_host

__all__ = [
    "HostMeasurement", "HostTiming", "check_host_packages", "detect_host", "measure_host", "pinned_blas",
    "write_host_files",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
