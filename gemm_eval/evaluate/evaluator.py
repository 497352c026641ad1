"""`GEMMEvaluator`: the facade that users call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError, InvalidProblemError
from gemm_eval.evaluate.backend import Kind
from gemm_eval.evaluate.batch import GEMMTable, ProblemBatch, are_sizes, read_batch
from gemm_eval.evaluate.costs import FoundCosts, RecordCacheInfo
from gemm_eval.evaluate.result import GEMMResult, ResultOrigin
from gemm_eval.words import as_integer, check_flag, check_word, shown
from gemm_eval.workload import (
    MAX_DIM,
    MAX_GROUPS,
    AttentionProblem,
    GemmProblem,
    GemmTypes,
    MixerProblem,
    RowGroups,
    RunOptions,
    check_row_groups,
    problem_of,
    resolve_types,
    run_options,
)

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

    from gemm_eval.evaluate.attention import AttentionResult
    from gemm_eval.evaluate.operations import CollectiveResult, MemoryBoundResult, MixerResult
    from gemm_eval.mapping import KernelConfig, MulticoreMapping


_CACHE_SIZE = 1 << 14  # results of about 3 KB each
_MAX_TOP = 10_000
_MAX_ATTENTION = 1 << 16  # results that are kept, of about 1 KB each
_MAX_COLLECTIVES = 1 << 14  # likewise
_NUM_KINDS = 256  # types and options as users spell them
_INT_ONLY = {int}
T = TypeVar("T")


class RunArguments(TypedDict, total=False):
    """Options of the GPU that runs a GEMM; None: the default."""

    library: str | None
    """GPUs: whose kernels run: ``"cublas"`` (the default where both operands have one type, unscaled), ``"gemm-eval"``
    (our own W4A16 kernels, the default for 4-bit weights on Hopper, where they were timed), ``"trtllm"`` (TensorRT-LLM,
    the default for 4-bit weights elsewhere, for block-scaled types and for fp8 on Ada and RTX Blackwell; int8 on Ampere
    and Ada, too) or ``"hypothetical"`` (good weight-only kernels, which no library has, the default for other narrow
    weights). Grouped GEMMs: see `GEMMEvaluator.evaluate_grouped`. ``"auto"``: the default; the options of the result
    say which that is. ``"cublas/13.1"``: a version, where timings tell versions apart (f16 on H200 and H100)."""
    l2: str | None
    """GPUs: ``"cold"`` (the default): weights come from DRAM, and L2 keeps A and C from the call before as far as they
    fit beside them; ``"cold-all"``: nothing is in L2; ``"warm"``: everything that fits."""
    clock: str | None
    """GPUs: ``"burst"`` (the default): the GPU is cool and idle before; or ``"sustained"``: as under minutes of
    load."""
    quantize_from: str | None
    """GPUs: type that A has before (``"bf16"``, ``"fp16"``, ``"fp32"``) where kernels of their own quantize it to that
    of the problem, with scales as the types have them: their time is the term `quantize_us`. None: A is there already.
    """
    correction: bool | None
    """GPUs: add what timings showed beyond the terms of the model, where that was learned (the default), or False."""


class GemmOptions(RunArguments, total=False):
    """Data types of a GEMM and options of the GPU that runs it: keywords of `GEMMEvaluator.evaluate` and others.

    Types are words in any case, or objects of numpy, torch and others: ``"bfloat16"``, ``np.float16``,
    ``torch.float8_e4m3fn``. Single types win over the shorthand `dtype`. None: the default.
    """

    input_dtype: str | None
    """Type of A, and of both operands when the matrix unit multiplies them."""
    weight_dtype: str | None
    """Type of B as stored."""
    output_dtype: str | None
    """Type of C as stored."""
    group_size: int | None
    """Quantized weights, and fp8 or fp4 in A and B: elements along K that share a scale; -1 for one scale per column
    (A and B: for none)."""
    zero_dtype: str | None
    """Quantized weights: type of zero points; None for symmetric quantization."""
    scale_dtype: str | None
    """Type of the scales; default: as the formats have it that people use (`GemmProblem`)."""
    group_n: int | None
    """Columns of B that share a scale; default: 1."""
    layout: str | None
    """How A and B lie in memory: ``"tn"`` (the default: K runs along both, as in linear layers), ``"nn"`` (N runs along
    B), ``"nt"`` (and M along A, as for gradients of weights) or ``"tt"``. Multi-core chips are the same in all."""
    accumulate: str | None
    """fp8 on Hopper: ``"fast"`` (the default), or ``"full"``: products are added in fp32."""


class CacheInfo(NamedTuple):
    """Hits and misses of the results that an evaluator keeps in memory, its bound, and how many it holds.

    `records` tells the same of the costs, which `evaluate_problem` and `evaluate_many` share with `evaluate`.
    """

    hits: int
    misses: int
    maxsize: int | None
    currsize: int
    records: RecordCacheInfo


class GEMMEvaluator:
    """Evaluates GEMMs on one architecture: a multi-core chip or a GPU.

    >>> ev = GEMMEvaluator(load_arch("demo-8core"))
    >>> r = ev.evaluate(1, 4096, 4096, 4096)      # G, M, K, N
    >>> r.latency_us, r.bound, r.mapping          # doctest: +SKIP

    Safe to call from many threads at once. Results are kept in memory (the last 16,384) and shared, so they are frozen.

    Args:
        arch: an architecture, or the name or path of one.
        allow_idle_cores: also consider partitions that leave cores idle; off, P_G*P_M*P_N*P_K is exactly num_cores.
            On, more cores never make the best latency worse where DRAM bandwidth is shared fairly. GPUs: on only.
        policy: of a chip whose YAML has rules: ``"library"``, what its library does with a GEMM, or ``"best"``, what
            the chip could do; default: what the rules say is default, best without rules. GPUs: see `library`.
        disk_cache: read, at the first evaluation, what `save_to_disk` or `prewarm` kept for this arch: from
            ``results/<name>.npz`` in the user's cache folder (True; ``GEMM_EVAL_CACHE_DIR`` moves it), from a file of
            your own (a path), or not at all. A file at that path that is no such cache is never changed: the first
            evaluation raises a StorageError.
        library, l2, clock: GPUs only: for calls that do not say it themselves; see `evaluate`. This library is used
            where it has kernels for the data types, elsewhere the default: a model has GEMMs of several types.
        correction: GPUs only: likewise; False: physics alone, whatever was learned from timings.

    Attributes:
        backend: the cost model and search behind it.
        preferred: options of a GPU for calls that do not say them.
        prices: prices of the work of models by engine and options, which `gemm_eval.estimate` keeps here.

    Raises:
        ArchError: `arch` names no valid architecture.
        InvalidInputError: `arch` is something else.
        InvalidOptionError: `allow_idle_cores` on a chip of more than `gemm_eval.search.multicore.MAX_IDLE_CORES` cores,
            or an option out of its range, or not for this kind of arch.
        UnsupportedError: `library`, `l2`, `clock` or `correction` for a multi-core chip.
    """

    def __init__(
        self,
        arch: ArchSpec | str | os.PathLike[str],
        *,
        allow_idle_cores: bool = True,
        policy: str | None = None,
        disk_cache: bool | str | os.PathLike[str] = True,
        library: str | None = None,
        l2: str | None = None,
        clock: str | None = None,
        correction: bool | None = None,
    ) -> None:
        if isinstance(arch, str | os.PathLike):
            arch = load_arch(arch)
        if not isinstance(arch, MulticoreSpec | GpuSpec):
            raise InvalidInputError(f"arch must be a spec, a preset name or a path, got {shown(arch)}")
        check_flag("allow_idle_cores", allow_idle_cores)
        if not isinstance(disk_cache, bool | str | os.PathLike):
            raise InvalidOptionError(f"disk_cache must be True, False or a path, got {shown(disk_cache)}")
        self._settings: dict[str, Any] = {
            "allow_idle_cores": allow_idle_cores, "policy": policy, "disk_cache": disk_cache,
            "library": library, "l2": l2, "clock": clock, "correction": correction,
        }  # fmt: skip
        self._origin = ResultOrigin(arch, self._settings)
        self.backend = self._origin.backend
        self.preferred = run_options(library, l2, clock, correction=correction)
        self.backend.check(self.preferred)
        self._costs = FoundCosts(self.backend, disk_cache)
        # typed: True must not find the result of 1
        self._evaluate_cached = lru_cache(maxsize=_CACHE_SIZE, typed=True)(self._evaluate)
        self._siblings: dict[tuple[tuple[str, str], ...], GEMMEvaluator] = {}
        self.prices: dict[Any, Any] = {}
        self._attention: dict[tuple[AttentionProblem, str | None], AttentionResult] = {}
        self._collective = lru_cache(maxsize=_MAX_COLLECTIVES, typed=True)(partial(_find_collective, arch))
        self._kind_of_words = lru_cache(maxsize=_NUM_KINDS, typed=True)(self._make_kind)

    def __repr__(self) -> str:
        said = [f"{name}={value!r}" for name, value in self.preferred._asdict().items() if value is not None]
        if isinstance(self.arch, MulticoreSpec):
            said.append(f"allow_idle_cores={self._settings['allow_idle_cores']}")
            if self._settings["policy"] is not None:
                said.append(f"policy={self._settings['policy']!r}")
        return f"GEMMEvaluator({', '.join([repr(self.arch.name), *said])})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(GEMMEvaluator, **self._settings), (self.arch,)

    @property
    def arch(self) -> ArchSpec:
        """The architecture."""
        return self.backend.arch

    def on(self, arch: ArchSpec | str | os.PathLike[str]) -> GEMMEvaluator:
        """Return an evaluator with the same options for another arch."""
        return self._origin.on(arch)

    def preferring(self, *, library: str | None = None, clock: str | None = None) -> GEMMEvaluator:
        """Return an evaluator that prefers these options where this one prefers none; it and its results are kept.

        Raises:
            InvalidOptionError: no such `library` or `clock`.
            UnsupportedError: options for a multi-core chip.
        """
        asked = {"library": library, "clock": clock}
        new = {name: value for name, value in asked.items() if value is not None and self._settings[name] is None}
        key = tuple(new.items())
        if key not in self._siblings:
            self._siblings[key] = GEMMEvaluator(self.arch, **(self._settings | new)) if new else self
        return self._siblings[key]

    def evaluate(
        self, G: int, M: int, K: int, N: int, dtype: str | None = None, **options: Unpack[GemmOptions]
    ) -> GEMMResult:
        """Find the best mapping of C[G,M,N] = A[G,M,K] x B[G,K,N] and say what it costs.

        Args:
            G, M, K, N: batch, rows, reduction length, columns.
            dtype: shorthand: a type for everything (``"fp16"``); int8 for both (``"w8a8"``); quantized weights:
                ``"w4a16"``, ``"w8a16"``, ``"w4a8"``, ``"w4a8_fp8"``, ``"w4a8_mxfp4"``, ``"w4a16_mxfp4"``,
                ``"w4a16_nvfp4"``;
                block-scaled: ``"fp8_block"``, ``"mxfp8"``, ``"mxfp4"``, ``"nvfp4"``. Default: the arch's default type.
            **options: single types, and how a GPU runs it: `GemmOptions` says what each is.

        Raises:
            InvalidProblemError: sizes or types that make no GEMM.
            InvalidOptionError: no such `library`, `l2` or `clock`, or nothing to quantize.
            UnsupportedError: the arch cannot run these types, or takes no options of GPUs.
            InfeasibleError: no mapping fits.
        """
        try:  # as `_remembered`, which a call more would slow down
            return self._evaluate_cached(G, M, K, N, dtype, **options)
        except InvalidInputError:
            raise
        except (TypeError, ValueError):
            return self._evaluate(G, M, K, N, dtype, **options)

    def evaluate_grouped(
        self, row_groups: Iterable[int], K: int, N: int, dtype: str | None = None, **options: Unpack[GemmOptions]
    ) -> GEMMResult:
        """Find the best mapping of a grouped GEMM, C_i[m_i,N] = A_i[m_i,K] x B_i[K,N] for each group, in one launch.

        So run the experts of a mixture: each has weights of its own, and as many rows as tokens were routed to it. The
        order of groups does not matter. On a GPU kernels of grouped GEMMs run it, also where all groups have as many
        rows; `evaluate` of G, M, K, N is a batch, which other libraries run. On multi-core chips equal groups are the
        batch, and one group is the plain GEMM: the same answers to the bit.

        >>> ev = GEMMEvaluator(load_arch("h200-sxm"))
        >>> r = ev.evaluate_grouped((120, 3, 0, 17), 7168, 4096, dtype="bf16")     # doctest: +SKIP

        Args:
            row_groups: rows m_i of A and C of each group, 1 to 1,024 of them; 0 for a group without a row, whose
                weights are not read. A tuple is the fastest; lists, arrays and other iterables of integers do too.
            K, N: reduction length and columns, the same in all groups.
            dtype, options: as for `evaluate`.

        Raises:
            InvalidProblemError: groups, sizes or types that make no GEMM, or no group with a row; else as `evaluate`.
        """
        # of what is in a tuple a cache looks at values alone: True must not find the result of 1
        if type(row_groups) is not tuple or set(map(type, row_groups)) != _INT_ONLY:
            row_groups = check_row_groups(row_groups)
        return _remembered(self._evaluate_cached, None, None, K, N, dtype, row_groups, **options)

    def evaluate_memory_bound(
        self, read_bytes: float, write_bytes: float, row_elements: int = 0, num_rows: int = 0, what: str = ""
    ) -> MemoryBoundResult:
        """Return the time of a kernel that only reads and writes its bytes: a norm, an activation, a copy.

        Args:
            read_bytes, write_bytes: each tensor once; what fits in L2 is taken to be there still, as the kernel before
                left it.
            row_elements, num_rows: elements of a row in one tensor, and rows that it works on; 0: as many threads as
                tensors have 16 bytes.
            what: the kernel: ``"add_rms_norm"``, ``"rms_norm"``, ``"act_mul"``, ``"rotary_kv_write"``, ``"qk_norm"``,
                ``"gather"``, ``"permute"``, ``"weighted_sum"``, ``"top_k"``, ``"sort"`` and the like have a CTA for
                each row, as engines' have, and wait for memory in ways of their own; ``"torch_vector"`` and the like
                are PyTorch's; all others deal their bytes to all SMs.

        Raises:
            InvalidProblemError: a number of bytes that is none.
            InvalidOptionError: `row_elements` or `num_rows` is no number of elements or rows.
        """
        from gemm_eval.evaluate.operations import memory_bound

        return memory_bound(self.arch, read_bytes, write_bytes, row_elements, num_rows, what)

    def switch_us(self, num_rows: int) -> float:
        """Return the extra time of a GEMM or of attention in a step of inference, relative to itself alone, in us.

        `evaluate` and `evaluate_attention` time a kernel that runs again and again. Between others its code is not near
        the SMs any more, and its inputs have just been written by them (OPERATIONS.md, "In a step"). Memory-bound
        kernels were timed between others. `num_rows` are rows of A and C, or queries. 0 on multi-core chips.
        """
        if not isinstance(self.arch, GpuSpec):
            return 0.0
        from gemm_eval.models.gpu import switch_us

        return float(switch_us(self.arch, num_rows))

    def evaluate_attention(
        self,
        *,
        batch: int,
        q_len: int,
        kv_len: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int = 128,
        dtype: str | None = None,
        kv_dtype: str | None = None,
        v_head_dim: int | None = None,
        causal: bool = True,
        window: int | None = None,
        is_latent: bool = False,
        has_sinks: bool = False,
        backward: bool = False,
        fused: bool | None = None,
        library: str | None = None,
    ) -> AttentionResult:
        """Return the time of the attention of one layer: scores, softmax and values of all heads of one device.

        >>> ev = GEMMEvaluator(load_arch("h200-sxm"))
        >>> r = ev.evaluate_attention(batch=8, q_len=1, kv_len=4096, num_heads=32, num_kv_heads=8)    # doctest: +SKIP

        Args:
            batch: sequences.
            q_len, kv_len: queries and keys of each; queries are the last of the keys' positions. A prefill has as many
                of both, a chunk of one more keys, a step of decode one query.
            num_heads, num_kv_heads: query heads, and the KV heads that they share; None: as many.
            head_dim: elements of a query and of a key.
            dtype: of queries, and what products are computed in; None: the arch's default type.
            kv_dtype: of keys and values in the cache; None: `dtype`.
            v_head_dim: elements of a value; None: `head_dim`.
            causal: each query attends to its own position and those before it; False: to all.
            window: positions that a query attends to at most; None: all.
            is_latent: values are the first elements of the keys, which are latents of one KV head (MLA, absorbed).
            has_sinks: each head has a learned logit in the sum of its softmax.
            backward: the time of the gradients of queries, keys and values instead, by kernels of PyTorch's (unless
                `library` says otherwise, cuDNN's on sm_90, sm_100 and sm_103, else FlashAttention's); chips of many
                cores run them unfused.
            fused: scores stay on the chip, as FlashAttention has it; False: two batched GEMMs with a softmax between
                them; None: fused, but on multi-core chips that have no vector unit for it, or too little SRAM.
            library: whose fused kernels of GPUs: ``"trtllm"``, with positions and the write of the cache in the call,
                ``"cudnn"`` or ``"flash"`` (FlashAttention 2), as PyTorch calls them; None: trtllm.

        Raises:
            InvalidProblemError: sizes or types that make no attention.
            InvalidOptionError: `fused` or `library` is none of these, or `library` asked of a multi-core chip.
            UnsupportedError: the arch cannot compute in this type, or this way, or the library has no kernel for it.
            InfeasibleError: no tile fits in the SRAM of a core.
        """
        of_arch = self.arch.default_dtype if dtype is None else dtype
        problem = AttentionProblem(
            batch, q_len, kv_len, num_heads, num_heads if num_kv_heads is None else num_kv_heads, head_dim,
            of_arch, kv_dtype, v_head_dim, causal, window, is_latent, has_sinks, backward,  # type: ignore[arg-type]
        )  # fmt: skip
        return self.evaluate_attention_problems([problem], fused=fused, library=library)[0]

    def evaluate_attention_problems(
        self, problems: Sequence[AttentionProblem], *, fused: bool | None = None, library: str | None = None
    ) -> list[AttentionResult]:
        """Return the time of attention for many problems at once; see `evaluate_attention`."""
        from gemm_eval.evaluate.attention import attention_kernels, attention_results

        kernels = attention_kernels(self.arch, fused, library)
        new = [problem for problem in dict.fromkeys(problems) if (problem, kernels) not in self._attention]
        if new:
            if len(self._attention) + len(new) > _MAX_ATTENTION:
                self._attention.clear()
                new = list(dict.fromkeys(problems))
            results = attention_results(self.arch, new, kernels, self.evaluate_problem)
            self._attention.update(((problem, kernels), result) for problem, result in zip(new, results, strict=True))
        return [self._attention[problem, kernels] for problem in problems]

    def evaluate_mixers(self, problems: Sequence[MixerProblem], *, library: str | None = None) -> list[MixerResult]:
        """Return the time of kernels of linear attention and of sparse attention on an NVIDIA GPU.

        >>> ev = GEMMEvaluator(load_arch("h200-sxm"))
        >>> update = MixerProblem("gdn_update", batch=64, q_len=1, num_heads=32, key_heads=16)
        >>> ev.evaluate_mixers([update])[0].latency_us    # doctest: +SKIP

        Args:
            problems: calls, each of one kernel, for one layer on one device.
            library: ``"vllm"``, ``"sglang"`` or ``"trtllm"``; a kernel that it was not timed with is that of the next
                of these. None: the first of them that has it.

        Raises:
            InvalidOptionError: no such library.
            UnsupportedError: a multi-core chip, or a GPU of another maker: no such kernels were timed there.
        """
        from gemm_eval.evaluate.operations import mixer_results

        return mixer_results(self.arch, problems, library)

    def evaluate_collective(
        self, what: str, message_bytes: int, num_ranks: int, *, dtype: str | None = None, library: str | None = None,
        interconnect: str | None = None, ranks_per_node: int | None = None, network_bytes: int | None = None,
    ) -> CollectiveResult:  # fmt: skip
        """Return the time of a collective between GPUs of this kind, in one node or several.

        Between nodes, nothing was timed: `source` is ``"analytic"``, and intervals are wide.

        >>> ev = GEMMEvaluator(load_arch("h200-sxm"))
        >>> r = ev.evaluate_collective("all_reduce", 1 << 20, 8)    # doctest: +SKIP
        >>> r.latency_us, r.algorithm, r.bus_gb_per_s               # doctest: +SKIP

        Args:
            what: ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``, ``"all_to_all"`` or ``"send"``.
            message_bytes: of one device: what it adds, contributes or sends in all (`CollectiveProblem`).
            num_ranks: devices that take part; 1 costs nothing.
            dtype: of the elements; None: of 16 bits. It matters where a switch adds them up, which takes no narrower.
            library: ``"trtllm"`` (the default): TensorRT-LLM's kernels for all-reduces over NVLink, NCCL for the rest;
                ``"nccl"``: NCCL for all.
            interconnect: how a server joins GPUs over PCIe: ``"pcie-one-socket"``, where the bridges or switches of one
                CPU join all of them, or ``"pcie-two-sockets"``, where traffic crosses to another CPU; None: as the spec
                says.
            ranks_per_node: devices that take part in each node, at most those that the link joins; None: as many as
                fit, equally many in each node.
            network_bytes: of an ``"all_to_all"`` of tokens to experts: bytes that leave a device's node, each token
                once for each other node (`CollectiveProblem`); None: each copy by itself. One node has none.

        Raises:
            InvalidProblemError: no such operation, or sizes that make none.
            InvalidOptionError: no such library or interconnect.
            UnsupportedError: the spec does not say what joins its chips or, for more of them than its link joins,
                nodes; or not by PCIe.
        """
        asked = what, message_bytes, num_ranks, dtype, library, interconnect, ranks_per_node, network_bytes
        return _remembered(self._collective, *asked)

    def evaluate_problem(self, problem: GemmProblem, **options: Unpack[RunArguments]) -> GEMMResult:
        """Find the best mapping of a `GemmProblem`; options as for `evaluate`."""
        kind = self._kind_of(problem, run_options(**options))
        return self._origin.make_result(problem, kind, self._costs.find(problem, kind), is_found=True)

    def evaluate_many(
        self,
        problems: Any,
        dtype: str | None = None,
        *,
        errors: Literal["raise", "mark"] = "raise",
        progress: bool | None = None,
        **options: Unpack[GemmOptions],
    ) -> GEMMTable:
        """Find the best mapping of many GEMMs, on all cores of this machine; the same results as one by one.

        Repeated problems, and problems evaluated before, cost next to nothing.

        Args:
            problems: an iterable of (G, M, K, N) or `GemmProblem`, an integer array [num_problems, 4] of G, M, K, N, or
                a DataFrame with columns G, M, K, N and any of row_groups, dtype, input_dtype, weight_dtype,
                output_dtype, group_size, zero_dtype, scale_dtype, group_n, layout, accumulate, library, l2, clock,
                quantize_from, correction. A grouped GEMM is a `GemmProblem.grouped`, or a row whose `row_groups` is a
                tuple or list: there G and M may be missing.
            dtype, options: as for `evaluate`, for all problems that do not say otherwise; a row's own `dtype` replaces
                all types of the call.
            errors: ``"raise"`` an `InfeasibleError` for the first problem that does not fit, or ``"mark"`` its row.
            progress: show progress on stderr (`gemm_eval.progress`); None: if the work takes over a second.

        Raises:
            InvalidProblemError: something in `problems` is no GEMM; nothing has been computed then.
            InfeasibleError: no mapping fits a problem, with ``errors="raise"``; else as `evaluate`.
        """
        check_word("errors", errors, ("raise", "mark"))
        if progress is not None:
            check_flag("progress", progress)
        asked = {name: options.get(name) for name in RunOptions._fields}
        of_run = run_options(**asked)

        def make_kind(*, is_grouped: bool = False, **row: Any) -> Kind:
            # a row's own shorthand replaces every type of the call
            words: dict[str, Any] = asked if "dtype" in row else {"dtype": dtype, **options}
            return self._make_kind(is_grouped, **(words | row))

        batch = read_batch(problems, make_kind, lambda problem: self._kind_of(problem, of_run))
        return self.evaluate_batch(batch, errors=errors, progress=progress)

    def evaluate_batch(
        self, batch: ProblemBatch, *, errors: Literal["raise", "mark"] = "raise", progress: bool | None = None
    ) -> GEMMTable:
        """Find the best mapping of a batch whose problems were checked before, of kinds that `kind_of_types` made.

        `errors`, `progress` and what is raised: as for `evaluate_many`.
        """
        table = GEMMTable(self, batch, self._costs.find_many(batch, progress))
        if errors == "raise" and not table.is_feasible.all():
            table[int(np.argmin(table.is_feasible))]  # raises, and says what would help
        return table

    def evaluate_mapping(
        self, problem: GemmProblem, mapping: MulticoreMapping | KernelConfig, **options: Unpack[RunArguments]
    ) -> GEMMResult:
        """Replay a mapping that the user gives: ((P_G, P_M, P_N, P_K), (tile_m, tile_n, tile_k), loop order).

        On a GPU it is a `KernelConfig`, and what is learned of the GEMM corrects each of its configs alike.

        Raises:
            InvalidMappingError: the mapping breaks a rule of the arch or the problem; the message says which.
        """
        kind = self._kind_of(problem, run_options(**options))
        cost = self.backend.replay(problem, self.backend.pack(kind), mapping)
        return self._origin.make_result(problem, kind, cost[0], is_found=False)

    def top(
        self,
        problem: GemmProblem,
        k: int = 5,
        *,
        distinct: Literal["mapping", "partition"] = "mapping",
        **options: Unpack[RunArguments],
    ) -> list[GEMMResult]:
        """Return the `k` best mappings, best first; fewer when there are not so many.

        Where a chip's library chooses (tpu-v4), they stand in the order of its belief: the first is the answer, and
        others may be faster.

        Mappings that another one stands for are not listed: the same data movement under another loop order's name, a
        larger tile with the same trip counts, another tile_k (overlap timing; the best is listed).

        Args:
            problem: the GEMM.
            k: how many, 1 to 10,000.
            distinct: ``"mapping"``, or ``"partition"`` for the best mapping of each partition of a multi-core chip.
            **options: as for `evaluate`.

        Raises:
            InvalidOptionError: `k` or `distinct` out of range; otherwise as `evaluate`.
        """
        k = as_integer("k", k, 1, _MAX_TOP)
        check_word("distinct", distinct, ("mapping", "partition"))
        kind = self._kind_of(problem, run_options(**options))
        costs = self.backend.find_top(problem, self.backend.pack(kind), k, distinct)
        return [self._origin.make_result(problem, kind, cost.copy(), is_found=True) for cost in costs]

    def cache_info(self) -> CacheInfo:
        """Return how the memory of results is doing: that of `evaluate` calls, and that of costs behind all calls."""
        return CacheInfo(*self._evaluate_cached.cache_info(), self._costs.info())

    def cache_clear(self) -> None:
        """Forget all results in memory."""
        self._evaluate_cached.cache_clear()
        self._costs.clear()
        self._attention.clear()
        self.prices.clear()

    def save_to_disk(self, table: GEMMTable) -> int:
        """Keep the results of `evaluate_many` for later processes, in the user's cache folder; return how many.

        An evaluator of the same arch and options reads them back at its first evaluation. Nothing is kept unasked: a
        search costs less than a write. 0 are written where the disk cache is off or cannot be written.

        Raises:
            InvalidInputError: the table was made for another arch, or by other options.
        """
        if not isinstance(table, GEMMTable):
            raise InvalidInputError(f"table must be a GEMMTable, as evaluate_many returns one, got {shown(table)}")
        if table.evaluator.backend.stored_as() != self.backend.stored_as():
            raise InvalidInputError(f"the table was made by {table.evaluator!r}, whose costs are not those of {self!r}")
        return self._costs.save(table.batch, table.records)

    def result_of_record(self, problem: GemmProblem, kind: Kind, record: np.void) -> GEMMResult:
        """Return the result that a record found by this evaluator stands for."""
        return self._origin.make_result(problem, kind, record, is_found=True)

    def kind_of_types(self, types: GemmTypes, asked: RunOptions, *, is_grouped: bool = False) -> Kind:
        """Return what problems of some types can share, with this evaluator's options where nothing is asked.

        Raises:
            InvalidOptionError: no such option.
            UnsupportedError: options that an arch of this kind has no use for.
        """
        return Kind(types, self.backend.resolve(types, asked, self.preferred, is_grouped=is_grouped))

    def _kind_of(self, problem: GemmProblem, asked: RunOptions) -> Kind:
        if not isinstance(problem, GemmProblem):
            raise InvalidProblemError(
                f"problem must be a GemmProblem, got {shown(problem)}; evaluate(G, M, K, N) takes sizes"
            )
        return self.kind_of_types(problem.types, asked, is_grouped=problem.is_grouped)

    def _evaluate(
        self,
        G: int | None,
        M: int | None,
        K: int,
        N: int,
        dtype: str | None = None,
        row_groups: RowGroups | None = None,
        **options: Unpack[GemmOptions],
    ) -> GEMMResult:
        """See `evaluate`; with row groups, of plain ints, `evaluate_grouped`, where G and M follow from these."""
        library = options.get("library")
        if isinstance(library, str) and row_groups is None and isinstance(self.arch, GpuSpec):
            from gemm_eval.models.gpu import check_plain_library

            check_plain_library(library)
        kind = _remembered(self._kind_of_words, row_groups is not None, dtype, **options)
        if row_groups is not None:
            G, M = len(row_groups), max(row_groups)
            if G > MAX_GROUPS or min(row_groups) < 0 or not 0 < M <= MAX_DIM:
                check_row_groups(row_groups)  # raises
        if are_sizes(G, M, K, N):
            problem = problem_of(kind.types, G, M, K, N, row_groups)  # type: ignore[arg-type]
        else:
            problem = GemmProblem(G, M, K, N, **kind.types.words, row_groups=row_groups)  # type: ignore[arg-type]
        return self._origin.make_result(problem, kind, self._costs.find(problem, kind), is_found=True)

    def _make_kind(self, is_grouped: bool, dtype: str | None = None, **options: Any) -> Kind:
        """Return the kind of data types and options as `evaluate` takes them."""
        asked = run_options(**{name: options.pop(name, None) for name in RunOptions._fields})
        return self.kind_of_types(
            resolve_types(self.arch.default_dtype, dtype, **options), asked, is_grouped=is_grouped
        )


def _remembered(cached: _lru_cache_wrapper[T], *args: Any, **options: Any) -> T:
    """Call a function that remembers, or the one behind where an argument has no hash, whose checks then refuse it."""
    try:
        return cached(*args, **options)
    except InvalidInputError:
        raise
    except (TypeError, ValueError):  # no hash, or a 0-d array
        return cached.__wrapped__(*args, **options)


def _find_collective(arch: ArchSpec, *asked: Any) -> CollectiveResult:
    from gemm_eval.evaluate.operations import find_collective

    return find_collective(arch, *asked)
