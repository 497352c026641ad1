"""`AttentionProblem`: sizes and data types of the attention of one layer, scores, softmax and values."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_eval.checks import plain_integer
from gemm_eval.dtypes import HALF_BITS_PER_BYTE, DType, parse_dtype
from gemm_eval.errors import InvalidProblemError
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import shown
from gemm_eval.workload.types import check_size

__all__ = ["MAX_HEAD_DIM", "MAX_PAIR_MACS", "AttentionProblem"]

MAX_HEAD_DIM = 1 << 12
"""Largest `head_dim` or `v_head_dim` that is taken."""

MAX_PAIR_MACS = 1 << 57
"""Largest number of MACs of full, unmasked attention that is taken, as of a GEMM."""

_BITS_PER_BYTE = 8
_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """The attention of one layer on one device: softmax(Q x K^T) x V for each sequence and head.

    The last `q_len` of `kv_len` positions are queries: all of them in a prefill, some of them where others are cached
    already (a chunk), one in a step of decode. Q is [batch, q_len, num_heads, head_dim], K and V are [batch, kv_len,
    num_kv_heads, head_dim or v_head_dim]; the output is as Q, with `v_head_dim`.

    Attributes:
        batch: sequences.
        q_len, kv_len: queries and keys of each, `q_len` <= `kv_len`; full attention may have more queries than keys, of
            another sequence (cross-attention).
        num_heads, num_kv_heads: query heads, and KV heads that equal groups of these share (MHA: as many; MQA: one).
        head_dim: elements of a query and of a key.
        dtype: of Q, and what products are computed in: fp16, bf16, or fp8 where queries are quantized. The output is of
            it too, of queries of 8 bits bf16.
        kv_dtype: of K and V in the cache, which may be narrower (fp8, int8, fp4); None: `dtype`.
        v_head_dim: elements of a value; None: `head_dim`.
        causal: a query attends to its own position and those before it; False: to all.
        window: positions that a query attends to at most, its own included; None: all.
        is_latent: values are the first `v_head_dim` elements of the keys, and are not read again: MLA with absorbed
            projections, whose keys are latents of one KV head.
        has_sinks: each head has a learned logit in the sum of its softmax. It takes no time in any model.

    Raises:
        InvalidProblemError: a size is no positive integer or too large, or they do not go together.
    """

    batch: int
    q_len: int
    kv_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: DType = DType.BF16
    kv_dtype: DType | None = None
    v_head_dim: int | None = None
    causal: bool = True
    window: int | None = None
    is_latent: bool = False
    has_sinks: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim"):
            _set(self, name, check_size(name, getattr(self, name)))
        value = self.head_dim if self.v_head_dim is None else check_size("v_head_dim", self.v_head_dim)
        _set(self, "v_head_dim", value)
        for name in ("causal", "is_latent", "has_sinks"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidProblemError(f"{name} must be True or False, got {shown(getattr(self, name))}")
        _set(self, "dtype", parse_dtype(self.dtype))
        _set(self, "kv_dtype", self.dtype if self.kv_dtype is None else parse_dtype(self.kv_dtype, what="kv_dtype"))
        self._check()

    def _check(self) -> None:
        if self.causal and self.q_len > self.kv_len:
            raise InvalidProblemError(f"q_len must be <= kv_len = {self.kv_len}, got {self.q_len}: keys include those")
        if self.num_heads % self.num_kv_heads:
            raise InvalidProblemError(f"num_kv_heads must divide num_heads = {self.num_heads}, got {self.num_kv_heads}")
        if max(self.head_dim, self.value_dim) > MAX_HEAD_DIM:
            raise InvalidProblemError(
                f"head_dim and v_head_dim must be <= {MAX_HEAD_DIM}, got {self.head_dim} and {self.value_dim}"
            )
        if self.is_latent and (self.num_kv_heads > 1 or self.value_dim > self.head_dim):
            raise InvalidProblemError(
                "latent keys are of one KV head, with values among their elements, got "
                f"num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}, v_head_dim={self.value_dim}"
            )
        if self.dtype.is_integer or not self.dtype.is_operand or self.dtype.bits < _BITS_PER_BYTE:
            raise InvalidProblemError(
                f"dtype of attention must be fp32, tf32, fp16, bf16, fp8 or bfp8, got {self.dtype}"
            )
        if not self.kv_type.is_operand:
            raise InvalidProblemError(f"kv_dtype must be a type of operands, got {self.kv_dtype}")
        if self.kv_type.bits > self.dtype.bits:
            raise InvalidProblemError(f"kv_dtype must not be wider than dtype = {self.dtype}, got {self.kv_dtype}")
        if self.window is not None:
            window = plain_integer(self.window)
            if window is None or window < 1:
                raise InvalidProblemError(f"window must be a positive integer or None, got {shown(self.window)}")
            if not self.causal:
                raise InvalidProblemError("a window is of causal attention: leave out causal=False")
            _set(self, "window", window if window < self.kv_len else None)
        macs = self.batch * self.num_heads * self.q_len * self.kv_len * (self.head_dim + self.value_dim)
        if macs > MAX_PAIR_MACS:
            raise InvalidProblemError(f"attention must be <= 2**57 = {MAX_PAIR_MACS:.3g} MAC, got {macs:.3g}")

    @property
    def value_dim(self) -> int:
        """Elements of a value: `v_head_dim`, which is filled in."""
        assert self.v_head_dim is not None
        return self.v_head_dim

    @property
    def kv_type(self) -> DType:
        """Type of keys and values: `kv_dtype`, which is filled in."""
        assert self.kv_dtype is not None
        return self.kv_dtype

    @property
    def output_dtype(self) -> DType:
        """Type of the output: as the queries, or bf16 where these are fp8."""
        return self.dtype if self.dtype.bits > _BITS_PER_BYTE else DType.BF16

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key that it attends to, of one head and sequence."""
        if not self.causal:
            return self.q_len * self.kv_len
        first, last = self.kv_len - self.q_len + 1, self.kv_len
        window = self.kv_len if self.window is None else self.window
        growing = max(0, min(last, window) - first + 1)
        return growing * (2 * first + growing - 1) // 2 + (self.q_len - growing) * window

    @property
    def num_keys(self) -> int:
        """Keys of a sequence that any of its queries attends to."""
        return self.kv_len if self.window is None else min(self.kv_len, self.window + self.q_len - 1)

    @property
    def flop(self) -> int:
        """Operations, a MAC being two, of both products: those that a masked kernel cannot leave out."""
        return FLOP_PER_MAC * self.batch * self.num_heads * self.num_pairs * (self.head_dim + self.value_dim)

    @property
    def q_bytes(self) -> int:
        """Bytes of the queries."""
        return _num_bytes(self.batch * self.q_len * self.num_heads * self.head_dim, self.dtype)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values that any query attends to, each once."""
        elements = self.head_dim if self.is_latent else self.head_dim + self.value_dim
        return _num_bytes(self.batch * self.num_keys * self.num_kv_heads * elements, self.kv_type)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return _num_bytes(self.batch * self.q_len * self.num_heads * self.value_dim, self.output_dtype)

    @property
    def num_bytes(self) -> int:
        """Compulsory bytes: queries, keys, values and output, each once."""
        return self.q_bytes + self.kv_bytes + self.output_bytes

    def __str__(self) -> str:
        heads = f"{self.num_heads} heads" if self.group == 1 else f"{self.num_heads}/{self.num_kv_heads} heads"
        size = f"{self.head_dim}" if self.value_dim == self.head_dim else f"{self.head_dim}+{self.value_dim}"
        kinds = ["causal" if self.causal else "full"]
        kinds += [f"window {self.window}"] if self.window else []
        kinds += ["latent"] if self.is_latent else []
        types = str(self.dtype) if self.kv_type is self.dtype else f"{self.dtype}, KV {self.kv_type}"
        return f"batch={self.batch} q={self.q_len} kv={self.kv_len} {heads} x {size} {' '.join(kinds)} {types}"


def _num_bytes(elements: int, dtype: DType) -> int:
    return -(-elements * dtype.half_bits // HALF_BITS_PER_BYTE)
