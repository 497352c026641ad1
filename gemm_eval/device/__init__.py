"""An NVIDIA GPU, whoever uses it: its memory and streams, compiling for it, reading its code, timing on it.

Nothing here knows a cost model, a kernel or a data set. Importing this package is cheap and needs no GPU: CuPy is
imported when one is first needed.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.device.arrays import (
        DeviceArray,
        Rows,
        as_device_array,
        as_rows,
        check_dtype,
        check_vector,
        encode_tensor_map,
        overlaps,
    )
    from gemm_eval.device.bench import (
        MARKER_NAME,
        BenchDevice,
        Call,
        StreamTimer,
        TimedGraph,
        Timer,
        Timing,
        TimingProtocol,
        capture_calls,
        describe_gpu,
        measure_floor_us,
        num_calls,
        read_gpu_state,
        summarize,
        time_in_turns,
    )
    from gemm_eval.device.runtime import (
        COMPILE_OPTIONS,
        CompiledKernel,
        allocate,
        compile_text,
        compiler_version,
        import_cupy,
        limits_of_device,
        load_function,
    )
    from gemm_eval.device.sass import (
        CLASSES,
        INSTRUCTION_BYTES,
        Instruction,
        class_of,
        disassemble,
        disassemble_code,
        find_main_loop,
        nvdisasm_version,
        parse_sass,
    )

__all__ = [
    "CLASSES", "COMPILE_OPTIONS", "INSTRUCTION_BYTES", "MARKER_NAME", "BenchDevice", "Call", "CompiledKernel",
    "DeviceArray", "Instruction", "Rows", "StreamTimer", "TimedGraph", "Timer", "Timing", "TimingProtocol", "allocate",
    "as_device_array", "as_rows", "capture_calls", "check_dtype", "check_vector", "class_of", "compile_text",
    "compiler_version", "describe_gpu", "disassemble", "disassemble_code", "encode_tensor_map", "find_main_loop",
    "import_cupy", "limits_of_device", "load_function", "measure_floor_us", "num_calls", "nvdisasm_version", "overlaps",
    "parse_sass", "read_gpu_state", "summarize", "time_in_turns",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
