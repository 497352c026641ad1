"""What a model takes of a device's memory: its weights and its KV cache, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.errors import InfeasibleError, InvalidOptionError
from gemm_eval.transformer.attention_shapes import attention_shapes, local_kv_heads
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.ffn_shapes import ffn_shapes, lm_head_shape
from gemm_eval.transformer.gemms import make_step
from gemm_eval.transformer.parts import GroupedAttention
from gemm_eval.transformer.shapes import Operand, Shape, Step
from gemm_eval.transformer.types import operand_types
from gemm_eval.workload import GemmProblem

__all__ = ["WHAT_COUNTS", "ModelMemory", "check_memory", "model_memory", "say_memory"]

WHAT_COUNTS = (
    "Attention is modelled as two GEMMs, scores and values, written out and over the full square in prefill: a fused, "
    "causal kernel takes less. Norms, softmax and the communication of parallel devices are not counted. So sums are "
    "no bound on the time of a pass, neither from below nor from above."
)
"""What the GEMMs of `transformer_gemms` say of a whole pass, and what not."""

_BITS_PER_BYTE = 8
_MAX_LEVER_DEGREE = 1024  # of tensor parallelism, up to which a degree that fits is looked for


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a device holds of a model, at the least.

    Norms, biases, activations and what a runtime takes for itself are not counted.

    Attributes:
        weight_bytes: matrices as stored, with the scales of quantized ones, all experts, and the embedding.
        kv_cache_bytes: keys and values of all positions; of latent attention the latents.
    """

    weight_bytes: int
    kv_cache_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.weight_bytes + self.kv_cache_bytes


def model_memory(
    config: ModelConfig,
    *,
    batch_size: int,
    seq_len: int,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    dtype: str | DtypeScheme = "fp16",
    dense_dtype: str | None = None,
    expert_dtype: str | DtypeScheme | None = None,
) -> ModelMemory:
    """Return what a device holds of a model with `batch_size` sequences of `seq_len` positions.

    Arguments are those of `transformer_gemms`. The KV cache and the embedding are in the type of what is kept,
    `dense_dtype`; the embedding is divided over the tensor-parallel group, and latents are replicated in it.

    Raises:
        InvalidOptionError, InvalidProblemError: as `transformer_gemms`.
    """
    step = make_step(config, "prefill", batch_size, seq_len, tensor_parallel, expert_parallel)
    types_of = operand_types(dtype, dense_dtype, expert_dtype)
    kept = types_of[Operand.ACTIVATION]
    assert isinstance(kept, DType)
    head = lm_head_shape(config, step)
    shapes = [*attention_shapes(config, step), *ffn_shapes(config, step), *([] if config.tied_embeddings else [head])]
    weight_bytes = sum(
        _stored_bytes(shape, types_of[shape.operand]) for shape in shapes if shape.operand is not Operand.ACTIVATION
    )
    vectors = head.N + config.num_positions  # of the embedding, and of the position table
    weight_bytes += vectors * config.hidden_size * kept.bits // _BITS_PER_BYTE
    return ModelMemory(weight_bytes, _kv_cache_elems(config, step) * kept.bits // _BITS_PER_BYTE)


def _stored_bytes(shape: Shape, types: DtypeScheme | DType) -> int:
    """Bytes of the weights of a GEMM in all layers, with their scales."""
    words = types._asdict() if isinstance(types, DtypeScheme) else {"input_dtype": types}
    problem = GemmProblem(1, 1, shape.K, shape.N, **words)
    bits = problem.types.b.total_bits(shape.N, shape.K)
    return (shape.num_held or shape.G) * shape.num_layers * -(-bits // _BITS_PER_BYTE)


def _kv_cache_elems(config: ModelConfig, step: Step) -> int:
    attention = config.attention
    if not isinstance(attention, GroupedAttention):
        of_position = attention.kv_lora_rank + attention.qk_rope_head_dim
        return step.num_seqs * step.context * config.num_layers * of_position
    in_window = min(attention.window_size or step.context, step.context)
    positions = step.context * (config.num_layers - attention.num_window_layers)
    positions += in_window * attention.num_window_layers
    return step.num_seqs * positions * 2 * local_kv_heads(attention.num_kv_heads, step) * attention.head_dim


def check_memory(config: ModelConfig, arch: ArchSpec, **options: Any) -> ModelMemory:
    """Check that a model fits into the DRAM of each device, as far as the size of that is known.

    Args:
        config: the model.
        arch: the device; multi-core chips do not say the size of their DRAM, and are not checked.
        options: as for `model_memory`.

    Returns:
        What it takes of a device.

    Raises:
        InfeasibleError: weights and KV cache alone are larger than `dram_bytes`; it says what would help.
        InvalidOptionError, InvalidProblemError: as `model_memory`.
    """
    memory = model_memory(config, **options)
    if isinstance(arch, GpuSpec) and memory.total_bytes > arch.dram_bytes:
        raise InfeasibleError(
            f"{config.name} does not fit into the DRAM of a device ({arch.name}), with weights of "
            f"{memory.weight_bytes:,} and a KV cache of {memory.kv_cache_bytes:,} bytes",
            resource="dram",
            demand=memory.total_bytes,
            limit=arch.dram_bytes,
            unit="bytes",
            levers=_levers(config, arch, memory, options),
        )
    return memory


def say_memory(memory: ModelMemory, arch: ArchSpec) -> str:
    """Return one line: what a model takes of a device, and whether that was held against the size of its DRAM."""
    held = f"weights {memory.weight_bytes / 1e9:,.1f} GB and KV cache {memory.kv_cache_bytes / 1e9:,.1f} GB a device"
    if isinstance(arch, GpuSpec):
        return f"{held}, of {arch.dram_bytes / 1e9:,.0f} GB"
    return f"{held}; the size of its DRAM is not known, so whether they fit is not checked"


def _levers(config: ModelConfig, arch: GpuSpec, memory: ModelMemory, options: dict[str, Any]) -> tuple[str, ...]:
    """More devices, in the least degree that fits where one does; narrower weights; fewer positions, if that can do."""
    levers = ["narrower weights (dtype)"]
    if memory.weight_bytes <= arch.dram_bytes:
        levers.append("a smaller batch_size or seq_len")
    degree = 2 * options.get("tensor_parallel", 1)
    while degree <= _MAX_LEVER_DEGREE:
        try:
            if model_memory(config, **options | {"tensor_parallel": degree}).total_bytes <= arch.dram_bytes:
                return (f"tensor_parallel = {degree}", *levers)
        except InvalidOptionError:  # a degree that does not divide the model
            break
        degree *= 2
    return tuple(levers)
