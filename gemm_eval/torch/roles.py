"""Which operations of torch are elementwise, reductions and so on, and over what they iterate. TORCH.md says the rules.

Tables go by the name of an operation without namespace, overload and the underscore of an in-place form. What stands
in none of them is elementwise or a reduction where torch tags it so; of all others nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemm_eval.torch.graph import Domain, Role

__all__ = ["FREE", "GATHERS", "SCATTERS", "WRITES_ONLY", "role_of"]

_FREE = (
    "detach alias lift_fresh lift lift_fresh_copy empty empty_like empty_strided empty_permuted new_empty "
    "new_empty_strided resize set_ is_same_size sym_size sym_stride sym_numel sym_storage_offset size stride "
    "_local_scalar_dense equal is_pinned result_type record_stream _assert_async _assert_tensor_metadata _version "
    "is_contiguous as_strided t_ transpose squeeze unsqueeze swapaxes swapdims data set "
    "_has_compatible_shallow_copy_type"
)
FREE = frozenset(_FREE.split())
"""Operations that move no memory on the device, besides views, which are seen by what they return."""

_GATHERS = "embedding index gather index_select take take_along_dim _unsafe_index"
GATHERS = frozenset(_GATHERS.split())
"""Of the first tensor only as many elements are read as come out."""

SCATTERS = {
    "index_put": 2, "_unsafe_index_put": 2, "_index_put_impl": 2, "index_copy": 3, "index_add": 3, "scatter": 3,
    "scatter_add": 3, "scatter_reduce": 3, "masked_scatter": 2, "index_fill": 3,
}  # fmt: skip
"""Operations that write as many elements as one of their arguments has, by its position."""

_WRITES_ONLY = "copy fill zero normal uniform random bernoulli exponential"
WRITES_ONLY = frozenset(_WRITES_ONLY.split())
"""In-place forms that do not read what they overwrite."""

_CONSTANTS = (
    "zeros ones full arange linspace eye scalar_tensor zeros_like ones_like full_like new_zeros new_ones new_full"
)
_RANDOM = (
    "rand randn randint rand_like randn_like randint_like normal uniform bernoulli native_dropout random exponential"
)
_ELEMENTWISE = (
    "cat stack clone copy _to_copy to constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad2d roll "
    "flip repeat where masked_fill tril triu fill zero slice_scatter select_scatter slice_backward select_backward "
    "diagonal_scatter as_strided_scatter native_dropout_backward gelu silu hardswish hardsigmoid leaky_relu elu "
    "one_hot gelu_backward silu_backward threshold_backward tanh_backward sigmoid_backward hardswish_backward "
    "hardsigmoid_backward hardtanh_backward leaky_relu_backward elu_backward softplus_backward "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell glu glu_backward polar complex view_as_complex_copy isin "
    "repeat_interleave pixel_shuffle pixel_unshuffle channel_shuffle bucketize searchsorted _reshape_copy "
    "floor_divide remainder fmod view_copy expand_copy permute_copy slice_copy unfold_copy tril_indices triu_indices "
    "unfold_backward dequantize quantize_per_tensor nan_to_num logit mish mish_backward log_sigmoid_forward "
    "log_sigmoid_backward value_selecting_reduction_backward"
)
_REDUCTIONS = (
    "sum mean amax amin max min argmax argmin prod var std var_mean std_mean any all norm linalg_vector_norm logsumexp "
    "count_nonzero nansum aminmax nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits _adaptive_avg_pool2d _adaptive_avg_pool3d cross "
    "adaptive_avg_pool1d dist _weight_norm_interface"
)
_WINDOWS = (
    "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d max_pool2d_with_indices_backward "
    "max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
    "adaptive_max_pool2d fractional_max_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_bicubic2d upsample_linear1d "
    "_upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d im2col "
    "col2im embedding index gather index_select take take_along_dim _unsafe_index nll_loss_backward "
    "nll_loss2d_backward max_unpool2d"
)
_ALONE = (
    "sort topk argsort kthvalue mode median cumsum cumprod cummax cummin logcumsumexp nonzero nonzero_static "
    "masked_select multinomial randperm _unique2 unique_dim unique_consecutive bincount histc embedding_dense_backward "
    "_embedding_bag _embedding_bag_forward_only _cdist_forward _cdist_backward _fused_adam _fused_adamw _fused_sgd "
    "_fused_adagrad"
)
_ROLE_OF_WORDS = {
    Role.CONSTANT: _CONSTANTS,
    Role.ELEMENTWISE: f"{_ELEMENTWISE} {_RANDOM} {' '.join(SCATTERS)}",
    Role.REDUCTION: _REDUCTIONS,
    Role.WINDOW: _WINDOWS,
    Role.ALONE: _ALONE,
}
_ROLES = {name: role for role, words in _ROLE_OF_WORDS.items() for name in words.split()}

Rows = Callable[[Sequence[Any]], int]


def _of_last(shape_at: int, tensor_at: int = 0) -> Rows:
    """Rows of a norm over the last dimensions, whose sizes are an argument."""

    def rows(args: Sequence[Any]) -> int:
        inner: int = math.prod(args[shape_at])
        return int(args[tensor_at].numel()) // max(1, inner)

    return rows


def _of_dim(args: Sequence[Any]) -> int:
    x, dim = args[0], args[1]
    return int(x.numel() // max(1, x.shape[dim])) if x.dim() else 1


def _of_dim_backward(args: Sequence[Any]) -> int:
    x, dim = args[0], args[2]
    return int(x.numel() // max(1, x.shape[dim])) if x.dim() else 1


def _channels(tensor_at: int = 0) -> Rows:
    return lambda args: int(args[tensor_at].shape[1])


_NORMS: Mapping[str, Rows] = {
    "native_layer_norm": _of_last(1),
    "native_layer_norm_backward": _of_last(2, 1),
    "_fused_rms_norm": _of_last(1),
    "_fused_rms_norm_backward": _of_last(2, 1),
    "native_group_norm": lambda args: int(args[3] * args[6]),
    "native_group_norm_backward": lambda args: int(args[5] * args[8]),
    "_softmax": _of_dim,
    "_log_softmax": _of_dim,
    "_safe_softmax": _of_dim,
    "_softmax_backward_data": _of_dim_backward,
    "_log_softmax_backward_data": _of_dim_backward,
    "native_batch_norm_backward": _channels(1),
    "cudnn_batch_norm_backward": _channels(0),
    "batch_norm_backward": _channels(1),
}
_BATCH_NORMS = {  # the position of the flag that says whether statistics are those of the batch
    "native_batch_norm": 5, "_native_batch_norm_legit": 5, "cudnn_batch_norm": 5, "_batch_norm_impl_index": 5,
    "_native_batch_norm_legit_functional": 5,
}  # fmt: skip


def role_of(
    name: str, tags: Sequence[str], args: Sequence[Any], in_elements: int, out_elements: int
) -> tuple[Role, Domain] | None:
    """Return what an operation is for a compiler, and what it iterates over; None: it is not known.

    Args:
        name: without namespace, overload, and the underscore of an in-place form.
        tags: names of torch's tags of it.
        args: as it was called; sizes and strides of tensors are read.
        in_elements, out_elements: of its largest tensor read and written.
    """
    if name in _NORMS:
        return Role.REDUCTION, Domain(in_elements, max(1, _NORMS[name](args)), _is_inner(name, args))
    if name == "_native_batch_norm_legit_no_training":
        return Role.ELEMENTWISE, Domain(out_elements)
    if name in _BATCH_NORMS:
        at = _BATCH_NORMS[name]
        is_training = bool(args[at]) if len(args) > at else True
        return (
            (Role.REDUCTION, Domain(in_elements, int(args[0].shape[1]), False))
            if is_training
            else (Role.ELEMENTWISE, Domain(out_elements))
        )
    if name in SCATTERS:
        at = SCATTERS[name]
        source = args[at]
        return Role.ELEMENTWISE, Domain(source.numel() if hasattr(source, "numel") else out_elements)
    role = _ROLES.get(name)
    if name in ("max", "min") and len(args) > 1 and hasattr(args[1], "numel"):
        role = Role.ELEMENTWISE  # of two tensors
    if role is None and (name.startswith("_foreach") or name.startswith("_amp_foreach")):
        role = Role.ALONE
    if role is None:
        role = Role.ELEMENTWISE if "pointwise" in tags else Role.REDUCTION if "reduction" in tags else None
    if role is None:
        return None
    if role is Role.REDUCTION:
        return role, Domain(in_elements, max(1, out_elements), _is_inner(name, args))
    return role, Domain(out_elements)


def _is_inner(name: str, args: Sequence[Any]) -> bool:
    """Whether the last dimension is summed up, where an argument says which are."""
    if "batch_norm" in name:
        return False
    x = args[0]
    if name in ("_softmax_backward_data", "_log_softmax_backward_data"):
        dims = args[2]
    elif name in _NORMS and "softmax" not in name:
        return True
    elif name in ("norm", "linalg_vector_norm"):
        dims = args[2]
    else:
        dims = args[1] if len(args) > 1 else None
    if isinstance(dims, int):
        dims = [dims]
    if not isinstance(dims, list | tuple) or not dims or not all(type(dim) is int for dim in dims):
        return True  # all of them
    return any(dim in (-1, x.dim() - 1) for dim in dims)
