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
from pathlib import Path
from typing import Any
from unittest import mock

from gemm_eval.arch import GpuSpec, check_nvidia
from gemm_eval.errors import UnsupportedError
from gemm_eval.torch.compiled_mode import kernel_work, map_work, padded_bias, without_bias
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
    return kernel(query, key, value, attn_mask, False, dropout_p, is_causal, scale=scale)[0]


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
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], arch: GpuSpec
) -> tuple[list[Kernel], dict[str, str]]:
    """Return the kernels of a module by Inductor, and the class of each module by its path; nothing runs.

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
            functorch_config.patch(enable_autograd_cache=False),
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
        stack.enter_context(torch.no_grad())
        state = {name: _on_gpu(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        stack.enter_context(stateless._reparametrize_module(module, state, tie_weights=True))
        given, named = tree_map_only(torch.Tensor, _on_gpu, (tuple(args), dict(kwargs)))
        compiled = torch.compile(module, backend=partial(compile_fx.compile_fx, inner_compile=compile_inner))
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


def _on_gpu(tensor: Any) -> Any:
    """Return a fake tensor on the GPU with the sizes, strides and type of another; a parameter stays one."""
    fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cuda")
    return torch.nn.Parameter(fake, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else fake


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
        ops: dict[str, float] = defaultdict(float)
        for part, numel in zip(parts, numels, strict=True):
            indexes = " ".join(map(str, part._body.indexing_exprs.values()))
            num_divisions = len(re.findall("//|Mod", indexes))
            counts = part._body.op_counts + Counter(index_division=num_divisions, short_rows=_has_short_rows(part))
            if part.is_reduction():
                counts[str(getattr(part.node.data, "reduction_type", "scan"))] += 1
            for name, count in counts.items():
                ops[name] += count * numel / num_elements
        num_bytes = sum(reads), sum(writes)
        instructions = _instructions(ops, reads)
        sums = next((part for part in parts if part.is_reduction()), None)
        if sums is None:
            work, rows = kernel_work(instructions, num_bytes, num_elements), None
        else:
            _, (rows, width) = sums.group
            features = SIMDKernelFeatures(list(parts), rows, width)
            is_looped = not V.choices.should_use_persistent_reduction(features, False)
            is_inner = not features.get_reduction_hint().name.startswith("OUTER")
            rows, width = self._int(rows), self._int(width)
            work = kernel_work(
                instructions, num_bytes, num_elements, rows, width, is_inner=is_inner, is_looped=is_looped and is_inner
            )
        role = Role.ELEMENTWISE if sums is None else Role.REDUCTION
        origins = [origin for part in parts for origin in part.node.origins]
        return Kernel(self._calls(origins, role, Domain(num_elements, rows)), (work,))

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
        args = [plain(each) for each in (*node.inputs, *node.constant_args)]
        kwargs = {key: plain(value) for key, value in node.kwargs.items()}
        if name == "convolution":
            names = "stride", "padding", "dilation", "transposed", "output_padding", "groups"
            bias = args[2] if len(args) > 2 else None
            return func, [*args[:2], bias, *(kwargs[each] for each in names)], {}
        known = {argument.name for argument in func._schema.arguments}
        return func, args, {key: value for key, value in kwargs.items() if key in known}


_LOAD_INSTRUCTIONS = 5.5
_INSTRUCTIONS = {
    "exp": 16, "exp2": 16, "erf": 24, "tanh": 13, "log": 15, "log1p": 15, "sin": 52, "cos": 52, "sigmoid": 14,
    "rand": 39, "randn": 39, "load_seed": 39, "randint64": 39, "indirect_indexing": 2.5, "masked": 2, "to_dtype": 0.4,
    "index_division": 7.7, "short_rows": 175, "welford_reduce": 5, "online_softmax_reduce": 18,
}  # fmt: skip
"""Instructions of a thread for each element, by the name of Inductor's operation; operations that are not here count as
one. Fitted on kernels of drawn modules on an H100 (`python -m tools.examine_modules --inductor-ir` has the errors)."""
_FREE = frozenset({
    "load", "store", "store_reduction", "reduction", "output", "constant", "index_expr", "truediv", "sqrt", "rsqrt",
    "pow", "reciprocal", "sum", "max", "min", "any", "prod", "argmax", "argmin",
})  # fmt: skip
"""Operations without instructions of their own beside the others."""


def _instructions(ops: Mapping[str, float], loads: Sequence[int]) -> float:
    """Return the instructions for each element by counts of operations, and bytes of what is loaded."""
    most = max(loads, default=0)  # what is much smaller is read again and again
    result = _LOAD_INSTRUCTIONS * sum(1.0 if 2 * load > most else 0.5 for load in loads)
    return result + sum(_INSTRUCTIONS.get(name, name not in _FREE) * count for name, count in ops.items())


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
