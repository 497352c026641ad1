"""Operations that are no single GEMM: attention, collectives, memory-bound kernels, layers of experts."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.dtypes import HALF_BITS_PER_BYTE, DType, parse_dtype
from gemm_eval.errors import InvalidProblemError
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import plain_integer, refusal, shown
from gemm_eval.workload.types import GemmTypes, check_size

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
        q_len, kv_len: queries and keys of each sequence, `q_len` <= `kv_len`; full attention may have more queries than
            keys, of another sequence (cross-attention).
        num_kv_heads: KV heads that equal groups of query heads share (MHA: as many; MQA: one).
        dtype: of Q, and what products are computed in: fp16, bf16, or fp8 where queries are quantized. The output is of
            it too, of queries of 8 bits bf16.
        kv_dtype: of K and V in the cache, which may be narrower (fp8, int8, fp4); None: `dtype`.
        v_head_dim: elements of a value; None: `head_dim`.
        causal: a query attends to its own position and those before it; False: to all.
        window: positions that a query attends to at most, its own included; None: all.
        is_latent: values are the first `v_head_dim` elements of the keys, and are not read again: MLA with absorbed
            projections, whose keys are latents of one KV head.
        has_sinks: each head has a learned logit in the sum of its softmax. It takes no time in any model.
        backward: the gradients of Q, K and V from that of the output, instead of the output; 16 bits.

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
    backward: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim"):
            _set(self, name, check_size(name, getattr(self, name)))
        value = self.head_dim if self.v_head_dim is None else check_size("v_head_dim", self.v_head_dim)
        _set(self, "v_head_dim", value)
        for name in ("causal", "is_latent", "has_sinks", "backward"):
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
        if self.backward and (self.is_latent or self.kv_type is not self.dtype):
            raise InvalidProblemError(
                "gradients of attention are of keys and values in the type of the queries, without is_latent; got "
                f"dtype={self.dtype}, kv_dtype={self.kv_dtype}, is_latent={self.is_latent}"
            )
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
        """Operations, a MAC being two, of both products: those that a masked kernel cannot leave out.

        Backward of five: scores again, and the gradients of values, scores, queries and keys.
        """
        macs = 3 * self.head_dim + 2 * self.value_dim if self.backward else self.head_dim + self.value_dim
        return FLOP_PER_MAC * self.batch * self.num_heads * self.num_pairs * macs

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
        """Compulsory bytes: queries, keys, values and output, each once; backward their gradients too."""
        return (self.q_bytes + self.kv_bytes + self.output_bytes) * (2 if self.backward else 1)

    def __str__(self) -> str:
        heads = f"{self.num_heads} heads" if self.group == 1 else f"{self.num_heads}/{self.num_kv_heads} heads"
        size = f"{self.head_dim}" if self.value_dim == self.head_dim else f"{self.head_dim}+{self.value_dim}"
        kinds = ["causal" if self.causal else "full"]
        kinds += [f"window {self.window}"] if self.window else []
        kinds += ["latent"] if self.is_latent else []
        kinds += ["backward"] if self.backward else []
        types = str(self.dtype) if self.kv_type is self.dtype else f"{self.dtype}, KV {self.kv_type}"
        return f"batch={self.batch} q={self.q_len} kv={self.kv_len} {heads} x {size} {' '.join(kinds)} {types}"


def _num_bytes(elements: int, dtype: DType) -> int:
    return -(-elements * dtype.half_bits // HALF_BITS_PER_BYTE)


class MixerKernel(NamedTuple):
    """A kernel of linear or sparse attention: its part of the formula, and its meaning."""

    part: str
    meaning: str


MIXER_KERNELS = {
    "gdn_conv": MixerKernel("conv", "causal convolution of a prompt's queries, keys and values (Gated DeltaNet)"),
    "gdn_conv_update": MixerKernel("conv_update", "the same for one token"),
    "gdn_scan": MixerKernel("scan", "chunked scan of a prompt by the gated delta rule"),
    "gdn_update": MixerKernel("update", "update of the states by one token, gated delta rule"),
    "kda_conv": MixerKernel(
        "conv", "causal convolutions of a prompt's queries, keys and values (Kimi Delta Attention)"
    ),
    "kda_conv_update": MixerKernel("conv_update", "the same for one token"),
    "kda_scan": MixerKernel("scan", "chunked scan of a prompt, a gate for each channel"),
    "kda_update": MixerKernel("update", "update of the states by one token, a gate for each channel"),
    "mamba2_conv": MixerKernel("conv_channels", "causal convolution of a prompt's values and states (Mamba2)"),
    "mamba2_conv_update": MixerKernel("conv_update", "the same for one token"),
    "mamba2_scan": MixerKernel("ssd", "chunked scan of a prompt, one decay for each head (SSD)"),
    "mamba2_update": MixerKernel("update", "update of the states by one token, one decay for each head"),
    "index_scores": MixerKernel("scores", "scores of a lightning indexer, fp8, queries of prompts"),
    "index_scores_paged": MixerKernel("scores_paged", "the same for one token over a paged cache"),
    "index_top_k": MixerKernel("top_k", "choice of the keys with the highest scores"),
    "sparse_mla": MixerKernel("attention", "attention of each query of a prompt to its chosen latents"),
}
"""Kernels that mix tokens by linear attention, or by attention to chosen keys."""

MIXER_STATE_BYTES = {"gdn": 2, "kda": 4, "mamba2": 4}
"""Bytes of an element of a state: vLLM, model_executor/layers/mamba/mamba_utils.py, with 16-bit activations.

Mamba2's are those of `mamba_ssm_cache_dtype` in the files of Nemotron, and SGLang's default.
"""


@dataclass(frozen=True, slots=True)
class MixerProblem:
    """One call of a kernel of linear or sparse attention, for one layer on one device.

    Attributes:
        kernel: one of `MIXER_KERNELS`.
        batch: sequences.
        q_len, kv_len: new tokens of each, and the positions that the last of them attends to; None: as many. States of
            linear attention do not depend on `kv_len`.
        num_heads: heads of values, of which each has a state; of an indexer its query heads.
        key_heads: heads of queries and keys (Mamba2: groups), a divisor of `num_heads`; 1 for an indexer and latents.
        key_dim, value_dim: elements of a key and of a value.
        conv_width: taps of the causal convolution.

    Raises:
        InvalidProblemError: a size is no positive integer, or they do not go together.
    """

    kernel: str
    batch: int
    q_len: int
    num_heads: int
    kv_len: int | None = None
    key_heads: int = 1
    key_dim: int = 128
    value_dim: int = 128
    conv_width: int = 4

    def __post_init__(self) -> None:
        if self.kernel not in MIXER_KERNELS:
            raise InvalidProblemError(refusal("kernel", self.kernel, tuple(MIXER_KERNELS)))
        _set(self, "kv_len", self.q_len if self.kv_len is None else self.kv_len)
        for name in ("batch", "q_len", "kv_len", "num_heads", "key_heads", "key_dim", "value_dim", "conv_width"):
            _set(self, name, check_size(name, getattr(self, name)))
        if self.num_keys < self.q_len:
            raise InvalidProblemError(f"q_len must be <= kv_len = {self.kv_len}, got {self.q_len}: keys include those")
        if self.num_heads % self.key_heads:
            raise InvalidProblemError(f"key_heads must divide num_heads = {self.num_heads}, got {self.key_heads}")

    @property
    def num_keys(self) -> int:
        """Positions that the last new token attends to: `kv_len`, which is filled in."""
        assert self.kv_len is not None
        return self.kv_len

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.num_heads * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of all sequences, without those of the convolution; 0: it has none."""
        elements = self.batch * self.num_heads * self.key_dim * self.value_dim
        return elements * MIXER_STATE_BYTES.get(self.kernel.partition("_")[0], 0)

    def __str__(self) -> str:
        sizes = f"{self.num_heads}/{self.key_heads} heads x {self.key_dim}+{self.value_dim}"
        return f"{self.kernel} batch={self.batch} q={self.q_len} kv={self.kv_len} {sizes}"


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""Names of the collectives, and of a message to one device."""

MAX_MESSAGE_BYTES = 1 << 50
"""Largest message of a device."""

MAX_RANKS = 1 << 17
"""Most devices that exchange messages."""


_REDUCED = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class CollectiveProblem:
    """A collective, or a message to one device, between devices that each hold equally many bytes.

    `message_bytes` is what one device gives:

    - ``all_reduce``: the whole array that it adds; each device ends with the sum.
    - ``reduce_scatter``: the whole array that it adds; each device ends with 1/num_ranks of the sum.
    - ``all_gather``: what it contributes; each device ends with num_ranks times as much.
    - ``all_to_all``: what it sends in all, the share that it keeps (1/num_ranks) included.
    - ``send``: what one device sends to one other; num_ranks is 2.

    Devices that take part are `num_ranks`; 1: nothing is sent. `dtype` matters for sums only: switches add up 16 and 32
    bits, and no narrower ones.

    Ranks may lie in several nodes, `ranks_per_node` in each; None: as many as the link of the arch joins.
    `network_bytes` are those of an ``all_to_all`` of tokens to experts that leave the device's node, where a token goes
    once to each other node that has experts of it; None: each copy is sent by itself.

    Raises:
        InvalidProblemError: no such operation, a size that is no positive integer or too large, a send of many, ranks
            that nodes do not divide, or `network_bytes` of another operation or above the message.
    """

    what: str
    message_bytes: int
    num_ranks: int
    dtype: DType = DType.BF16
    ranks_per_node: int | None = None
    network_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.what not in COLLECTIVES:
            raise InvalidProblemError(refusal("what", self.what, COLLECTIVES))
        self._check_integers(("message_bytes", 1, MAX_MESSAGE_BYTES), ("num_ranks", 1, MAX_RANKS))
        if self.what == "send" and self.num_ranks > 2:
            raise InvalidProblemError(f"num_ranks of a send must be 2, or 1 for none, got {self.num_ranks}")
        _set(self, "dtype", parse_dtype(self.dtype))
        if self.ranks_per_node is not None:
            self._check_integers(("ranks_per_node", 1, MAX_RANKS))
        if self.network_bytes is not None:
            self._check_integers(("network_bytes", 0, self.message_bytes))
        per_node = self.ranks_per_node
        if per_node is not None and per_node < self.num_ranks and self.num_ranks % per_node:
            raise InvalidProblemError(f"ranks_per_node must divide num_ranks = {self.num_ranks}, got {per_node}")
        if self.network_bytes is not None and self.what != "all_to_all":
            raise InvalidProblemError(f"network_bytes are of an all_to_all, got {self.what}")

    def _check_integers(self, *ranges: tuple[str, int, int]) -> None:
        for name, least, most in ranges:
            value = plain_integer(getattr(self, name))
            if value is None or not least <= value <= most:
                given = shown(getattr(self, name))
                raise InvalidProblemError(f"{name} must be an integer in {least}..{most:,}, got {given}")
            _set(self, name, value)

    def __str__(self) -> str:
        nodes = "" if self.ranks_per_node is None else f" in nodes of {self.ranks_per_node}"
        return f"{self.what} of {self.message_bytes:,} bytes, {self.num_ranks} ranks{nodes}"

    @property
    def buffer_bytes(self) -> int:
        """The larger of what a device has before and after: of an all-gather what it ends with, else the message."""
        return self.message_bytes * (self.num_ranks if self.what == "all_gather" else 1)

    @property
    def wire_bytes(self) -> float:
        """Bytes that a device at least sends to others, where nothing adds up on the way."""
        others, ranks = self.num_ranks - 1, self.num_ranks
        if self.what == "send":
            return float(self.message_bytes * others)
        passes = 2 if self.what == "all_reduce" else 1
        return passes * others * self.buffer_bytes / ranks

    @property
    def is_sum(self) -> bool:
        """True where elements are added up."""
        return self.what in _REDUCED


ENGINES = "engines"
"""Kernels that are written for serving engines: 16 bytes a load."""

TORCH = "torch"
"""Kernels of PyTorch's eager mode."""


class MemoryKernel(NamedTuple):
    """The way in which a memory-bound kernel goes over its rows.

    Attributes:
        trips: to memory and back that a row takes one after the other, where it is alone: loads, and sums of a CTA;
            below 0: it reads nothing, and the node of a graph has a trip that it does not take.
        loads: the same, of a thread that handles 16 bytes of each tensor, where all SMs are full.
        row_threads: of a row; 0: one for every 16 bytes of it.
        is_dealt: elements are dealt to all SMs; else each row is one CTA's.
        element_trips, element_loads: trips and loads for each element of a thread, on top.
    """

    trips: float = 1.0
    loads: float = 1.0
    row_threads: int = 0
    is_dealt: bool = False
    element_trips: float = 0.0
    element_loads: float = 0.0
    library: str = ENGINES


def _of_torch(
    trips: float, loads: float, row_threads: int, per_element: tuple[float, float] = (0.0, 0.0), *,
    is_dealt: bool = True,
) -> MemoryKernel:  # fmt: skip
    return MemoryKernel(trips, loads, row_threads, is_dealt, *per_element, library=TORCH)


_NORM = MemoryKernel(trips=1.5, loads=2)  # the sum of a row comes between; weights come while a residual does
_POSITIONS = MemoryKernel(trips=2, loads=1.2)  # queries and keys have angles to wait for, values have not
_KERNELS = {
    "act": MemoryKernel(), "act_mul": MemoryKernel(), "rms_norm": _NORM, "layer_norm": _NORM, "add_rms_norm": _NORM,
    "add_layer_norm": _NORM, "rotary_kv_write": _POSITIONS, "rotary": _POSITIONS,
    "qk_norm": MemoryKernel(trips=2.5, loads=0.8),  # heads of a row one after the other, by some 256 threads
    "kv_write": MemoryKernel(),
    "gather": MemoryKernel(loads=2),  # the place of a row, then the row
    "permute": MemoryKernel(loads=5),  # a row is stored at the places of all choices
    "weighted_sum": MemoryKernel(trips=2, loads=2),
    "top_k": MemoryKernel(trips=7, loads=5, row_threads=32),  # a warp picks one choice after the other
    "cast": MemoryKernel(trips=4, loads=2.5, is_dealt=True),  # PyTorch's: elements one by one, as types differ
    "sort": MemoryKernel(trips=6, loads=5, row_threads=2),  # counts, places in a CTA, places of CTAs, stores
    # PyTorch's, by what runs (torch/eager_mode.py); rows of 1,024 elements where they do not matter
    "torch_vector": _of_torch(0.1, 0.4, 128),  # 16 bytes a thread, of one type and order; rows of 2,048 bytes
    "torch_constant": _of_torch(-0.4, 0.43, 128),  # likewise, and nothing is read
    "torch_exp": _of_torch(0.44, 0.67, 128),  # likewise, and an exponential, a root or a sine
    "torch_gelu": _of_torch(0.4, 0.92, 128),  # likewise, and an error function
    "torch_cast": _of_torch(2, 1.2, 256),  # four elements a thread, one by one, as types differ
    "torch_offsets": _of_torch(1.4, 1.1, 256),  # likewise, with divisions to find each: broadcasts and strides
    "torch_offsets_wide": _of_torch(0.61, 0.61, 512),  # of 4 bytes: two elements a thread
    "torch_scattered": _of_torch(1.8, 2.7, 256),  # likewise, neighbours far apart in memory
    "torch_roll": _of_torch(0.8, 0.43, 1024),
    "torch_cat": _of_torch(2.6, 1.8, 256),  # of tensors with gaps
    "torch_layer_norm": _of_torch(1.9, 0.87, 128, (0.16, 0.16), is_dealt=False),
    "torch_norm_rows": _of_torch(1, 0.27, 256),  # of rows whose moments are known
    "torch_rms_norm": _of_torch(1.2, 0.45, 128, (0.11, 0.083), is_dealt=False),
    "torch_layer_norm_wide": _of_torch(1.5, 1.1, 128, (0.42, 0.22), is_dealt=False),  # of 4 bytes
    "torch_rms_norm_wide": _of_torch(1.9, 0.62, 128, (0.069, 0.11), is_dealt=False),
    "torch_softmax": _of_torch(0.1, 0.16, 32, (0.08, 0.165)),  # a warp, its row in registers
    "torch_softmax_cta": _of_torch(2.5, 0.1, 1024, (0.42, 0.38), is_dealt=False),
    "torch_softmax_long": _of_torch(1, 0.1, 1024, (0.2, 0.2), is_dealt=False),  # likewise, read again from L1 or L2
    "torch_sum": _of_torch(1.4, 0.67, 32, (0.057, 0.062)),  # a warp for each row
    "torch_sum_cta": _of_torch(1.4, 0.66, 512, (0.06, 0.065)), "torch_sum_max": _of_torch(2.8, 0.95, 32, (0.06, 0.075)),
    "torch_sum_arg": _of_torch(3.5, 1.2, 32, (0.08, 0.095)),  # the place of the largest
    "torch_sum_shared": _of_torch(6, 0.66, 32, (0.06, 0.065)),  # the last CTA of several adds up what they wrote
    "torch_sum_apart": _of_torch(1.4, 0.67, 32, (0.17, 0.15)),  # over dimensions apart, of a bias's gradient
    "torch_columns_shared": _of_torch(8, 0.66, 32, (0.07, 0.07)),
    "torch_parts": _of_torch(-2, 0, 32, (0.42, 0)),  # likewise, a thread of the last CTA for many
    "torch_moments": _of_torch(2.2, 0.95, 512, (0.27, 0.23), is_dealt=False),
    "torch_norm_gradient": _of_torch(1.2, 0.65, 128, (0.1, 0.11), is_dealt=False),
    "torch_norm_weights": _of_torch(1, 0, 32, (0.135, 0)),  # the gradient, a CTA for all rows
    "torch_batch_norm_gradient": _of_torch(2, 0.7, 512, (0.55, 0.2), is_dealt=False),
    "torch_scales": _of_torch(0.84, 0.9, 1024),  # of group norm: a factor and a sum for each channel
    "torch_batch_norm": _of_torch(0.55, 0.55, 32, (0.26, 0.15)),
    "torch_batch_norm_far": _of_torch(0.55, 0.6, 32, (0.26, 0.165)),  # from DRAM, as others of this name
    "torch_batch_norm_last": _of_torch(2.8, 0.43, 256),  # channels side by side
    "torch_max_pool": _of_torch(2.5, 1.8, 1024), "torch_avg_pool": _of_torch(2.7, 1.3, 1024),
    "memcpy": _of_torch(0, 0.55, 128),  # the driver's, in pieces of 512 bytes; of other sizes it is slow
    "memcpy_odd": _of_torch(7, 0.6, 128), "torch_cat_contiguous": _of_torch(0, 1.1, 256),
    "torch_offsets_cast": _of_torch(2.4, 1.7, 256),  # as offsets, of several types
    "torch_gather": _of_torch(0.7, 1, 64, is_dealt=True),  # a CTA for each row, of which an SM runs 32
    "torch_index": _of_torch(4.3, 2.1, 256),  # an index for each element
    "torch_gather_elements": _of_torch(4.7, 1.4, 256), "torch_scatter_add": _of_torch(3, 2, 256),
    "torch_index_add": _of_torch(1, 3.4, 256), "torch_columns": _of_torch(2, 0.9, 32, (0.07, 0.06)),
    "torch_columns_arg": _of_torch(1.8, 0.84, 32, (0.45, 0.082)),
    "torch_columns_max": _of_torch(1.4, 0.66, 32, (0.35, 0.065)), "torch_nll_loss": _of_torch(0.5, 0, 32, (0.8, 0)),
    "torch_adaptive_pool": _of_torch(2.2, 0.54, 256, (0, 0.58)),
    "torch_adaptive_pool_last": _of_torch(1, 0, 32, (0.26, 0)), "torch_im2col": _of_torch(0, 0, 32, (0.325, 0)),
    "torch_batch_norm_loop": _of_torch(10, 4, 256),  # of any strides
    "torch_statistics": _of_torch(2.4, 0.96, 512, (0.3, 0.15), is_dealt=False),
    "torch_transform_last": _of_torch(0.5, 0, 512, (0.16, 0.12)),
    "torch_statistics_last": _of_torch(6, 0.93, 512, (0.12, 0.26)), "cudnn_batch_norm_last": _of_torch(6, 1.3, 256),
    "cudnn_batch_norm_training": _of_torch(0.4, 2, 512, (0.24, 0.12), is_dealt=False),
    "torch_bilinear_last": _of_torch(1, 1, 1024), "torch_bicubic": _of_torch(1, 0, 32, (0, 0.3)),
    "torch_avg_pool_last": _of_torch(2.7, 2.5, 1024), "torch_max_pool_last": _of_torch(3, 0, 32, (0, 2.05)),
    "torch_scan": _of_torch(1, 0, 32, (0.23, 0)), "torch_scan_rows": _of_torch(2, 2, 256),
    "torch_topk": _of_torch(2.5, 5.1, 32, (5.3, 0)),
    "torch_digits": _of_torch(1, 0, 32, (0, 0.265)),  # counted in shared memory, one by one
    "torch_digit_sums": _of_torch(1, 0.6, 256), "torch_sort_warp": _of_torch(4, 5, 32),
    "torch_sort_rows": _of_torch(1.3, 2.4, 32, (0.5, 0.2)), "torch_sort_pass": _of_torch(6, 2, 256),
    "torch_bilinear": _of_torch(1, 0, 32, (0.22, 0.02)),  # a thread for a position in all images and channels
    # kernels of torch.compile (torch/compiled_mode.py)
    "inductor_map": _of_torch(0, 0, 32),
    "inductor_rows": _of_torch(0.6, 0, 32),  # sums that a CTA holds, or of columns
    "inductor_long_rows": _of_torch(1, 0, 32),  # rows that it reads in pieces
    "memset": _of_torch(0, 0.4, 128),
    "cudnn_layout": _of_torch(0.42, 0.61, 256),  # channels first to channels last and back, by tiles of 32 x 32
    "cudnn_pad": _of_torch(0.8, 0.45, 256),  # channels filled up to 16 bytes, and taken out
    "cudnn_transform": _of_torch(14, 0, 1),  # filters of any order, by few CTAs
    "cudnn_transform_all": MemoryKernel(28, 4.2, 256, is_dealt=True),  # likewise, of all operands; on no table
    "torch_bias": _of_torch(1, 1.07, 256),  # of channels, in place: four elements a thread with their divisions
    "torch_bias_last": _of_torch(1, 0.88, 256), "torch_bias_far": _of_torch(1, 1.33, 256),
    "torch_bias_last_far": _of_torch(1, 1.18, 256),
}  # fmt: skip
_OTHER = MemoryKernel(trips=3, is_dealt=True)


_LOADS_OF_INSTRUCTION = 0.0032  # 128 lanes of an SM a cycle, beside a wave of 2,048 threads


def memory_kernel(what: str) -> MemoryKernel:
    """Return how a kernel of this name goes over its rows; of another name, that its elements are dealt.

    A number behind the name, as in ``"torch_offsets 86"``, are instructions of a thread for each element.
    """
    name, _, instructions = what.partition(" ")
    kernel = _KERNELS.get(name, _OTHER)
    if not instructions:
        return kernel
    return kernel._replace(loads=0.0, element_loads=int(instructions) * _LOADS_OF_INSTRUCTION)


Sizes = int | npt.NDArray[np.int64]

LAYER_TERMS = ("routing_us", "permute_us", "quantize_us", "activation_us", "finalize_us")
"""Terms of a layer's time besides its GEMMs, in the order they run: `finalize_us` is the sum over experts."""


class MoeWork(NamedTuple):
    """The work of one rank in a layer of experts; sizes are numbers or arrays of one shape, one value for each draw.

    Attributes:
        num_tokens: tokens that all ranks of the expert-parallel group see together.
        inter: intermediate width of an expert on this rank: that of the model over the tensor-parallel degree.
        num_local_experts: those of this rank.
        topk: experts of a token.
        local_rows: assignments (token, expert) on this rank.
        num_active, most_rows: experts of this rank that have tokens, and rows of the one that has most.
        gated: gate and up projection; else up alone.
        types: of both GEMMs.
        has_grouped_router: whether groups of experts are chosen before experts, as DeepSeek-V3 does.
    """

    num_tokens: Sizes
    hidden: Sizes
    inter: Sizes
    num_experts: Sizes
    num_local_experts: Sizes
    topk: Sizes
    local_rows: Sizes
    num_active: Sizes
    most_rows: Sizes
    gated: bool | Sizes
    types: GemmTypes
    has_grouped_router: bool | Sizes = False

    @property
    def is_quantized(self) -> bool:
        """True where both activations are made narrower, because the GEMMs read fewer than 16 bits."""
        return self.types.a.dtype.bits < 16

    @property
    def wide_bytes(self) -> float:
        """Bytes of an element of activations between kernels: as in A, or 2 where the GEMMs read it narrower."""
        return max(2.0, self.types.a.dtype.bits / 8)

    @property
    def input_bytes(self) -> float:
        """Bytes of an element of A as a GEMM reads it, with its share of the scales."""
        scale = self.types.a.scale
        scale_bits = 0.0 if scale is None or scale.group_size is None else scale.group_bits / scale.group_size
        return (self.types.a.dtype.bits + scale_bits) / 8

    @property
    def local_tokens(self) -> npt.NDArray[np.float64]:
        """Tokens that this rank holds at least one assignment of, at most: each assignment's own, but none twice."""
        return np.minimum(self.local_rows, self.num_tokens).astype(np.float64)
