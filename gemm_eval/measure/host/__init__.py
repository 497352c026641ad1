"""This machine's CPU as a multi-core chip: its cores and caches, how fast its memories and numpy's BLAS are.

>>> from gemm_eval.measure.host import detect_host
>>> detect_host().num_cores.value  # doctest: +SKIP
2
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.measure.host.campaign import (
        BandwidthPoint,
        HostMeasurement,
        measure_bandwidth,
        measure_host,
        stream_gb_per_s,
        working_sets,
    )
    from gemm_eval.measure.host.cpu import (
        BlasInfo,
        CacheLevel,
        Fact,
        HostFacts,
        blas_info,
        check_host_packages,
        detect_host,
        pinned_blas,
    )
    from gemm_eval.measure.host.spec import HostFiles, host_spec_text, write_host_files
    from gemm_eval.measure.host.timing import (
        HOST_DTYPES,
        HostShape,
        HostTiming,
        pick_host_shapes,
        time_host_shapes,
        time_launch,
    )

__all__ = [
    "HOST_DTYPES", "BandwidthPoint", "BlasInfo", "CacheLevel", "Fact", "HostFacts", "HostFiles", "HostMeasurement",
    "HostShape", "HostTiming", "blas_info", "check_host_packages", "detect_host", "host_spec_text",
    "measure_bandwidth", "measure_host", "pick_host_shapes", "pinned_blas", "stream_gb_per_s", "time_host_shapes",
    "time_launch", "working_sets", "write_host_files",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
