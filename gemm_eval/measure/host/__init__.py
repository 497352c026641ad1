"""This machine's CPU as a multi-core chip: what it is, how fast its memories are, how long numpy's BLAS takes.

>>> from gemm_eval.measure.host import detect_host
>>> detect_host().num_cores.value  # doctest: +SKIP
2
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.measure.host.bandwidth import BandwidthPoint, measure_bandwidth, stream_gb_per_s, working_sets
    from gemm_eval.measure.host.blas import BlasInfo, blas_info, pinned_blas
    from gemm_eval.measure.host.caches import CacheLevel
    from gemm_eval.measure.host.campaign import HostMeasurement, measure_host
    from gemm_eval.measure.host.detect import check_host_packages, detect_host
    from gemm_eval.measure.host.facts import Fact, HostFacts
    from gemm_eval.measure.host.files import HostFiles, write_host_files
    from gemm_eval.measure.host.shapes import HostShape, pick_host_shapes
    from gemm_eval.measure.host.spec import host_spec_text
    from gemm_eval.measure.host.timing import HOST_DTYPES, HostTiming, time_host_shapes, time_launch

__all__ = [
    "HOST_DTYPES",
    "BandwidthPoint",
    "BlasInfo",
    "CacheLevel",
    "Fact",
    "HostFacts",
    "HostFiles",
    "HostMeasurement",
    "HostShape",
    "HostTiming",
    "blas_info",
    "check_host_packages",
    "detect_host",
    "host_spec_text",
    "measure_bandwidth",
    "measure_host",
    "pick_host_shapes",
    "pinned_blas",
    "stream_gb_per_s",
    "time_host_shapes",
    "time_launch",
    "working_sets",
    "write_host_files",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".bandwidth": ("BandwidthPoint", "measure_bandwidth", "stream_gb_per_s", "working_sets"),
        ".blas": ("BlasInfo", "blas_info", "pinned_blas"),
        ".caches": ("CacheLevel",),
        ".campaign": ("HostMeasurement", "measure_host"),
        ".detect": ("check_host_packages", "detect_host"),
        ".facts": ("Fact", "HostFacts"),
        ".files": ("HostFiles", "write_host_files"),
        ".shapes": ("HostShape", "pick_host_shapes"),
        ".spec": ("host_spec_text",),
        ".timing": ("HOST_DTYPES", "HostTiming", "time_host_shapes", "time_launch"),
    },
)
