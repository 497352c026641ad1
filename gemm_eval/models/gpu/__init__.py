"""Cost model 2: GPUs, kernel configs of a library. The terms are defined in MODEL.md beside this file."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.models.gpu.bound_columns import pack_bound_columns
    from gemm_eval.models.gpu.calibration import (
        Calibration,
        ErrorFigures,
        Origin,
        calibration_path,
        calibration_stamp,
        coefficients_for,
        load_calibration,
    )
    from gemm_eval.models.gpu.candidates import (
        CANDIDATE_DTYPE,
        candidate_row,
        check_config,
        launched_resources,
        list_needs,
        step_elems,
    )
    from gemm_eval.models.gpu.coefficients import COEFFICIENTS, Coefficient
    from gemm_eval.models.gpu.cost_kernels import BEST_RASTER, GPU_COST_DTYPE, KERNEL_COST_DTYPE, RASTER_CODE, STREAM_K
    from gemm_eval.models.gpu.libraries import (
        AUTO,
        HYPOTHETICAL,
        LIBRARIES,
        OURS,
        TRTLLM,
        default_library,
        library_of_family,
    )
    from gemm_eval.models.gpu.model import (
        GPU_MODEL_VERSION,
        GpuCost,
        check_options,
        pack_gpu,
        unpack_config,
        unpack_gpu_cost,
    )
    from gemm_eval.models.gpu.packed import (
        Joined,
        Packed,
        join_packed,
        pack_coefficients,
        pack_kernels,
        pack_no_kernels,
        pack_w4a16_coefficients,
        split_by_size,
    )
    from gemm_eval.models.gpu.quantization import Quantization, quantization_of
    from gemm_eval.models.gpu.quantization_kernels import quantize_rows
    from gemm_eval.models.gpu.shortage import Shortage, least_shortage
    from gemm_eval.models.gpu.sizes import LOAD_BYTES, is_row_aligned, load_bytes_of, pad_problem, padding_to
    from gemm_eval.models.gpu.space import enumerate_configs
    from gemm_eval.models.gpu.terms import BOUNDS, TERMS, Times

__all__ = [
    "AUTO",
    "BEST_RASTER",
    "BOUNDS",
    "CANDIDATE_DTYPE",
    "COEFFICIENTS",
    "GPU_COST_DTYPE",
    "GPU_MODEL_VERSION",
    "HYPOTHETICAL",
    "KERNEL_COST_DTYPE",
    "LIBRARIES",
    "LOAD_BYTES",
    "OURS",
    "RASTER_CODE",
    "STREAM_K",
    "TERMS",
    "TRTLLM",
    "Calibration",
    "Coefficient",
    "ErrorFigures",
    "GpuCost",
    "Joined",
    "Origin",
    "Packed",
    "Quantization",
    "Shortage",
    "Times",
    "calibration_path",
    "calibration_stamp",
    "candidate_row",
    "check_config",
    "check_options",
    "coefficients_for",
    "default_library",
    "enumerate_configs",
    "is_row_aligned",
    "join_packed",
    "launched_resources",
    "least_shortage",
    "library_of_family",
    "list_needs",
    "load_bytes_of",
    "load_calibration",
    "pack_bound_columns",
    "pack_coefficients",
    "pack_gpu",
    "pack_kernels",
    "pack_no_kernels",
    "pack_w4a16_coefficients",
    "pad_problem",
    "padding_to",
    "quantization_of",
    "quantize_rows",
    "split_by_size",
    "step_elems",
    "unpack_config",
    "unpack_gpu_cost",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".bound_columns": ("pack_bound_columns",),
        ".calibration": (
            "Calibration",
            "ErrorFigures",
            "Origin",
            "calibration_path",
            "calibration_stamp",
            "coefficients_for",
            "load_calibration",
        ),
        ".candidates": (
            "CANDIDATE_DTYPE",
            "candidate_row",
            "check_config",
            "launched_resources",
            "list_needs",
            "step_elems",
        ),
        ".coefficients": ("COEFFICIENTS", "Coefficient"),
        ".cost_kernels": (
            "BEST_RASTER",
            "GPU_COST_DTYPE",
            "KERNEL_COST_DTYPE",
            "RASTER_CODE",
            "STREAM_K",
        ),
        ".libraries": (
            "AUTO",
            "HYPOTHETICAL",
            "LIBRARIES",
            "OURS",
            "TRTLLM",
            "default_library",
            "library_of_family",
        ),
        ".model": (
            "GPU_MODEL_VERSION",
            "GpuCost",
            "check_options",
            "pack_gpu",
            "unpack_config",
            "unpack_gpu_cost",
        ),
        ".packed": (
            "Joined",
            "Packed",
            "join_packed",
            "pack_coefficients",
            "pack_kernels",
            "pack_no_kernels",
            "pack_w4a16_coefficients",
            "split_by_size",
        ),
        ".quantization": (
            "Quantization",
            "quantization_of",
        ),
        ".quantization_kernels": ("quantize_rows",),
        ".shortage": (
            "Shortage",
            "least_shortage",
        ),
        ".sizes": ("LOAD_BYTES", "is_row_aligned", "load_bytes_of", "pad_problem", "padding_to"),
        ".space": ("enumerate_configs",),
        ".terms": (
            "BOUNDS",
            "TERMS",
            "Times",
        ),
    },
)
