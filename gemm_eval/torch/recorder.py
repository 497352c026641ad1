"""What runs, operation by operation: a dispatch mode of torch that writes down each, with its module and its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

from gemm_eval.extras import needs_extra
from gemm_eval.torch.attention import kernel_attention_works
from gemm_eval.torch.convolutions import convolution_works
from gemm_eval.torch.custom_ops import custom_works
from gemm_eval.torch.eager_mode import Operation, eager_works
from gemm_eval.torch.graph import Access, Call, Domain, Role, Trace
from gemm_eval.torch.matmuls import Precision, matmul_works
from gemm_eval.torch.roles import FREE, GATHERS, SCATTERS, WRITES_ONLY, role_of
from gemm_eval.torch.work import UnpricedWork, Work

with needs_extra("gemm_eval.torch", "torch"):
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Recorder", "current_precision"]

_BACKWARD = "backward"


class _Facts(NamedTuple):
    """What an operator's schema says.

    Attributes:
        name: without overload and the underscore of an in-place form.
        full_name: with its namespace.
        arguments: their names.
        written: positions of arguments that it writes.
        tags: names of its tags.
        is_in_place: it writes its first argument.
    """

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
        base.removesuffix("_") if is_in_place else base,
        full_name,
        tuple(one.name for one in schema.arguments),
        written,
        tuple(str(tag).rpartition(".")[2] for tag in func.tags),
        is_in_place,
    )


def current_precision() -> Precision:
    """Whether torch, as it is set, runs fp32 as tf32."""
    return Precision(torch.get_float32_matmul_precision() != "highest", bool(torch.backends.cudnn.allow_tf32))


class Recorder(TorchDispatchMode):
    """Writes down every operation that runs within it.

    Args:
        precision: of fp32.
        run: runs an operation, and returns the arguments that it ran with, and its result; None: as it was called.
        mark: makes a context around each operation that may be written down, by its number; None: there is none.

    Attributes:
        trace: what was written down.
        path: of the module that runs.
        last_path: of the module that ran the last operation.
        phase: what is said of operations that autograd does not run.
        call_of_mark: place in the trace of what ran under a mark, by its number.
    """

    def __init__(
        self, precision: Precision, run: Callable[[Any, Any, Any], Any] | None = None,
        mark: Callable[[int], AbstractContextManager[Any]] | None = None,
    ) -> None:  # fmt: skip
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

    # ---- memory ----------------------------------------------------------------------------------------------------

    def buffer_of(self, tensor: Any) -> int:
        """Number of the storage of a tensor. A weak reference keeps its identity from being given to another one."""
        storage = StorageWeakRef(tensor.untyped_storage())
        number = self._buffers.get(storage.cdata)
        if number is None:
            number = self._buffers[storage.cdata] = len(self._storages)
            self._storages.append(storage)
        return number

    def _read(self, tensor: Any, num_bytes: int | None = None) -> Access:
        buffer = self.buffer_of(tensor)
        if buffer not in self._written:
            self.trace.kept.add(buffer)
        return Access(buffer, _seen_bytes(tensor) if num_bytes is None else num_bytes)

    def _write(self, tensor: Any, num_bytes: int | None = None) -> Access:
        buffer = self.buffer_of(tensor)
        self._written.add(buffer)
        return Access(buffer, _seen_bytes(tensor) if num_bytes is None else num_bytes)

    def finish(self) -> Trace:
        """Return the trace; what is still held somewhere must have been written."""
        alive = {number for number, storage in enumerate(self._storages) if not storage.expired()}
        self.trace.kept |= alive
        self._storages.clear()
        self._buffers.clear()
        return self.trace

    # ---- what runs -------------------------------------------------------------------------------------------------

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
        elements = sum(tensor.numel() for tensor in writes)
        read = tuple(self._read(tensor) for tensor in reads)
        written = tuple(self._write(tensor) for tensor in writes)
        where = self.path if path is None else path
        self.trace.calls.append(
            Call(name, where, phase or self.phase, Role.EXTERN, Domain(elements), read, written, works)
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(not _is_plain(kind) for kind in types):
            return NotImplemented  # a tensor that stands for others: what it runs on these is seen
        self.last_path = self.path
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
    def _marked(self) -> Iterator[None]:
        assert self._mark is not None
        number, before = self._num_marks, len(self.trace.calls)
        self._num_marks += 1
        with self._mark(number):
            yield
        if len(self.trace.calls) > before:
            self.call_of_mark[number] = len(self.trace.calls) - 1

    def marked(self) -> AbstractContextManager[None]:
        """Stand around what is written down as one operation."""
        return nullcontext() if self._mark is None or self._num_quiet else self._marked()

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        facts = _facts(func)
        inputs, outputs = list(_tensors((args, kwargs))), list(_tensors(out))
        if not outputs or facts.name in FREE:
            return
        if facts.name in ("_unsafe_view", "_reshape_alias", "view_as_real", "_to_dense"):
            self._alias(inputs[0], outputs)
            return
        path, phase = self._place()
        known = {self.buffer_of(tensor) for tensor in inputs}
        if not facts.written and all(self.buffer_of(tensor) in known for tensor in outputs):
            return  # a view
        self.trace.calls.append(self._call(facts, args, kwargs, inputs, outputs, path, phase))

    def _alias(self, tensor: Any, others: Sequence[Any]) -> None:
        number = self.buffer_of(tensor)
        for other in others:
            self._buffers[StorageWeakRef(other.untyped_storage()).cdata] = number

    def _place(self) -> tuple[str, str]:
        """Module and phase of what runs: autograd's nodes remember where they were made."""
        node = torch._C._current_autograd_node()
        if node is None:
            if self.phase == _BACKWARD:  # sums of gradients, between nodes
                return self.path or self._backward_path, _BACKWARD
            if torch.is_grad_enabled():
                self._path_of_node[torch._C._autograd._get_sequence_nr() - 1] = self.path
            return self.path, self.phase
        self._backward_path = self.path or self._path_of_node.get(node._sequence_nr(), "")
        return self._backward_path, _BACKWARD

    def _call(
        self, facts: _Facts, args: Any, kwargs: Any, inputs: list[Any], outputs: list[Any], path: str, phase: str
    ) -> Call:  # fmt: skip
        bound = dict(zip(facts.arguments, args, strict=False)) | kwargs
        full = tuple(bound.get(name) for name in facts.arguments)
        works = matmul_works(facts.name, full, outputs[0], self.precision)
        eager: tuple[Work, ...] = ()
        if works is None:
            works, eager = convolution_works(facts.name, full, outputs[0], self.precision)
        if works is None:
            works = kernel_attention_works(facts.name, bound, self.precision)
        if works is None:
            works = custom_works(facts.full_name, bound, self.precision)
        reads, writes = self._accesses(facts, full, inputs, outputs)
        num_out = max(tensor.numel() for tensor in outputs)
        if works is not None:
            return Call(facts.full_name, path, phase, Role.EXTERN, Domain(num_out), reads, writes, works, eager)
        num_in = max((_num_seen(tensor) for tensor in inputs), default=0)
        found = role_of(facts.name, facts.tags, full, num_in, num_out)
        if found is None:
            num_bytes = sum(access.num_bytes for access in (*reads, *writes))
            unpriced = UnpricedWork(f"no model of {facts.full_name}", num_bytes, _counted_flop(func_of(facts), full))
            return Call(facts.full_name, path, phase, Role.EXTERN, Domain(num_out), reads, writes, (unpriced,))
        role, domain = found
        if not reads and role is Role.ELEMENTWISE and facts.name in WRITES_ONLY:
            role = Role.CONSTANT if not set(writes) & self.trace.kept else role
        read_bytes, written_bytes = (sum(access.num_bytes for access in some) for some in (reads, writes))
        eager = eager_works(Operation(facts.name, role, domain, full, inputs, outputs, read_bytes, written_bytes))
        return Call(facts.full_name, path, phase, role, domain, reads, writes, eager=eager)

    def _accesses(
        self, facts: _Facts, args: Sequence[Any], inputs: list[Any], outputs: list[Any]
    ) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        """Memory read and written, each tensor once."""
        written = [args[at] for at in facts.written if at < len(args)]
        targets = list(_tensors(written)) if written else outputs
        sources = inputs
        limit: int | None = None
        if facts.is_in_place and facts.name in WRITES_ONLY:
            sources = [tensor for tensor in inputs if tensor is not targets[0]]
        if facts.name in SCATTERS:
            source = args[SCATTERS[facts.name]]
            limit = _seen_bytes(source) if isinstance(source, torch.Tensor) else _seen_bytes(targets[0])
            if facts.is_in_place:
                sources = [tensor for tensor in inputs if tensor is not targets[0]]
        reads = tuple(self._read(tensor) for tensor in sources)
        if facts.name in GATHERS and reads and facts.name not in SCATTERS:
            first = reads[0]
            reads = (first._replace(num_bytes=min(first.num_bytes, _seen_bytes(outputs[0]))), *reads[1:])
        in_place_limit = limit if facts.is_in_place else None
        writes = tuple(self._write(tensor, in_place_limit) for tensor in targets)
        return _some(reads), _some(writes)


def _some(accesses: Iterable[Access]) -> tuple[Access, ...]:
    """Each once, without empty tensors."""
    return tuple(dict.fromkeys(access for access in accesses if access.num_bytes))


def func_of(facts: _Facts) -> Any:
    """The operator packet of these facts."""
    namespace, _, name = facts.full_name.partition(".")
    return getattr(getattr(torch.ops, namespace), name)


def _counted_flop(packet: Any, args: Sequence[Any]) -> int:
    """What torch counts for an operation that no model knows; 0: nothing."""
    from torch.utils.flop_counter import flop_registry

    known = flop_registry.get(packet)
    return 0 if known is None else int(known(*args, out_val=None))


@lru_cache(maxsize=256)
def _is_plain(kind: type) -> bool:
    return kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or kind.__name__ in (
        "FakeTensor", "UninitializedParameter"
    )  # fmt: skip


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _num_seen(tensor: Any) -> int:
    number = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not size:
            number *= int(size)
    return number


def _seen_bytes(tensor: Any) -> int:
    return int(_num_seen(tensor) * tensor.element_size())
