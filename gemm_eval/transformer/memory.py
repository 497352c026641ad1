"""What a model takes of a device's memory: its weights, its KV cache and its activations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemm_eval.checks import as_integer, check_flag
from gemm_eval.dtypes import DtypeScheme, parse_dtype
from gemm_eval.transformer.activations import activation_bytes
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.experts import EXPECTED
from gemm_eval.transformer.gemms import make_step
from gemm_eval.transformer.kv_cache import kv_cache_bytes
from gemm_eval.transformer.stages import stage_config, stage_layers
from gemm_eval.transformer.types import weight_types
from gemm_eval.transformer.weights import WeightPart, local_weights, mtp_weights
from gemm_eval.workload import MAX_DIM

__all__ = ["CHUNK_TOKENS", "WHAT_COUNTS", "ModelMemory", "model_memory"]

WHAT_COUNTS = (
    "Attention is modelled as two GEMMs, scores and values, written out and over the full square in prefill: a fused, "
    "causal kernel takes less. Norms, softmax and the communication of parallel devices are not counted. So sums are "
    "no bound on the time of a pass, neither from below nor from above: `gemm-eval model` has whole steps."
)
"""What the GEMMs of `transformer_gemms` say of a whole pass, and what not."""

CHUNK_TOKENS = 8192
"""Tokens of a pass at most, unless it is said: prefill is done in chunks (vLLM: max_num_batched_tokens)."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a device holds of a model, without what a runtime takes for itself.

    Attributes:
        weight_bytes: all weights as stored, with the scales of quantized ones, all experts, and the embedding.
        kv_cache_bytes: keys and values of all positions; of latent attention the latents.
        activation_bytes: what is alive at the peak of a pass; `gemm_eval.transformer.activations` has the formula.
        weights: the parts of `weight_bytes`, in the order they are used.
        stage: the pipeline stage that it is of, counted from 0.
    """

    weight_bytes: int
    kv_cache_bytes: int
    activation_bytes: int
    weights: tuple[WeightPart, ...] = ()
    stage: int = 0

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes

    @property
    def weight_bytes_by_type(self) -> dict[str, int]:
        """Bytes of weights by how they are stored, most first."""
        found: dict[str, int] = {}
        for part in self.weights:
            found[part.types] = found.get(part.types, 0) + part.num_bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def model_memory(
    config: ModelConfig,
    *,
    batch_size: int,
    seq_len: int,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    pipeline_parallel: int = 1,
    stage: int | None = None,
    dtype: str | DtypeScheme | None = None,
    dense_dtype: str | None = None,
    expert_dtype: str | DtypeScheme | None = None,
    kv_dtype: str | None = None,
    block_size: int = 1,
    chunk_tokens: int = CHUNK_TOKENS,
    with_mtp: bool = False,
    expert_copies: bool = False,
) -> ModelMemory:
    """Return what a device holds of a model with `batch_size` sequences of `seq_len` positions.

    Arguments not named here are those of `transformer_gemms`. Embedding and LM head are divided over the
    tensor-parallel group, latents and norms are replicated in it.

    Args:
        config: the model.
        batch_size, seq_len: sequences in the cache, and positions of each.
        tensor_parallel, expert_parallel: as for `transformer_gemms`.
        pipeline_parallel: stages that the layers are divided over; see `gemm_eval.transformer.stages`.
        stage: which of them; None: the one that holds most.
        dtype, dense_dtype, expert_dtype: as for `transformer_gemms`.
        kv_dtype: type of the KV cache; None: that of the checkpoint where `dtype` is None and it says one, else the
            type of what is kept.
        block_size: positions of a block of the cache (paged attention).
        chunk_tokens: tokens of a pass at most.
        expert_copies: the library of experts copies rows before their GEMM (PyTorch's, CUTLASS's and our grouped
            kernels), not reads them where tokens are (Triton's).
        with_mtp: also the layers that predict further tokens, which engines load to guess tokens by them; they are
            with the last stage.

    Raises:
        InvalidOptionError, InvalidProblemError: as `transformer_gemms`.
    """
    step = make_step(config, "prefill", batch_size, seq_len, tensor_parallel, expert_parallel, expert_load=EXPECTED)
    block = as_integer("block_size", block_size, 1, MAX_DIM)
    num_tokens = min(step.tokens, as_integer("chunk_tokens", chunk_tokens, 1, MAX_DIM))
    check_flag("with_mtp", with_mtp)
    check_flag("expert_copies", expert_copies)
    stages = stage_layers(config.num_layers, pipeline_parallel)
    asked = range(len(stages)) if stage is None else (as_integer("stage", stage, 0, len(stages) - 1),)
    found = []
    for index in asked:
        part = stage_config(config, stages[index])
        is_first, is_last = index == 0, index == len(stages) - 1
        types = weight_types(part, dtype, dense_dtype, expert_dtype)
        own_kv = config.quantization.kv_cache_dtype if dtype is None and config.quantization is not None else None
        kv = parse_dtype(kv_dtype or own_kv or types.kept, what="kv_dtype")
        inner = step if part.moe is not None or config.moe is None else replace(step, expert_parallel=1)
        weights = local_weights(part, inner, types, has_embedding=is_first, has_head=is_last)
        if with_mtp and is_last:
            weights += mtp_weights(config, step, dtype, dense_dtype)
        found.append(
            ModelMemory(
                sum(item.num_bytes for item in weights),
                kv_cache_bytes(part, inner, kv, block),
                activation_bytes(part, inner, types.kept, num_tokens, has_head=is_last, expert_copies=expert_copies),
                weights,
                index,
            )
        )
    return max(found, key=lambda memory: memory.total_bytes)
