"""W4A16 GEMM on NVIDIA GPUs: C = alpha * A x W + bias with weights of 4 bits. KERNELS.md describes the packed weights.

Importing this package is cheap and needs no GPU. CuPy is imported, and a kernel compiled, when one is first used. The
best configs of GEMMs are in `gemm_eval.kernels.config_cache`, and what a kernel is made of in
`gemm_eval.kernels.families`.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.arch import DeviceLimits, Occupancy, limits_of_spec
    from gemm_eval.kernels.checkpoint_tensors import PackedLayer
    from gemm_eval.kernels.checkpoints import from_awq, from_gptq, pack_checkpoint
    from gemm_eval.kernels.experts import interleave_gate_up, w4a16_experts
    from gemm_eval.kernels.families import GroupedSizes, Sizes, Variant, WeightMode
    from gemm_eval.kernels.fp4 import QuantizedFp4, pack_fp4, pack_mxfp4, pack_nvfp4, quantize_fp4, unpack_fp4
    from gemm_eval.kernels.gemm import (
        occupancy,
        quantize_tokens,
        w4a8_gemm,
        w4a16_gemm,
        w4a16_grouped_gemm,
        workspace_bytes,
    )
    from gemm_eval.kernels.layout import (
        BLOCK_COLUMNS,
        BLOCK_K,
        MIDDLE,
        check_sizes,
        encode,
        k_blocks,
        pack_scales,
        parse_activation,
        scale_rows,
        scale_unit,
        scales_dtype,
        scales_shape,
    )
    from gemm_eval.kernels.packed_files import Conversion, convert_checkpoint, load_packed, save_packed
    from gemm_eval.kernels.plan import (
        Plan,
        choose,
        choose_grouped,
        limits_of,
        make_plan,
        problem_of,
        rank,
        spec_of_device,
    )
    from gemm_eval.kernels.registry import (
        SOURCES,
        KernelEntry,
        compile_for,
        legal_configs,
        legal_splits,
        list_kernels,
        make_variant,
        occupancy_of,
    )
    from gemm_eval.kernels.tokens import QuantizedTokens, dequantize_tokens, padded_k, quantize_rows, quantized_bytes
    from gemm_eval.kernels.weights import (
        GroupedW4,
        PackedW4,
        QuantizedW4,
        dequantize,
        pack_w4,
        quantize_w4,
        stack_w4,
        unpack_w4,
    )

__all__ = [
    "BLOCK_COLUMNS", "BLOCK_K", "MIDDLE", "SOURCES", "Conversion", "DeviceLimits", "GroupedSizes", "GroupedW4",
    "KernelEntry", "Occupancy", "PackedLayer", "PackedW4", "Plan", "QuantizedFp4", "QuantizedTokens", "QuantizedW4",
    "Sizes", "Variant", "WeightMode", "check_sizes", "choose", "choose_grouped", "compile_for",
    "convert_checkpoint", "dequantize", "dequantize_tokens", "encode", "from_awq", "from_gptq",
    "interleave_gate_up", "k_blocks", "legal_configs", "legal_splits", "limits_of", "limits_of_spec",
    "list_kernels", "load_packed", "make_plan", "make_variant", "occupancy", "occupancy_of", "pack_checkpoint",
    "pack_fp4", "pack_mxfp4", "pack_nvfp4", "pack_scales", "pack_w4", "padded_k", "parse_activation", "problem_of",
    "quantize_fp4", "quantize_rows", "quantize_tokens", "quantize_w4", "quantized_bytes", "rank", "save_packed",
    "scale_rows", "scale_unit", "scales_dtype", "scales_shape", "spec_of_device", "stack_w4", "unpack_fp4",
    "unpack_w4", "w4a8_gemm", "w4a16_experts", "w4a16_gemm", "w4a16_grouped_gemm", "workspace_bytes",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
