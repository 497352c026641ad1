"""A dispatch mode of torch that writes down each operation that runs, with its module, memory and role.

Tables of roles (TORCH.md) go by the name of an operation without namespace, overload and the underscore of an in-place
form. An operation in none of them is elementwise or a reduction where torch tags it so; of others nothing is known.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from gemm_eval.torch.eager_mode import Operation, has_channels_last
from gemm_eval.torch.gradients import eager_works
from gemm_eval.torch.graph import UNROLLED_WINDOW, Access, Call, Domain, Role, Trace, UnpricedWork, Work
from gemm_eval.torch.operators import Precision, convolution_layout, library_works
from gemm_eval.words import needs_extra

with needs_extra("gemm_eval.torch", "torch"):
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode


_FREE = (
    "detach alias lift_fresh lift lift_fresh_copy empty empty_like empty_strided empty_permuted new_empty "
    "new_empty_strided resize set_ is_same_size sym_size sym_stride sym_numel sym_storage_offset size stride "
    "_local_scalar_dense equal is_pinned result_type record_stream _assert_async _assert_tensor_metadata _version "
    "is_contiguous as_strided t_ transpose squeeze unsqueeze swapaxes swapdims data set "
    "_has_compatible_shallow_copy_type"
)
_READ_BY_HOST = frozenset(("_local_scalar_dense", "equal", "is_nonzero"))
FREE = frozenset(_FREE.split())
"""Operations that move no memory on the device, besides views, which are seen by what they return."""

GATHERS = frozenset(("embedding", "index", "gather", "index_select", "take", "take_along_dim", "_unsafe_index"))
"""Of the first tensor only as many elements are read as come out."""

SCATTERS = {
    "index_put": 2, "_unsafe_index_put": 2, "_index_put_impl": 2, "index_copy": 3, "index_add": 3, "scatter": 3,
    "scatter_add": 3, "scatter_reduce": 3, "masked_scatter": 2, "index_fill": 3,
}  # fmt: skip
"""Operations that write as many elements as one of their arguments has, by its position."""

WRITES_ONLY = frozenset(("copy", "fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential"))
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
    "upsample_bicubic2d_backward grid_sampler_2d_backward "
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
    Role.CONSTANT: _CONSTANTS, Role.ELEMENTWISE: f"{_ELEMENTWISE} {_RANDOM} {' '.join(SCATTERS)}",
    Role.REDUCTION: _REDUCTIONS, Role.WINDOW: _WINDOWS, Role.ALONE: _ALONE,
}  # fmt: skip
_ROLES = {name: role for role, words in _ROLE_OF_WORDS.items() for name in words.split()}

Rows = Callable[[Sequence[Any]], int]


def _of_last(args: Sequence[Any], tensor_at: int, shape_at: int) -> int:
    """Return the rows of a norm over the last dimensions, whose sizes are an argument."""
    return int(args[tensor_at].numel() // max(1, math.prod(args[shape_at])))


def _of_dim(args: Sequence[Any], dim_at: int) -> int:
    """Return the rows of a softmax over a dimension, whose number is an argument."""
    return int(args[0].numel() // max(1, args[0].shape[args[dim_at]])) if args[0].dim() else 1


_NORM_ROWS: Mapping[str, Rows] = {
    "native_layer_norm _fused_rms_norm": lambda args: _of_last(args, 0, 1),
    "native_layer_norm_backward _fused_rms_norm_backward": lambda args: _of_last(args, 1, 2),
    "native_group_norm": lambda args: int(args[3] * args[6]),
    "native_group_norm_backward": lambda args: int(args[5] * args[8]),
    "_softmax _log_softmax _safe_softmax": lambda args: _of_dim(args, 1),
    "_softmax_backward_data _log_softmax_backward_data": lambda args: _of_dim(args, 2),
    "native_batch_norm_backward batch_norm_backward": lambda args: int(args[1].shape[1]),
    "cudnn_batch_norm_backward": lambda args: int(args[0].shape[1]),
}
_NORMS = {name: rows for words, rows in _NORM_ROWS.items() for name in words.split()}
_BATCH_NORMS = (
    "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "_batch_norm_impl_index",
    "_native_batch_norm_legit_functional",
)  # fmt: skip
_IS_BATCH_AT = 5  # the position of their flag that says whether statistics are those of the batch


def role_of(
    name: str, tags: Sequence[str], args: Sequence[Any], in_elements: int, out_elements: int
) -> tuple[Role, Domain] | None:
    """Return what an operation is for a compiler, and what it iterates over; None: it is not known.

    `name` and `tags` are those of `_Facts`; `in_elements` and `out_elements` are of its largest tensor read and
    written. Of `args` sizes and strides of tensors are read.
    """
    if name in _NORMS:
        return Role.REDUCTION, Domain(in_elements, max(1, _NORMS[name](args)), _is_inner(name, args))
    if name == "_native_batch_norm_legit_no_training":
        return Role.ELEMENTWISE, Domain(out_elements)
    if name in _BATCH_NORMS:
        if all(map(bool, args[_IS_BATCH_AT:][:1])):
            return Role.REDUCTION, Domain(in_elements, int(args[0].shape[1]), False)
        return Role.ELEMENTWISE, Domain(out_elements)
    if name in SCATTERS:
        source = args[SCATTERS[name]]
        return Role.ELEMENTWISE, Domain(source.numel() if hasattr(source, "numel") else out_elements)
    role = _ROLES.get(name)
    if name in ("max", "min") and len(args) > 1 and hasattr(args[1], "numel"):
        role = Role.ELEMENTWISE  # of two tensors
    if role is None and name.startswith(("_foreach", "_amp_foreach")):
        role = Role.ALONE
    if role is None:
        role = Role.ELEMENTWISE if "pointwise" in tags else Role.REDUCTION if "reduction" in tags else None
    if role is Role.REDUCTION:
        return role, Domain(in_elements, max(1, out_elements), _is_inner(name, args))
    return None if role is None else (role, Domain(out_elements))


def _is_inner(name: str, args: Sequence[Any]) -> bool:
    """Say whether the last dimension or neighbours in memory are summed up, where an argument says which are."""
    if "batch_norm" in name:
        return False
    if name in _NORMS and "softmax" not in name:
        return True
    dims = next(iter(args[2 if name in _DIMS_THIRD else 1 :][:1]), None)
    dims = [dims] if isinstance(dims, int) else dims
    if not isinstance(dims, list | tuple) or not dims or not all(type(dim) is int for dim in dims):
        return True  # all of them
    x = args[0]
    return any(dim in (-1, x.dim() - 1) or (abs(dim) < x.dim() and x.stride(dim) == 1) for dim in dims)


_DIMS_THIRD = ("_softmax_backward_data", "_log_softmax_backward_data", "norm", "linalg_vector_norm")


class _Facts(NamedTuple):
    """Facts of an operator's schema; the name is without overload and the underscore of an in-place form."""

    name: str
    full_name: str
    arguments: tuple[str, ...]
    written: tuple[int, ...]
    tags: tuple[str, ...]
    is_in_place: bool


@lru_cache(maxsize=4096)
def _facts(func: Any) -> _Facts:
    schema = func._schema
    full_name = schema.name.replace("::", ".")
    base = schema.name.split("::")[-1]
    written = tuple(
        at for at, one in enumerate(schema.arguments) if one.alias_info is not None and one.alias_info.is_write
    )
    is_in_place = base.endswith("_") and not base.endswith("__")
    return _Facts(
        base.removesuffix("_") if is_in_place else base, full_name, tuple(one.name for one in schema.arguments),
        written, tuple(str(tag).rpartition(".")[2] for tag in func.tags), is_in_place,
    )  # fmt: skip


def current_precision() -> Precision:
    """Return whether torch, as it is set, runs fp32 as tf32."""
    return Precision(torch.get_float32_matmul_precision() != "highest", bool(torch.backends.cudnn.allow_tf32))


class Recorder(TorchDispatchMode):
    """Writes down every operation that runs within it.

    Attributes:
        trace: what was written down.
        path, last_path: of the module that runs, and of the module that ran the last operation.
        phase: what is said of operations that autograd does not run.
        call_of_mark: place in the trace of what ran under a mark, by its number.
    """

    def __init__(
        self, precision: Precision, run: Callable[[Any, Any, Any], Any] | None = None,
        mark: Callable[[int], AbstractContextManager[Any]] | None = None,
    ) -> None:  # fmt: skip
        """Record with `precision` of fp32.

        `run` runs an operation, and returns the arguments that it ran with, and its result; None: as it was called.
        `mark` makes a context around each operation that may be written down, by its number; None: there is none.
        """
        super().__init__()
        self.trace = Trace()
        self.precision = precision
        self.path = self.last_path = ""
        self.phase = "forward"
        self._run = run
        self._mark = mark
        self._num_marks = 0
        self.call_of_mark: dict[int, int] = {}
        self._num_quiet = 0
        self._buffers: dict[int, int] = {}
        self._storages: list[Any] = []
        self._written: set[int] = set()
        self._path_of_node: dict[int, str] = {}
        self._backward_path = ""
        self._calls_of: dict[Any, Call] = {}

    def buffer_of(self, tensor: Any) -> int:
        """Return the number of a tensor's storage; a weak reference keeps its identity from being given to others."""
        storage = StorageWeakRef(tensor.untyped_storage())
        number = self._buffers.get(storage.cdata)
        if number is None:
            number = self._buffers[storage.cdata] = len(self._storages)
            self._storages.append(storage)
        return number

    def _read(self, tensor: Any) -> Access:
        buffer = self.buffer_of(tensor)
        if buffer not in self._written:
            self.trace.kept.add(buffer)
        return Access(buffer, _seen_bytes(tensor), int(tensor.storage_offset()))

    def _write(self, tensor: Any, num_bytes: int | None = None) -> Access:
        buffer = self.buffer_of(tensor)
        self._written.add(buffer)
        return Access(buffer, _seen_bytes(tensor) if num_bytes is None else num_bytes)

    def finish(self) -> Trace:
        """Return the trace; what is still held somewhere must have been written."""
        self.trace.kept |= {number for number, storage in enumerate(self._storages) if not storage.expired()}
        self._storages.clear()
        self._buffers.clear()
        return self.trace

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Write nothing down: whoever asks for it does so himself, with `add`."""
        self._num_quiet += 1
        try:
            yield
        finally:
            self._num_quiet -= 1

    def add(
        self, name: str, works: tuple[Work, ...], reads: Sequence[Any], writes: Sequence[Any], path: str | None = None,
        phase: str | None = None,
    ) -> None:  # fmt: skip
        """Write down an operation of a library, with the tensors that it reads and writes."""
        domain, where = Domain(sum(tensor.numel() for tensor in writes)), self.path if path is None else path
        read, written = tuple(map(self._read, reads)), tuple(map(self._write, writes))
        self.trace.calls.append(Call(name, where, phase or self.phase, Role.EXTERN, domain, read, written, works))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(not _is_plain(kind) for kind in types):
            return NotImplemented  # a tensor that stands for others: what it runs on these is seen
        self.last_path = self.path
        if func in _COMPOSED and not self._num_quiet:
            with self:
                return _COMPOSED[func](*args, **kwargs)
        with self.marked():
            if self._run is None:
                out = func(*args, **kwargs)
            else:
                args, kwargs, out = self._run(func, args, kwargs)
            if self._num_quiet:
                self._place()  # for nodes of autograd that are made meanwhile
            else:
                self._record(func, args, kwargs, out)
        return out

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Stand around what is written down as one operation."""
        if self._mark is None or self._num_quiet:
            yield
            return
        number, before = self._num_marks, len(self.trace.calls)
        self._num_marks += 1
        with self._mark(number):
            yield
        if len(self.trace.calls) > before:
            self.call_of_mark[number] = len(self.trace.calls) - 1

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        facts = _facts(func)
        inputs, outputs = list(tensors_of((args, kwargs))), list(tensors_of(out))
        if facts.name in _READ_BY_HOST:  # what makes it runs, whatever reads it later
            self.trace.kept |= {self.buffer_of(tensor) for tensor in inputs}
        if not outputs or facts.name in FREE:
            return
        if facts.name in ("_unsafe_view", "_reshape_alias", "view_as_real", "_to_dense"):
            number = self.buffer_of(inputs[0])
            for other in outputs:
                self._buffers[StorageWeakRef(other.untyped_storage()).cdata] = number
            return
        path, phase = self._place()
        known = {self.buffer_of(tensor) for tensor in inputs}
        if not facts.written and all(self.buffer_of(tensor) in known for tensor in outputs):
            return  # a view
        self.trace.calls.append(self._call_like(func, facts, args, kwargs, inputs, outputs, path, phase))

    def _call_like(
        self, func: Any, facts: _Facts, args: Any, kwargs: Any, inputs: list[Any], outputs: list[Any], path: str,
        phase: str,
    ) -> Call:  # fmt: skip
        """Return the operation; what follows from sizes and types alone is that of the last one that had the same."""
        places: dict[int, int] = {}
        same = tuple(places.setdefault(self.buffer_of(tensor), len(places)) for tensor in (*inputs, *outputs))
        key = func, described(args), described(kwargs), described(outputs), same
        try:
            earlier_call = self._calls_of.get(key)
        except TypeError:
            return self._call(facts, args, kwargs, inputs, outputs, path, phase)
        if earlier_call is None:
            call = self._call(facts, args, kwargs, inputs, outputs, path, phase)
            if not facts.written:
                self._calls_of[key] = call
            return call
        full = tuple(args) + tuple(kwargs.values())
        reads, writes = self._accesses(facts, full, inputs, outputs)
        return replace(earlier_call, path=path, phase=phase, reads=reads, writes=writes)

    def _place(self) -> tuple[str, str]:
        """Return module and phase of what runs: autograd's nodes remember where they were made."""
        node = torch._C._current_autograd_node()
        if node is None:
            if self.phase == "backward":  # sums of gradients, between nodes
                return self.path or self._backward_path, "backward"
            if torch.is_grad_enabled():
                self._path_of_node[torch._C._autograd._get_sequence_nr() - 1] = self.path
            return self.path, self.phase
        self._backward_path = self.path or self._path_of_node.get(node._sequence_nr(), "")
        return self._backward_path, "backward"

    def _call(
        self, facts: _Facts, args: Any, kwargs: Any, inputs: list[Any], outputs: list[Any], path: str, phase: str
    ) -> Call:  # fmt: skip
        bound = dict(zip(facts.arguments, args, strict=False)) | kwargs
        full = tuple(bound.get(name) for name in facts.arguments)
        works, eager = library_works(facts.name, facts.full_name, full, bound, outputs[0], self.precision)
        reads, writes = self._accesses(facts, full, inputs, outputs)
        num_out = max(tensor.numel() for tensor in outputs)
        if works is not None:
            layout = convolution_layout(facts.name, full)
            return Call(facts.full_name, path, phase, Role.EXTERN, Domain(num_out), reads, writes, works, eager, layout)
        num_in = max((_num_seen(tensor) for tensor in inputs), default=0)
        result = role_of(facts.name, facts.tags, full, num_in, num_out)
        if result is None:
            num_bytes = sum(access.num_bytes for access in (*reads, *writes))
            unpriced = UnpricedWork(f"no model of {facts.full_name}", num_bytes, _counted_flop(facts, full))
            return Call(facts.full_name, path, phase, Role.EXTERN, Domain(num_out), reads, writes, (unpriced,))
        role, domain = result
        if not reads and role is Role.ELEMENTWISE and facts.name in WRITES_ONLY:
            role = Role.CONSTANT if not set(writes) & self.trace.kept else role
        read_bytes, written_bytes = (sum(access.num_bytes for access in some) for some in (reads, writes))
        eager = eager_works(Operation(facts.name, role, domain, full, inputs, outputs, read_bytes, written_bytes))
        is_last = bool(inputs) and has_channels_last(inputs[0])
        is_no_sum = facts.name == "scatter_reduce" and full[4] != "sum"
        if is_no_sum or (facts.name == "index_add" and outputs[0].dtype is torch.bfloat16):
            role = Role.ALONE  # torch.compile leaves it to eager mode
        sizes = tuple(map(int, outputs[0].shape))
        window, is_apart = _window(facts.name, full, inputs, sizes)
        if is_apart and window > UNROLLED_WINDOW:  # torch.compile adds each up as a row
            role, domain, window = Role.REDUCTION, Domain(num_in, num_out, not is_last), 0
        return Call(facts.full_name, path, phase, role, domain, reads, writes, (), eager, None, is_last, sizes, window)

    def _accesses(
        self, facts: _Facts, args: Sequence[Any], inputs: list[Any], outputs: list[Any]
    ) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        written = [args[at] for at in facts.written if at < len(args)]
        targets, sources = list(tensors_of(written)) if written else outputs, inputs
        limit: int | None = None
        if facts.is_in_place and (facts.name in WRITES_ONLY or facts.name in SCATTERS):
            sources = [tensor for tensor in inputs if tensor is not targets[0]]
            if facts.name in SCATTERS:
                source = args[SCATTERS[facts.name]]
                limit = _seen_bytes(source if isinstance(source, torch.Tensor) else targets[0])
        reads = [self._read(tensor) for tensor in sources]
        if facts.name in GATHERS and reads:
            reads[0] = reads[0]._replace(num_bytes=min(reads[0].num_bytes, _seen_bytes(outputs[0])))
        writes = [self._write(tensor, limit) for tensor in targets]
        return _some(reads), _some(writes)


def _window(name: str, args: Sequence[Any], inputs: Sequence[Any], sizes: Sequence[int]) -> tuple[int, bool]:
    """Return the places that a mean of pooling goes over, 0 of other operations, and whether no two windows overlap."""
    if name == "avg_pool2d":
        stride = [*args[2]] if args[2] else [*args[1]]
        return args[1][0] * args[1][-1], stride == [*args[1]] and not any(args[3] or ())
    if name != "_adaptive_avg_pool2d":
        return 0, False
    sides = [(int(size), part) for size, part in zip(inputs[0].shape[-2:], sizes[-2:], strict=True)]
    is_even = all(size % part == 0 for size, part in sides)
    return math.prod(size // part if is_even else -(-(size + part - 1) // part) for size, part in sides), is_even


def _some(accesses: Iterable[Access]) -> tuple[Access, ...]:
    return tuple(dict.fromkeys(access for access in accesses if access.num_bytes))


def _counted_flop(facts: _Facts, args: Sequence[Any]) -> int:
    """Return the operations that torch counts where no model knows the operation; 0: none."""
    from torch.utils.flop_counter import flop_registry

    namespace, _, name = facts.full_name.partition(".")
    count = flop_registry.get(getattr(getattr(torch.ops, namespace), name))
    return 0 if count is None else int(count(*args, out_val=None))


_MATMUL = torch.ops.aten.matmul.default
_COMPOSED = torch._decomp.get_decompositions([torch.ops.aten._euclidean_dist]) | {_MATMUL: _MATMUL.decompose}
"""Operations that are no kernel, but that no mode sees the parts of, and what these parts call."""


@lru_cache(maxsize=256)
def _is_plain(kind: type) -> bool:
    return kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or kind.__name__ in (
        "FakeTensor", "UninitializedParameter"
    )  # fmt: skip


def tensors_of(value: Any) -> Iterator[Any]:
    """Yield the tensors of a value, in its containers too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(item)


def described(value: Any) -> Any:
    """Return sizes, strides and types of the tensors of a value, in its containers too, and what else is in it."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.storage_offset()
    if isinstance(value, list | tuple):
        return tuple(map(described, value))
    if isinstance(value, dict):
        return tuple((name, described(item)) for name, item in value.items())
    return type(value), value


def _num_seen(tensor: Any) -> int:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(int(size) for size, stride in sizes if stride or not size)


def _seen_bytes(tensor: Any) -> int:
    return int(_num_seen(tensor) * tensor.element_size())
