"""Cost model 2: GPUs, kernel configs of a library. The terms are defined in MODEL.md beside this file."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.models.gpu.calibration import (
        ALL_OURS,
        COVERAGE_FRAC,
        OF_DEFAULTS,
        REGIMES_OF_M,
        Calibration,
        CalibrationFile,
        ErrorFigures,
        FittedKernel,
        Origin,
        Spread,
        cached_by_arch,
        calibration_path,
        calibration_stamp,
        coefficients_for,
        corrected_as,
        fit_intervals,
        has_sms_of,
        interval_of,
        is_preset,
        load_calibration,
        preset_of,
        regime_place,
        regime_places,
        spread_between,
    )
    from gemm_eval.models.gpu.candidates import (
        CANDIDATE_DTYPE,
        Shortage,
        candidate_row,
        check_config,
        launched_resources,
        least_shortage,
        list_needs,
        step_elems,
    )
    from gemm_eval.models.gpu.coefficients import COEFFICIENTS, MOE_LAYER, Coefficient
    from gemm_eval.models.gpu.convolutions import ConvolutionKernel, convolution_us
    from gemm_eval.models.gpu.correction import (
        MAX_LOG_FACTOR,
        Correction,
        CorrectionData,
        CorrectionErrors,
        CorrectionFile,
        HeldOut,
        PackedCorrection,
        Region,
        Trees,
        correction_path,
        find_correction,
        interval_carried,
        interval_for,
        load_correction,
        nearest_corrected,
        pack_correction,
        pack_limits,
        pack_trees,
        physics_digest,
        question_of,
    )
    from gemm_eval.models.gpu.correction_kernels import (
        CHIP_FEATURES,
        FEATURES,
        LEAF,
        MOST_OF_KERNEL_LOG,
        NO_VERSION,
        OTHER_KERNELS,
        SMOOTH_FEATURES,
        carry,
        correct,
        correct_sizes,
        describe,
        describe_sizes,
        interval_ends,
        interval_rows,
    )
    from gemm_eval.models.gpu.cost_kernels import (
        AS_PRESET,
        BEST_RASTER,
        GPU_COST_DTYPE,
        KERNEL_COST_DTYPE,
        RASTER_CODE,
        STREAM_K,
    )
    from gemm_eval.models.gpu.engines import engine_kernel, engine_library, say_engine
    from gemm_eval.models.gpu.generic_kernels import quantize_rows
    from gemm_eval.models.gpu.learned import (
        NOTHING_LEARNED,
        OTHER_MAKER,
        Fall,
        Features,
        LearnedCorrection,
        answers_for,
        apply_trees,
        features_of,
        learned_for,
        learned_path,
    )
    from gemm_eval.models.gpu.libraries import (
        AUTO,
        ENGINES,
        HYPOTHETICAL,
        LIBRARIES,
        OURS,
        TRTLLM,
        Library,
        check_plain_library,
        default_grouped_library,
        default_library,
        first_library,
        library_of,
        library_of_family,
        say_default,
        tile_names,
    )
    from gemm_eval.models.gpu.memory_bound import (
        SWITCH_COEFFICIENTS,
        SWITCH_DEFAULTS,
        switch_us,
    )
    from gemm_eval.models.gpu.model import (
        GPU_MODEL_VERSION,
        GpuCost,
        check_options,
        pack_gpu,
        unpack_gpu_cost,
    )
    from gemm_eval.models.gpu.moe import (
        MOE,
        LayerShape,
        default_layer_library,
        layer_answers,
        layer_features,
        layer_libraries,
        layer_terms,
        padded_sizes,
        say_tiles,
    )
    from gemm_eval.models.gpu.packed import (
        Carried,
        Joined,
        Packed,
        join_packed,
        pack_bound_columns,
        pack_coefficients,
        pack_kernels,
        pack_no_kernels,
        pack_w4a16_coefficients,
        split_by_size,
    )
    from gemm_eval.models.gpu.sizes import (
        LOAD_BYTES,
        LoadRules,
        Quantization,
        load_bytes_of,
        load_rules,
        loads_of,
        pad_problem,
        padding_to,
        quantization_of,
    )
    from gemm_eval.models.gpu.terms import BOUNDS, TERMS, Times

__all__ = [
    "ALL_OURS", "AS_PRESET", "AUTO", "BEST_RASTER", "BOUNDS", "CANDIDATE_DTYPE", "CHIP_FEATURES", "COEFFICIENTS",
    "COVERAGE_FRAC", "ENGINES", "FEATURES", "GPU_COST_DTYPE", "GPU_MODEL_VERSION", "HYPOTHETICAL", "KERNEL_COST_DTYPE",
    "LEAF", "LIBRARIES", "LOAD_BYTES", "MAX_LOG_FACTOR", "MOE", "MOE_LAYER", "MOST_OF_KERNEL_LOG", "NOTHING_LEARNED",
    "NO_VERSION", "OF_DEFAULTS", "OTHER_KERNELS", "OTHER_MAKER", "OURS", "RASTER_CODE", "REGIMES_OF_M",
    "SMOOTH_FEATURES", "STREAM_K", "SWITCH_COEFFICIENTS", "SWITCH_DEFAULTS", "TERMS", "TRTLLM", "Calibration",
    "CalibrationFile", "Carried", "Coefficient", "ConvolutionKernel", "Correction", "CorrectionData",
    "CorrectionErrors", "CorrectionFile", "ErrorFigures", "Fall", "Features", "FittedKernel", "GpuCost", "HeldOut",
    "Joined", "LayerShape", "LearnedCorrection", "Library", "LoadRules", "Origin", "Packed", "PackedCorrection",
    "Quantization", "Region", "Shortage", "Spread", "Times", "Trees", "answers_for", "apply_trees", "cached_by_arch",
    "calibration_path", "calibration_stamp", "candidate_row", "carry", "check_config", "check_options",
    "check_plain_library", "coefficients_for", "convolution_us", "correct", "correct_sizes", "corrected_as",
    "correction_path", "default_grouped_library", "default_layer_library", "default_library", "describe",
    "describe_sizes", "engine_kernel", "engine_library", "features_of", "find_correction", "first_library",
    "fit_intervals", "has_sms_of", "interval_carried", "interval_ends", "interval_for", "interval_of", "interval_rows",
    "is_preset", "join_packed", "launched_resources", "layer_answers", "layer_features", "layer_libraries",
    "layer_terms", "learned_for", "learned_path", "least_shortage", "library_of", "library_of_family", "list_needs",
    "load_bytes_of", "load_calibration", "load_correction", "load_rules", "loads_of", "nearest_corrected",
    "pack_bound_columns", "pack_coefficients", "pack_correction", "pack_gpu", "pack_kernels", "pack_limits",
    "pack_no_kernels", "pack_trees", "pack_w4a16_coefficients", "pad_problem", "padded_sizes", "padding_to",
    "physics_digest", "preset_of", "quantization_of", "quantize_rows", "question_of", "regime_place", "regime_places",
    "say_default", "say_engine", "say_tiles", "split_by_size", "spread_between", "step_elems", "switch_us",
    "tile_names", "unpack_gpu_cost",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
