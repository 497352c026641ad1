"""Kernels as Inductor itself makes them, on a machine without a GPU: `fusion="inductor-ir"`. TORCH.md has the rules.

Dynamo, AOTAutograd and Inductor run on fake tensors of a GPU that is not there, up to Inductor's scheduler. Nothing is
compiled. What they ask of a GPU is answered from its `GpuSpec`, within `fake_gpu` alone.
"""

import ctypes
import math
import os
import re
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

from gemm_eval.arch import GpuSpec, check_nvidia
from gemm_eval.errors import UnsupportedError
from gemm_eval.torch.compiled_mode import SCAN_INSTRUCTIONS, kernel_work, map_work, padded_bias, without_bias
from gemm_eval.torch.eager_mode import has_channels_last
from gemm_eval.torch.fusion import Kernel
from gemm_eval.torch.graph import Call, Domain, Role, Trace, UnpricedWork, Work
from gemm_eval.torch.operators import is_fused
from gemm_eval.torch.recorder import Recorder, current_precision
from gemm_eval.words import needs_extra

with needs_extra('fusion="inductor-ir"', "torch"):
    import torch
    from torch._subclasses import fake_tensor
    from torch.nn.utils import stateless
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

_REGISTRY, _NUM_DEVICE_TYPES, _CUDA, _META = "_ZN3c104impl26device_guard_impl_registryE", 20, 1, 14
"""Guards of devices in libc10, by `c10::DeviceType`: with a build for CPUs, CUDA has none."""


# ---- a GPU that is not there ---------------------------------------------------------------------------------------


@contextmanager
def fake_gpu(arch: GpuSpec) -> Iterator[None]:
    """Let torch, Inductor and Triton take this for a machine with a GPU; other threads must not use torch meanwhile."""
    from torch._inductor.runtime.hints import DeviceProperties

    with needs_extra('fusion="inductor-ir"', "triton"):
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver

    number = int("".join(filter(str.isdigit, arch.sm_arch)))
    capability = divmod(number, 10)
    properties = types.SimpleNamespace(
        name=arch.name, major=capability[0], minor=capability[1], multi_processor_count=arch.num_sms,
        shared_memory_per_block=48 << 10, shared_memory_per_block_optin=arch.smem_per_cta_bytes,
        regs_per_multiprocessor=arch.registers_per_sm, warp_size=arch.threads_per_warp, total_memory=arch.dram_bytes,
        max_threads_per_multi_processor=arch.max_threads_per_sm, gcnArchName="", is_integrated=0,
        L2_cache_size=arch.l2_bytes,
    )  # fmt: skip
    known = vars(properties) | {"type": "cuda", "index": 0, "cc": number, "max_threads_per_block": 1024}
    device = DeviceProperties(**{key: known[key] for key in DeviceProperties._fields if key in known})
    answers = {
        "is_available": True, "get_device_properties": properties, "get_device_capability": capability,
        "current_device": 0, "device_count": 1, "get_device_name": arch.name, "is_initialized": True,
        "_lazy_init": None, "synchronize": None, "is_bf16_supported": True, "_exchange_device": 0,
        "_maybe_exchange_device": 0, "get_rng_state": torch.empty(0), "set_rng_state": None,
    }  # fmt: skip
    smem = {"max_shared_mem": arch.smem_per_cta_bytes}
    triton_driver = types.SimpleNamespace(
        utils=types.SimpleNamespace(get_device_properties=lambda _: smem), get_current_device=lambda: 0,
        get_current_target=lambda: GPUTarget("cuda", number, arch.threads_per_warp),
        get_active_torch_device=lambda: torch.device("cuda", 0),
    )  # fmt: skip
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch(f"torch.cuda.{name}", return_value=answer))
        stack.enter_context(mock.patch.object(DeviceProperties, "create", return_value=device))
        stack.enter_context(mock.patch.object(driver, "_active", triton_driver, create=True))
        if hasattr(fake_tensor, "init_gpu_context"):
            stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", return_value=None))
        # Triton 3.9 warns where nothing says what the next one's default will be
        stack.enter_context(mock.patch.dict(os.environ, {"TRITON_DEFAULT_FP_FUSION": "1"}))
        yield


@contextmanager
def _guards_of_meta() -> Iterator[None]:
    """Guard the devices of CUDA tensors as those of "meta" are, which do nothing."""
    libraries = [*(Path(torch.__file__).parent / "lib").glob("libc10.*")]
    try:
        guards = (ctypes.c_void_p * _NUM_DEVICE_TYPES).in_dll(ctypes.CDLL(str(libraries[0])), _REGISTRY)
    except (IndexError, OSError, ValueError) as error:
        raise UnsupportedError(
            f'fusion="inductor-ir" needs torch\'s table of device guards, which this build lacks: {error}'
        ) from None
    before = guards[_CUDA]
    guards[_CUDA] = guards[_META]
    try:
        yield
    finally:
        guards[_CUDA] = before


class _OnCpu(TorchDispatchMode):
    """Makes new tensors on the CPU: constants of one element that Inductor folds."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return func(*args, **(kwargs | {"device": torch.device("cpu")} if kwargs.get("device") else kwargs))


_attention = torch.nn.functional.scaled_dot_product_attention


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _is_fused(dtype: Any, is_causal: bool, *tensors: Any) -> bool:
    """Return True if a GPU has a fused kernel for attention of tensors given as sizes, strides and type."""
    q, k, v, mask = (
        None if each is None else torch.empty_strided(*each, dtype=dtype, device="meta") for each in tensors
    )
    return is_fused(q, k, v, mask, is_causal)


def _scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention as one operation where a GPU has a kernel for it: torch's own choice needs the GPU."""
    tensors = (None if each is None else (each.size(), each.stride()) for each in (query, key, value, attn_mask))
    if not _is_fused(query.dtype, is_causal, *tensors):
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    names = "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"
    kernel = getattr(torch.ops.aten, names[query.dtype != torch.float32])
    return kernel(query, key, value, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale)[0]


def _memory_format(x: Any, weight: Any, backend: Any) -> Any:
    """Return the memory format of a convolution's result: channels last if an operand has it, as cuDNN decides."""
    del backend
    if any(map(has_channels_last, (x, weight))):
        return torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format


# ---- Inductor up to its scheduler ----------------------------------------------------------------------------------


class _ScheduledError(Exception):
    """Ends a compilation once its kernels are known."""


def inductor_kernels(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], arch: GpuSpec, *, backward: bool = False
) -> tuple[list[Kernel], dict[str, str]]:
    """Return the kernels of a module by Inductor, and the class of each module by its path; nothing runs.

    With `backward` those of gradients too: autograd's engine wants a GPU for tensors on one, so AOTAutograd traces
    tensors on the CPU, and its two graphs move to the GPU.

    Raises:
        UnsupportedError: Dynamo or Inductor refuse the module or this machine.
    """
    from torch._functorch import config as functorch_config
    from torch._inductor import compile_fx, config
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch._inductor.graph import GraphLowering

    check_nvidia(arch, "Inductor's kernels")
    while hasattr(module, "_orig_mod"):  # of torch.compile
        module = module._orig_mod
    kernels: list[Kernel] = []

    def schedule(graph: Any) -> Any:
        graph.init_wrapper_code()
        graph._update_scheduler()
        kernels.extend(_Reading(graph).kernels())
        raise _ScheduledError

    def compile_inner(graph: Any, inputs: Any, **options: Any) -> Any:
        (results,) = next(node for node in graph.graph.nodes if node.op == "output").args
        values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in results]
        if backward:
            inputs = _move_to_gpu(graph, inputs)
        try:
            compile_fx.compile_fx_inner(graph, inputs, **options)
        except Exception as error:
            if not isinstance(getattr(error, "inner_exception", error), _ScheduledError):
                raise

        def run(inputs: list[Any]) -> list[Any]:
            inputs.clear()
            return list(values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def compile_graph(graph: Any, inputs: Any) -> Any:
        if backward and any(node.target is torch.amp.autocast_mode._enter_autocast for node in graph.graph.nodes):
            raise UnsupportedError(
                "UnsupportedError: it casts tensors of a GPU alone, and gradients are traced on the CPU"
            )
        return compile_fx.compile_fx(graph, inputs, inner_compile=compile_inner)

    deduce = joint_graph.UniformValueConstantFolder._deduce_value

    def deduce_on_cpu(folder: Any, node: Any) -> Any:
        with _OnCpu():
            return deduce(folder, node)

    for home in (joint_graph, post_grad):  # patterns, once
        home.lazy_init(torch.device("cpu"))
    options = {"max_autotune": False, "fx_graph_cache": False, "compile_threads": 1, "shape_padding": False}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for context in (
            fake_gpu(arch), _guards_of_meta(), config.patch(options),
            functorch_config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True),
        ):  # fmt: skip
            stack.enter_context(context)
        for home, name, value in (
            (joint_graph, "lazy_init", lambda *_: None), (post_grad, "lazy_init", lambda *_: None),
            (joint_graph.UniformValueConstantFolder, "_deduce_value", deduce_on_cpu),
            (torch._C, "_conv_determine_backend_memory_format", _memory_format), (GraphLowering, "codegen", schedule),
            (torch.nn.functional, "scaled_dot_product_attention", _scaled_dot_product_attention),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(home, name, value))
        stack.enter_context(fake_tensor.FakeTensorMode())
        stack.enter_context(torch.set_grad_enabled(backward))
        fake = partial(_fake, device="cpu" if backward else "cuda", backward=backward)
        state = {name: fake(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        stack.enter_context(stateless._reparametrize_module(module, state, tie_weights=True))
        given, named = tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs)))
        compiled = torch.compile(module, backend=compile_graph)
        torch._dynamo.reset()
        stack.callback(torch._dynamo.reset)
        try:
            compiled(*given, **named)
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError, NotImplementedError, AssertionError) as error:
            text = next((line for line in str(error).splitlines()[::-1] if "Error" in line), str(error)).strip()
            raise UnsupportedError(
                f'fusion="inductor-ir": torch.compile refuses this module: {type(error).__name__}: {text[:400]}'
            ) from error
    return kernels, {path: type(inner).__name__ for path, inner in module.named_modules()}


def _fake(tensor: Any, device: str, *, backward: bool = False) -> Any:
    """Return a fake tensor on a device with the sizes, strides and type of another; a parameter stays one."""
    has_gradient = backward and tensor.requires_grad
    fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(fake, requires_grad=has_gradient)
    return fake.requires_grad_(has_gradient)


def _move_to_gpu(graph: Any, inputs: Sequence[Any]) -> list[Any]:
    """Move a graph and its results from the CPU to the GPU; return its inputs there."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    gpu = torch.device("cuda", 0)
    for node in graph.graph.nodes:
        node.args, node.kwargs = tree_map_only(torch.device, lambda _: gpu, (node.args, dict(node.kwargs)))
    graph.recompile()
    mode = next(each.fake_mode for each in inputs if isinstance(each, fake_tensor.FakeTensor))
    with mode, torch.no_grad():
        moved = [_fake(each, "cuda") if isinstance(each, torch.Tensor) else each for each in inputs]
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*moved)
    return moved


# ---- kernels of the scheduler --------------------------------------------------------------------------------------


class _Reading:
    """Reads the nodes of a graph's scheduler."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.recorder = Recorder(current_precision())

    def kernels(self) -> list[Kernel]:
        """Return the kernels of the graph, in their order."""
        from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

        result = []
        for node in self.graph.scheduler.nodes:
            if isinstance(node, NopKernelSchedulerNode):
                continue
            if isinstance(node, ExternKernelSchedulerNode):
                result += self._extern(node.node)
            elif parts := [part for part in node.get_nodes() if hasattr(part, "_body")]:
                result.append(self._triton(parts))
        return result

    def _triton(self, parts: Sequence[Any]) -> Kernel:
        """Return a kernel that Inductor writes, from the nodes that are fused in it."""
        from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
        from torch._inductor.virtualized import V

        numels = [self._int(math.prod(map(math.prod, part.get_ranges()))) for part in parts]
        num_elements = max(numels)
        reads, writes = self._accesses(parts, numels)
        sums = next((part for part in parts if part.is_reduction()), None)
        rows, width, is_held, is_inner, way = 0, 1, True, True, _MAP
        if sums is not None:
            features = SIMDKernelFeatures(list(parts), *sums.group[1])
            is_held = V.choices.should_use_persistent_reduction(features, False)
            is_inner = not features.get_reduction_hint().name.startswith("OUTER")
            way = _HELD if is_held else _LOOPED if is_inner else _COLUMNS
            rows, width = map(self._int, sums.group[1])
        instructions = _instructions(self._counts(parts, num_elements, width, is_held=is_held), reads, way)
        work = kernel_work(
            instructions, (sum(reads), sum(writes)), num_elements, rows, width, is_inner=is_inner,
            is_looped=way is _LOOPED,
        )  # fmt: skip
        role = Role.ELEMENTWISE if sums is None else Role.REDUCTION
        origins = [origin for part in parts for origin in part.node.origins]
        return Kernel(self._calls(origins, role, Domain(num_elements, rows or None)), (work,))

    def _counts(self, parts: Sequence[Any], num_elements: int, width: int, *, is_held: bool) -> dict[str, float]:
        """Return how often a kernel does each operation, for each element.

        Code that two nodes share is there once, unless a loop over `width` elements ends between them: rows are not
        `is_held`. What depends on the row alone counts once for each row.
        """
        from torch.utils._sympy.functions import FloorDiv, ModularIndexing

        result: dict[str, float] = defaultdict(float)
        before: list[tuple[set[str], Counter[str]]] = []
        sums: set[str] = set()  # of the loop so far
        for part in parts:
            body, reads = part._body, {dep.name for dep in part.read_writes.reads}
            share = self._int(math.prod(map(math.prod, part.get_ranges()))) / num_elements
            if not is_held and reads & sums:
                before, sums = [], set()
            ops = Counter({name: count for name, count in body.op_counts.items() if name not in _FREE})
            ops[SHORT_ROWS] = _has_short_rows(part)
            if part.is_reduction():
                ops[str(getattr(part.node.data, "reduction_type", "scan"))] = 1
                sums |= {buffer.get_name() for buffer in part.get_outputs()}
            new = ops
            for names, others in before:
                if names <= reads and others <= new:
                    new = new - others
            before.append((reads, ops))
            for name, count in new.items():
                result[name] += count * share
            symbols = [symbol for symbol, size in zip(body.iter_vars, body.sizes[0], strict=True) if size != 1]
            inner, of_rows = 1, list(body.iter_vars)
            while not part.is_reduction() and of_rows and inner < width:
                inner *= self._int(body.var_ranges[of_rows.pop()])
            terms = [index.atoms(FloorDiv, ModularIndexing) for index in set(body.indexing_exprs.values()) if new]
            for term in chain.from_iterable(terms):
                is_of_row = width > 1 and term.free_symbols <= {*of_rows}
                result["index_division"] += share / (width if is_of_row else 1)
            result["index_division"] += share * max(0, len(symbols) - 1 - (len(of_rows) if width > 1 else 0))
        return result

    def _accesses(self, parts: Sequence[Any], numels: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the bytes that fused nodes read of each buffer that another kernel made, and write for others."""
        inside = {part.get_name() for part in parts}
        made = {buffer.get_name() for part in parts for buffer in part.get_outputs()}
        reads, writes = Counter[str](), Counter[str]()
        seen: set[tuple[str, str]] = set()
        for part, numel in zip(parts, numels, strict=True):
            for dep in part.read_writes.reads:
                key = dep.name, str(dep.index) if hasattr(dep, "var_names") else ""
                if dep.name not in made and key not in seen:
                    seen.add(key)
                    reads[dep.name] += self._bytes(dep, numel)
            for dep in part.read_writes.writes:
                users = self.graph.scheduler.name_to_buf[dep.name].users
                if any(user.node is None or user.get_name() not in inside for user in users):
                    writes[dep.name] = max(writes[dep.name], self._bytes(dep, numel))
        return [min(num_bytes, self._size(name)) for name, num_bytes in reads.items()], [*writes.values()]

    def _bytes(self, dep: Any, num_elements: int) -> int:
        """Return the bytes of what a loop of so many elements reads or writes of a buffer."""
        item_bytes = self.graph.get_dtype(dep.name).itemsize if self._size(dep.name) else 0
        count = num_elements if not hasattr(dep, "var_names") or dep.is_indirect() else dep.numel_hint()
        return min(int(count) * item_bytes, self._size(dep.name))

    def _int(self, size: Any) -> int:
        return int(self.graph.sizevars.optimization_hint(size))

    def _size(self, name: str) -> int:
        """Return the bytes of a buffer; 0: it has none of its own."""
        with suppress(NotImplementedError, AttributeError, KeyError):
            return self._int(self.graph.get_numel(name)) * int(self.graph.get_dtype(name).itemsize)
        return 0

    def _calls(self, origins: Sequence[Any], role: Role, domain: Domain) -> tuple[Call, ...]:
        """Return a call for each operation that a kernel comes from, of the module that ran the last of them."""
        order = {node: index for index, node in enumerate(self.graph.graph.nodes)}
        origins = sorted(dict.fromkeys(origins), key=lambda node: order.get(node, 0))
        path = next((path for node in reversed(origins) if (path := _path(node)) is not None), "")
        names = [_name(node) for node in origins if node.op == "call_function"] or ["aten.copy"]
        names = [name for name in dict.fromkeys(names) if not _VIEWS.search(name)] or names[:1]
        phase = "backward" if self.graph.is_backward else "forward"
        return tuple(Call(name, path, phase, role, domain, (), ()) for name in names)

    # -- kernels of libraries

    def _extern(self, node: Any) -> list[Kernel]:
        """Return the kernels of a library's call: torch's operation on tensors with the strides that Inductor chose."""
        from torch._inductor import ir

        if isinstance(node, ir.MultiOutput) or not isinstance(node, ir.ExternKernel):
            return []
        func, args, kwargs = self._operation(node)
        calls = self._calls(list(node.origins), Role.EXTERN, Domain(1))
        if isinstance(node, ir.RandomSeeds):
            return [Kernel(calls[-1:], (map_work(self._size(node.get_name())),))]
        if func is None:
            num_bytes = sum(self._size(each.get_name()) for each in node.inputs if hasattr(each, "get_name"))
            name = str(getattr(node, "python_kernel_name", type(node).__name__))
            return [Kernel(calls[-1:], (UnpricedWork(f"no model of {name}", num_bytes),))]
        trace = self.recorder.trace = Trace()
        with self.recorder:
            func(*args, **kwargs)
        works: list[Work] = []
        for call in trace.calls:
            is_last = call.layout is not None and call.layout.is_image and has_channels_last(args[0])
            works += call.works if is_last else without_bias(call.eager) or call.works
        if func is torch.ops.aten.addmm.default:
            (rows, columns), (stride, _) = (map(self._int, each) for each in (node.get_size(), node.get_stride()))
            bias_bytes, item_bytes = args[0].shape[-1] * args[0].element_size(), args[0].element_size()
            works = [*padded_bias(bias_bytes, rows, columns, stride, item_bytes), *works]
        if not trace.calls:
            return []
        call = trace.calls[-1]
        call.path, call.phase = calls[0].path, calls[0].phase
        return [Kernel((call,), tuple(works))]

    def _operation(self, node: Any) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        """Return the operation of torch that a library's kernel is, and its arguments; None: it is not known."""
        from torch._inductor import ir

        def tensor(value: Any) -> Any:
            size, stride = ([*map(self._int, each)] for each in (value.get_size(), value.get_stride()))
            return torch.empty_strided(size, stride, dtype=value.get_dtype(), device="meta")

        def plain(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [plain(each) for each in value]
            return tensor(value) if isinstance(value, ir.IRNode) and hasattr(value, "get_size") else value

        func = getattr(node, "op_overload", None)
        if isinstance(node, ir.FallbackKernel):
            if not isinstance(func, torch._ops.OpOverload):
                return None, (), {}
            args, kwargs = node.unflatten_args(node.inputs, node.constant_args)
            return func, plain(args), {key: plain(value) for key, value in (node.kwargs | kwargs).items()}
        if func is None or isinstance(node, ir.RandomSeeds):
            return None, (), {}
        name = func._schema.name.partition("::")[2]
        func = getattr(getattr(torch.ops.aten, name), "default", func)
        given = [*node.inputs, *node.constant_args]
        if isinstance(node, ir.ScatterFallback):  # the dimension comes second
            given = [node.inputs[0], node.constant_args[0], *node.inputs[1:], *node.constant_args[1:]]
        elif isinstance(node, ir.IndexPutFallback):
            x, values, *places = node.inputs
            indices = [None if each is None else places.pop(0) for each in node.indices]
            given = [x, indices, values, *node.constant_args]
        args = [plain(each) for each in given]
        kwargs = {key: plain(value) for key, value in node.kwargs.items()}
        if name == "convolution":
            names = "stride", "padding", "dilation", "transposed", "output_padding", "groups"
            bias = args[2] if len(args) > 2 else None
            return func, [*args[:2], bias, *(kwargs[each] for each in names)], {}
        known = {argument.name for argument in func._schema.arguments}
        return func, args, {key: value for key, value in kwargs.items() if key in known}


SHORT_ROWS = "short_rows"
_LOAD_INSTRUCTIONS, _OTHER_INSTRUCTIONS = 6.7, 0.5
_INSTRUCTIONS = {
    "exp": 6, "exp2": 6, "erf": 17, "tanh": 16, "log": 15, "log1p": 15, "sin": 50, "cos": 50, "sigmoid": 6, "rand": 90,
    "randn": 90, "load_seed": 0, "randint64": 90, "indirect_indexing": 2.5, "masked": 1, "index_division": 4.5,
    SHORT_ROWS: 173,
}  # fmt: skip
"""Instructions of a thread for each element, by the name of Inductor's operation; operations that are not here count as
`_OTHER_INSTRUCTIONS`. Fitted on 1,600 kernels of drawn modules, matched with those that ran on an H100 and an H200."""
_MAP, _HELD = {"": 5.0}, {"online_softmax_reduce": 10.0}
_COLUMNS = {"welford_reduce": 20.0, "welford_combine": 20.0, "scan": SCAN_INSTRUCTIONS}
_LOOPED: dict[str, float] = {
    "sum": 13, "max": 13, "min": 13, "any": 13, "prod": 13, "argmax": 50, "argmin": 50, "welford_reduce": 40,
    "welford_combine": 40, "online_softmax_reduce": 90, "scan": SCAN_INSTRUCTIONS,
}  # fmt: skip
"""Instructions for each element of a sum, by its kind: of elementwise kernels, of rows held in registers, of columns
and of rows read in pieces. The key "" is added once to every kernel."""
_FREE = frozenset({"load", "store", "store_reduction", "reduction", "output", "constant", "index_expr"})
"""Operations without instructions of their own beside the others."""
_SUMS = frozenset({*_LOOPED, "scan"})


def _instructions(counts: Mapping[str, float], loads: Sequence[int], sums: Mapping[str, float]) -> float:
    """Return the instructions for each element by counts of operations, bytes of what is loaded, and kind of sums."""
    most = max(loads, default=0)  # what is much smaller is read again and again
    result = sums.get("", 0.0) + _LOAD_INSTRUCTIONS * sum(1.0 if 2 * load > most else 0.5 for load in loads)
    for name, count in counts.items():
        result += sums.get(name, 0.0 if name in _SUMS else _INSTRUCTIONS.get(name, _OTHER_INSTRUCTIONS)) * count
    return result


_VIEWS = re.compile(r"(view|permute|expand|unsqueeze|squeeze|select|slice|full|getitem|convert_element_type)$")
_SHORT = 8  # elements


def _has_short_rows(part: Any) -> bool:
    """Return True if a loop reads neighbours and stores few of them side by side, as for images with channels last."""
    read, written = (
        {
            var: size for dep in deps if hasattr(dep, "var_names")
            for var, size in zip(dep.var_names, dep.size, strict=True) if dep.index.coeff(var) == 1
        }
        for deps in (part.read_writes.reads, part.read_writes.writes)
    )  # fmt: skip
    return bool(read) and any(var not in read and size < _SHORT for var, size in written.items())


def _name(node: Any) -> str:
    target = node.meta.get("original_aten") or node.target
    return str(target).rpartition(".")[0] if isinstance(target, torch._ops.OpOverload) else str(target)


def _path(node: Any) -> str | None:
    """Return the path of the module that ran a node of torch.fx; None: it is not known."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    written = str(list(stack.values())[-1][0]).partition("]")[2]  # L['fn'].layers._modules['0'].norm
    return ".".join(word for word in re.findall(r"\w+", written) if word != "_modules")
