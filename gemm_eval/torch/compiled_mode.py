"""Calls of a trace as Inductor lowers them on a GPU, and the kernels it makes of them. TORCH.md, "Kernels".

The rules are those of torch/_inductor: `num_splits` (ir.py), `reduction_split_factor` and
`should_use_persistent_reduction` (choices.py), `decide_layout_opt` (graph.py), `convolution` (kernel/conv.py).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gemm_eval.torch.eager_mode import FUNCTIONS
from gemm_eval.torch.graph import (
    UNROLLED_WINDOW,
    Access,
    Call,
    ConvolutionLayout,
    Domain,
    Role,
    Trace,
    Work,
    blocks,
    work_flop,
)
from gemm_eval.transformer import GemmWork, MemoryWork

MAP, ROWS, LONG_ROWS = "inductor_map", "inductor_rows", "inductor_long_rows"
"""Names of Inductor's kernels in the memory-bound model, which their instructions for each element follow."""

_BASE_INSTRUCTIONS, _ROW_INSTRUCTIONS, _LOAD_INSTRUCTIONS, _INDEX_INSTRUCTIONS = 18, 2, 4.0, 8
_PASS_INSTRUCTIONS, _MOMENT_INSTRUCTIONS, _SOFTMAX_INSTRUCTIONS = 5, 36, 90
_LANE_INSTRUCTIONS, _HELD_INSTRUCTIONS, _LOOP_INSTRUCTIONS, _COLUMN_INSTRUCTIONS = 5, 6500, 2000, 5700
"""To end a sum: of each lane where a warp has whole rows; of a row in registers, one read in pieces, and a column.
Fitted with `inductor_ir`'s on kernels of drawn modules on an H100 and an H200."""
_INSTRUCTIONS = {
    "_softmax _log_softmax _safe_softmax logsumexp hardswish": 20, "tanh": 16, "log log1p": 31, "sin cos": 45,
    "binary_cross_entropy_with_logits": 46,
    "native_batch_norm native_group_norm _native_batch_norm_legit_functional _native_batch_norm_legit": 17,
    "index_add scatter scatter_add scatter_reduce index_put": 70, "native_dropout rand bernoulli uniform rand_like": 98,
    "upsample_bilinear2d": 100, "upsample_bicubic2d": 300, "div sqrt rsqrt": 5, "clone cat stack constant_pad_nd": 10,
}  # fmt: skip
"""Of a thread for each element, by names of operations, where they are not eager mode's; fitted on the code of drawn
modules on an H100."""
_INSTRUCTIONS_OF = FUNCTIONS | {name: count for words, count in _INSTRUCTIONS.items() for name in words.split()}

_OFFSETS = "torch_offsets"
_BIASES = "torch_bias", _OFFSETS  # beginnings of kernels of eager mode that add a bias, or lay out what is read
_MAX_BLOCK = 2048  # elements of a row that a CTA reads at once
_MAX_HELD = 1024  # elements of a row that a CTA holds in registers (a persistent reduction)
_WARP, _NUM_WARPS, _SM_THREADS = 32, 8, 2048
_LEAST_SPLIT, _MOST_SPLIT = 32, 512  # elements of a thread
_MAX_LOOSE = 64  # likewise, where rows are many and not all that is read are whole rows
_LEAST_BIAS = 8  # bytes
_UNSPLIT_ROW = 8192
_MANY_SUMS = 64  # for each SM: beyond, no sum is split
_COLUMN_BLOCK, _COLUMN_LOADS = 128, 4
_UNROLLED = 8  # elements of a sum that is a map over its results
_WINDOW_INSTRUCTIONS = 32 * 78
"""Of a pooling window of `UNROLLED_WINDOW` places, which a warp adds up, each with divisions to find it: three kernels
of drawn modules on an H100 agree within 2%."""
_GROUP_INSTRUCTIONS = -30
"""Instructions for an element that a sum over a group of channels side by side has more than other sums; 9 kernels."""
_LEAST_APART, _APART_INSTRUCTIONS = 150, 80.0
"""Instructions of eager mode's loop, for an element, of which some are lines of memory that it reads for one element
each; and what sums of rows that read so take more, as lanes go along rows."""
_NORM_LAST, _NORM_ODD, _LEAST_POSITIONS = -13.0, 35.0, 4
"""More of a batch norm of fixed statistics: channels last; channels first, whose statistics are read for each element
where positions come in no multiple of 4."""
SCAN_INSTRUCTIONS = 140.0
_SCANS = {"aten.cumsum": SCAN_INSTRUCTIONS, "aten.cumprod": SCAN_INSTRUCTIONS, "aten.logcumsumexp": 300.0}
"""Sums and products of all before: instructions for each element where no CTAs share a column."""
_COLUMN_SCAN, _SCAN_BLOCK, _SCAN_CTA, _SHARED_SCAN = "torch_scan", 256, 182_000.0, -(1 << 61)
"""Elements of a CTA and what it counts as where several share a column: once a kernel, under a key that is no buffer.
Six kernels of drawn modules on an H100 and an H200: 5 ns for each CTA."""
_ADDMM, _NUM_FACTORS, _CLONE = "aten.addmm", 2, "aten.clone"
_CONVOLUTION, _IMAGE = "aten.convolution", 4
_UNPADDED, _LINE_BYTES = 1024, 128  # elements of a step
_SPREAD = f"{MAP} 54"  # a bias over rows with gaps: elements one by one, with divisions to find each
_INDEX_BYTES, _STATISTICS_BYTES = 8, 8  # mean and variance of a row
_NODES_OF_CALL, _MAX_NODES = 3, 300  # of Inductor's graph for a call; and for a convolution, to change layouts
_ELEMENT_BYTES = 2
_FEW, _FEW_CHANNELS_INSTRUCTIONS = 8, 220  # channels of 16 bits that lie side by side in pieces, stored one by one
_SMALL_CHANNELS = 64
_GROUPED, _SMALL, _NARROWING, _OTHER = 1.358, 0.783, 0.725, 0.823
"""Inductor's weights of the operations of convolutions with channels last."""

_INTO = ("index_add", "scatter", "scatter_add", "scatter_reduce", "index_put")
_FUSIBLE = {Role.ELEMENTWISE, Role.REDUCTION, Role.WINDOW}
SCATTERS = tuple(f"aten.{name}{end}" for name in _INTO for end in ("", "_"))
"""Operations whose results must be in memory before they are read."""
_STACK = "aten.stack"
_JOINS = ("aten.cat", _STACK)
_MAX_JOINED = 8  # parts that readers find for themselves; more are written to memory
_PLACES = ("aten.argmax", "aten.argmin")  # of one element they are 0, and read nothing


@dataclass(frozen=True, slots=True)
class Lowered:
    """A trace as Inductor sees it.

    `sums_of` has the call of the sums that a call reads and never fuses with, `instructions_of` what constants take
    that a call computes for itself, for each element, by buffers: a kernel computes each once. Other instructions of
    the call have the key None.
    """

    trace: Trace
    num_sms: int
    sums_of: dict[int, int] = field(default_factory=dict)
    instructions_of: dict[int, dict[int | None, float]] = field(default_factory=dict)


def lower(trace: Trace, num_sms: int) -> Lowered:
    """Return a trace with norms, long sums and convolutions as the calls that Inductor makes of them."""
    lowering = _Lowering(trace, num_sms)
    for call in trace.calls:
        lowering.add(call)
    return replace(lowering.result, trace=replace(trace, calls=lowering.calls))


class _Lowering:
    """The calls that were lowered, and what is known of buffers up to here.

    `last` have channels last; `constants` have the instructions that make them, `sums` are results of convolutions and
    the bias, which readers add up for themselves, and what copies are copied from; `complex` are complex numbers;
    `joined` lie where a join has them; `apart` are computed of neighbours in lines of their own.
    """

    def __init__(self, trace: Trace, num_sms: int) -> None:
        self.result = Lowered(trace, num_sms)
        self.calls: list[Call] = []
        self.kept, self.fixed = trace.kept, _fixed(trace)
        self.is_last = _has_channels_last(trace.calls)
        self.numbers = iter(range(-1, -(1 << 60), -1))  # buffers that the trace does not have
        self.constants: dict[int, float] = {}
        self.sums: dict[int, tuple[Access, ...]] = {}
        self.complex: set[int] = set()
        self.joined: set[int] = set()
        self.apart: set[int] = set()
        self.last: set[int] = set()
        self.writers: dict[int, int] = {}
        self.readers: dict[int, list[Role]] = {}
        for call in trace.calls:
            for access in call.reads:
                self.readers.setdefault(access.buffer, []).append(call.role)

    def add(self, call: Call) -> None:
        """Lower an operation of the trace, the next one."""
        if call.name in _JOINS and self._is_in_memory(call):
            call = self._join(call)
        reads = (
            part._replace(num_bytes=min(part.num_bytes, access.num_bytes))
            for access in call.reads
            for part in self.sums.get(access.buffer, (access,))
        )
        written = [access.buffer for access in call.writes]
        changed: dict[str, Any] = {"reads": tuple(dict.fromkeys(reads))}
        if call.role is Role.ELEMENTWISE and len(changed["reads"]) > len(call.reads):
            changed["eager"] = ()  # no kernel of eager mode adds up what it reads
        for buffer in written:
            self.sums.pop(buffer, None)
        lowered = self._in_role(replace(call, **changed))
        computed: dict[int | None, float] = {
            access.buffer: self.constants[access.buffer] for access in lowered.reads if access.buffer in self.constants
        }
        if lowered.role is Role.CONSTANT or self._is_constant(lowered):
            lowered = replace(lowered, role=Role.CONSTANT, reads=())
            self.constants |= dict.fromkeys(written, sum(computed.values()) + _instructions_of(lowered))
        else:
            for buffer in written:
                self.constants.pop(buffer, None)
            more = self._scan_instructions(lowered) or {None: self._layout_instructions(lowered)}
            more |= self._apart_instructions(lowered)
            self.result.instructions_of[len(self.calls)] = computed | more
        if self._is_inlined(lowered):
            self.sums[written[0]] = lowered.reads
        elif lowered.works and isinstance(lowered.works[0], GemmWork):
            self._gemm(lowered)
        elif lowered.role is Role.REDUCTION and "backward" not in lowered.name:
            self._reduction(lowered, is_last=any(access.buffer in self.last for access in call.reads))
        elif lowered.layout is not None:
            self._convolution(lowered, lowered.layout)
        elif lowered.name == _CONVOLUTION and lowered.eager and not (self.is_last and len(lowered.sizes) == _IMAGE):
            self.calls.append(replace(lowered, works=without_bias(lowered.eager)))
        else:
            self.calls.append(lowered)
        self.writers |= dict.fromkeys(written if self.calls else (), len(self.calls) - 1)
        is_last = (lowered.role in _FUSIBLE or is_in_memory(lowered)) and len(call.sizes) == _IMAGE
        is_last = is_last and any(access.buffer in self.last for access in call.reads)
        if is_last or (self.is_last and call.layout is not None and call.layout.is_image):
            self.last.update(written)

    def _layout_instructions(self, call: Call) -> float:
        """Return more instructions of a batch norm of fixed statistics, by how its channels lie."""
        if "batch_norm" not in call.name or call.role is not Role.ELEMENTWISE:
            return 0.0
        if call.is_channels_last or any(access.buffer in self.last for access in call.reads):
            return _NORM_LAST
        return 0.0 if math.prod(call.sizes[2:]) % _LEAST_POSITIONS == 0 else _NORM_ODD

    def _apart_instructions(self, call: Call) -> dict[int | None, float]:
        """Return instructions of a sum of rows for each buffer read a line an element; note which others are so."""
        sources = [access.buffer for access in call.reads if access.buffer in self.apart]
        if any(access.buffer in self.last for access in call.reads):
            return {}
        if call.role is Role.REDUCTION and call.domain.is_inner:
            sources += [access.buffer for access in call.reads[:1] if _reads_apart(call)]
            return dict.fromkeys(sources, _APART_INSTRUCTIONS)
        if call.role is Role.ELEMENTWISE and (sources or _reads_apart(call)):
            self.apart.update(access.buffer for access in call.writes)
        return {}

    def _scan_instructions(self, call: Call) -> dict[int | None, float]:
        """Return the instructions of a scan down columns: CTAs that share one wait for each other, once a kernel."""
        if call.name not in _SCANS or call.domain.is_inner:
            return {}
        rows, width = call.domain.rows or 1, call.domain.width
        if num_splits(rows, width, self.result.num_sms, is_inner=False) > 1:
            return {_SHARED_SCAN: _SCAN_CTA / width * math.ceil(width / _SCAN_BLOCK)}
        return {None: _SCANS[call.name]}

    def _is_in_memory(self, join: Call) -> bool:
        """Say whether parts are written where the join has them (`cat` in lowering.py); else readers find them.

        So are many parts, and those of which some are in memory anyway, unless all readers can choose among them.
        """
        if len(join.reads) > _MAX_JOINED:
            return True
        is_loose = [self._is_loose(access.buffer) for access in join.reads]
        (written, *_) = join.writes
        is_chosen = written.buffer not in self.kept and {*self.readers.get(written.buffer, ())} <= {Role.ELEMENTWISE}
        has_sums = any(self._has_sums(access.buffer) for access in join.reads)
        return not ((any(is_loose) and is_chosen) or (all(is_loose) and not has_sums))

    def _is_loose(self, buffer: int) -> bool:
        """Say whether a part has to be computed or copied, as another kernel does not write it where it is told to."""
        call = self.calls[self.writers[buffer]] if buffer in self.writers and buffer not in self.sums else None
        if call is None or call.role is Role.REDUCTION:
            return call is None or not _is_sum(call)
        return not (call.works and isinstance(call.works[-1], GemmWork))

    def _has_sums(self, buffer: int) -> bool:
        """Say whether a part is computed of sums of rows by the kernel that reads it."""
        if buffer in self.sums or buffer not in self.writers:
            return False
        place = self.writers[buffer]
        call = self.calls[place]
        if call.role is Role.REDUCTION or place in self.result.sums_of:
            return True
        sources = (self.writers.get(access.buffer) for access in call.reads)
        return call.role in _FUSIBLE and any(
            source is not None and self.calls[source].role is Role.REDUCTION for source in sources
        )

    def _join(self, call: Call) -> Call:
        """Return a join that costs nothing, after copies of parts that no kernel writes where they belong.

        Those of the module's inputs are one kernel.
        """
        parts, given = [], []
        for access in call.reads:
            if access.buffer not in self.writers and access.buffer not in self.sums:
                given.append(access)
            elif self._is_in_place(call, access):
                parts.append(access)
            else:
                parts.append(self._copied(call, [access]))
        parts += [self._copied(call, given)] if given else []
        self.joined |= {access.buffer for access in parts}
        return replace(call, role=Role.ALONE, reads=tuple(parts), eager=(), works=())

    def _copied(self, join: Call, parts: Sequence[Access]) -> Access:
        """Add a copy of parts of a join; return what it writes."""
        num_bytes = sum(access.num_bytes for access in parts)
        share = num_bytes / max(1, sum(access.num_bytes for access in join.reads))
        written = Access(next(self.numbers), num_bytes)
        self.readers[written.buffer] = [Role.ALONE]
        domain = Domain(round(join.domain.num_elements * share))
        self.add(replace(join, name="aten.copy", domain=domain, reads=tuple(parts), writes=(written,), eager=()))
        return written

    def _is_in_place(self, join: Call, part: Access) -> bool:
        """Say whether the kernel that makes a part writes it where the join has it."""
        if part.buffer in self.kept | self.joined | self.sums.keys() or part.buffer not in self.writers:
            return False
        call = self.calls[self.writers[part.buffer]]
        if call.role is Role.EXTERN:
            is_gemm = bool(call.works) and isinstance(call.works[-1], GemmWork)
            return is_gemm and join.name != _STACK and len(join.sizes) == _NUM_FACTORS
        is_whole = any(access == part for access in call.writes)
        return call.role in _FUSIBLE and is_whole and (join.name != _STACK or len(self.readers[part.buffer]) == 1)

    def _is_inlined(self, call: Call) -> bool:
        """Say whether an operation is a copy that each kernel makes for itself where it reads it."""
        if call.name != _CLONE or call.role is not Role.ELEMENTWISE:
            return False
        buffer = call.writes[0].buffer
        return buffer not in self.kept and {*self.readers.get(buffer, ())} <= _FUSIBLE

    def _is_constant(self, call: Call) -> bool:
        """Say whether an operation makes a constant of others, which whoever reads it computes for himself.

        So does the place of the largest of one element, whatever that is.
        """
        if call.name in _PLACES and call.domain.width == 1 and not self.complex:
            return True
        is_known = bool(call.reads) and all(access.buffer in self.constants for access in call.reads)
        return (
            is_known and call.role is Role.ELEMENTWISE and not any(access.buffer in self.kept for access in call.writes)
        )

    def _gemm(self, call: Call) -> None:
        """Add a GEMM after copies of results that are padded; a bias goes to all rows before, if they have gaps."""
        works, reads = call.works, list(call.reads)
        for i, access in enumerate(reads):
            writer = self.writers.get(access.buffer)
            if writer is None or access.buffer in self.fixed or not _has_gaps(self.calls[writer], "bmm" in call.name):
                continue
            reads[i] = access._replace(buffer=next(self.numbers))
            self.result.sums_of[len(self.calls)] = writer
            domain = Domain(self.calls[writer].domain.num_elements)
            self.calls.append(
                Call("aten.clone", call.path, call.phase, Role.ELEMENTWISE, domain, (access,), (reads[i],))
            )
        (written, *_), (gemm, *_) = call.writes, works
        if call.name == _ADDMM and len(reads) > _NUM_FACTORS and written.buffer not in self.fixed:
            num_elements = call.domain.num_elements
            N = gemm.problem.N if isinstance(gemm, GemmWork) else 0
            item_bytes = written.num_bytes // num_elements
            stride = _padded_stride(N, item_bytes)
            works = (*padded_bias(reads[0].num_bytes, num_elements // max(N, 1), N, stride, item_bytes), *works)
        self.calls.append(replace(call, works=works, reads=tuple(reads)))

    def _reduction(self, call: Call, *, is_last: bool) -> None:
        is_group = "group_norm" in call.name and (call.domain.rows or 0) > call.sizes[0]
        if is_last and not call.is_channels_last and (_is_sum(call) or is_group or "batch_norm" in call.name):
            is_norm = not _is_sum(call)
            domain = call.domain._replace(is_inner=is_norm or not call.domain.is_inner)
            call = replace(call, is_channels_last=True, domain=domain)
        if is_group and call.is_channels_last:
            self.result.instructions_of[len(self.calls)][None] = _GROUP_INSTRUCTIONS
        stages = list(_stages(call, self.result.num_sms, self.numbers))
        self.calls += stages
        if stages[-1].role is Role.ELEMENTWISE:
            self.result.sums_of[len(self.calls) - 1] = len(self.calls) - len(stages)

    def _convolution(self, call: Call, layout: ConvolutionLayout) -> None:
        is_made = call.reads[0].buffer in self.writers
        (convolution, *biases) = _convolution(call, layout, self.is_last, is_made, self.numbers)
        self.calls += [convolution, *biases]
        buffer = call.writes[0].buffer
        if biases and buffer not in self.kept and {*self.readers.get(buffer, ())} <= _FUSIBLE:
            self.sums[buffer] = self.calls.pop().reads

    def _in_role(self, call: Call) -> Call:
        """Return an operation in the role that it has for Inductor."""
        name = call.name.partition(".")[2].removesuffix("_")
        if call.eager and (
            call.window > UNROLLED_WINDOW
            or name == "polar"
            or any(access.buffer in self.complex for access in call.reads)
        ):
            self.complex |= set() if call.window else {access.buffer for access in call.writes}
            return replace(call, role=Role.ALONE)
        if name == "index_add" and call.role is Role.ALONE and len(call.eager) == 1:  # into a copy
            num_bytes = call.writes[0].num_bytes
            return replace(call, eager=(map_work(num_bytes), *call.eager))
        if name == "nll_loss_forward":
            return self._picked(call)
        if (name.startswith("_adaptive_avg_pool") and call.role is not Role.REDUCTION) or (
            _is_sum(call) and call.domain.width < _UNROLLED and call.domain.rows != 1
        ):
            return replace(call, role=Role.WINDOW, domain=Domain(call.domain.rows or 1), eager=())
        if call.name in _SCANS:
            (*_, scan), num_elements = call.eager, call.domain.num_elements
            domain = Domain(num_elements, call.domain.rows)
            if isinstance(scan, MemoryWork) and scan.what == _COLUMN_SCAN:
                domain = Domain(num_elements, num_elements * _WARP // scan.width, is_inner=False)
            return replace(call, role=Role.REDUCTION, domain=domain, eager=())
        return call

    def _picked(self, call: Call) -> Call:
        """Return a loss of classes, which reads one score of a row: logarithms of the others are not written."""
        scores, target = call.reads[:2]
        rows = target.num_bytes // _INDEX_BYTES
        few_bytes = min(scores.num_bytes, rows * _INDEX_BYTES)
        writer = self.writers.get(scores.buffer)
        reads: tuple[Access, ...] = (scores._replace(num_bytes=few_bytes),)
        if writer is not None and "softmax" in self.calls[writer].name:
            source, statistics = self.calls[writer], Access(next(self.numbers), rows * _STATISTICS_BYTES)
            self.calls[writer] = replace(source, writes=(*source.writes, statistics))
            reads = source.reads[0]._replace(num_bytes=few_bytes), statistics
        return replace(call, domain=Domain(rows, 1), reads=(*reads, *call.reads[1:]))


def _reads_apart(call: Call) -> bool:
    """Say whether eager mode's kernel reads lines of memory for one element each."""
    name, _, instructions = str(getattr(call.eager[0], "what", "")).partition(" ") if call.eager else ("", "", "")
    return name.startswith(_OFFSETS) and int(instructions or 0) >= _LEAST_APART


def is_in_memory(call: Call) -> bool:
    """Say whether a call is a join whose parts lie where they belong: it costs nothing, and keeps them alive."""
    return call.name in _JOINS and call.role is Role.ALONE


def _instructions_of(call: Call) -> int:
    if call.window == UNROLLED_WINDOW:
        return _WINDOW_INSTRUCTIONS
    return _INSTRUCTIONS_OF.get(call.name.partition(".")[2].removesuffix("_"), 0)


def _fixed(trace: Trace) -> set[int]:
    """Return buffers without gaps between rows: what the caller gets, and what is on the way to a convolution."""
    fixed = set(trace.kept)
    for call in reversed(trace.calls):
        if call.layout is not None or (
            not _is_sum(call) and any(access.buffer in fixed - trace.kept for access in call.writes)
        ):
            fixed |= {access.buffer for access in call.reads}
    return fixed


def _is_sum(call: Call) -> bool:
    return call.role is Role.REDUCTION and not any(word in call.name for word in ("norm", "softmax", "arg", "backward"))


def _padded_stride(stride: int, item_bytes: int) -> int:
    """Return the step of a dimension as Inductor takes it: long ones are whole lines of 128 bytes."""
    line = _LINE_BYTES // max(1, item_bytes)
    return -(-stride // line) * line if stride > _UNPADDED else stride


def _has_gaps(call: Call, is_batch: bool) -> bool:
    """Say whether a result that Inductor pads has to be copied before it is a matrix, or a batch of matrices."""
    if call.role not in (Role.ELEMENTWISE, Role.REDUCTION, Role.WINDOW) or not call.writes:
        return False
    item_bytes = call.writes[0].num_bytes // max(1, math.prod(call.sizes))
    stride, is_whole, inner = 1, True, 2 if is_batch else 1
    for i, size in enumerate(reversed(call.sizes[1:])):
        whole = stride * size
        stride = _padded_stride(whole, item_bytes)
        is_whole &= stride == whole or i < inner
    return not is_whole


def _stages(call: Call, num_sms: int, numbers: Iterator[int]) -> Iterator[Call]:
    """Yield the sums of a reduction, in parts where rows are few, and what a norm does with them for each element."""
    domain, reads = call.domain, call.reads
    is_norm = "group_norm" in call.name or "batch_norm" in call.name
    rows, width = domain.rows or 1, domain.width
    is_inner = domain.is_inner and not (is_norm and call.is_channels_last)
    can_split = is_norm or not any(word in call.name for word in ("norm", "softmax", "arg", "cum"))
    while can_split and (splits := num_splits(rows, width, num_sms, is_inner=is_inner)) > 1:
        part = Access(next(numbers), rows * splits * _STATISTICS_BYTES)
        part_domain = Domain(rows * width, rows * splits, is_inner)
        yield replace(call, domain=part_domain, reads=reads, writes=(part,), eager=())
        reads, width = (part,), splits
    # lanes go along short columns where Inductor says nothing of how they lie
    is_along = width <= _LEAST_SPLIT or (width <= _MAX_LOOSE and rows >= num_sms * _MANY_SUMS)
    last = Domain(rows * width, rows, is_inner or (is_along and "cum" not in call.name))
    if not is_norm:
        yield replace(call, domain=last, reads=reads, eager=())
        return
    sums = Access(next(numbers), rows * _STATISTICS_BYTES)
    yield replace(call, domain=last, reads=reads, writes=(sums,), eager=())
    yield replace(call, role=Role.ELEMENTWISE, domain=Domain(domain.num_elements), reads=(*call.reads, sums), eager=())


def num_splits(rows: int, width: int, num_sms: int, *, is_inner: bool) -> int:
    """Return in how many parts Inductor adds up each of `rows` sums of `width` elements; 1: in one kernel."""
    if rows > 1 and (width <= _LEAST_SPLIT or rows >= num_sms * _MANY_SUMS):
        return 1
    is_inner = is_inner or rows == 1
    if is_inner and (rows >= 2 * num_sms or width <= _UNSPLIT_ROW):
        return 1
    num_threads, sm_threads = _WARP * _NUM_WARPS, num_sms * _SM_THREADS
    together = num_threads if is_inner else _COLUMN_LOADS
    if rows * width <= _LEAST_SPLIT * sm_threads:
        return -(-width // (_LEAST_SPLIT * together))
    if rows * width < _MOST_SPLIT * sm_threads:
        blocks = sm_threads // (2 * num_threads if is_inner else num_threads)
        blocks = -(-blocks // (rows if is_inner else -(-rows // _COLUMN_BLOCK)))
        size, tolerance = -(-width // (together * blocks)), 30 if is_inner else 20
    else:
        size, tolerance = _MOST_SPLIT, 50
    even = _nearest_divisor(width, size)
    size = max(even, _LEAST_SPLIT) if abs(even - size) < tolerance else size
    return -(-width // (size * together))


def _nearest_divisor(number: int, wanted: int) -> int:
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return min((*small, *(number // part for part in small)), key=lambda part: abs(part - wanted))


def _has_channels_last(calls: Sequence[Call]) -> bool:
    """Say whether Inductor changes convolutions to channels last."""
    convolutions = [(call.layout, call.works) for call in calls if call.layout is not None]
    if not convolutions or len(calls) * _NODES_OF_CALL >= _MAX_NODES * len(convolutions):
        return False
    layouts = [layout for layout, _ in convolutions]
    if any(call.phase == "backward" for call in calls):
        return not (
            any(layout.is_grouped or _is_narrowing(layout) for layout in layouts) or all(map(_is_small, layouts))
        )
    total = weighted = 0.0
    for layout, works in convolutions:
        flop = sum(work_flop(work)[0] for work in works)
        is_kind = layout.is_grouped, _is_small(layout), _is_narrowing(layout), True
        weights = _GROUPED, _SMALL, _NARROWING, _OTHER
        total += flop
        weighted += flop * next(weight for weight, is_it in zip(weights, is_kind, strict=True) if is_it)
    return weighted <= total


def _is_small(layout: ConvolutionLayout) -> bool:
    return max(layout.filters, layout.group_channels) <= _SMALL_CHANNELS


def _is_narrowing(layout: ConvolutionLayout) -> bool:
    return layout.filters * 2 <= layout.group_channels and layout.window > 1


def _convolution(
    call: Call, layout: ConvolutionLayout, is_last: bool, is_made: bool, numbers: Iterator[int]
) -> Iterator[Call]:
    """Yield a convolution and the sum of its bias, which fuses with what follows; weights change layout each time."""
    works, reads = list(call.works), call.reads
    if layout.is_image and is_last and not layout.has_last_weight:
        copied = [reads[1]] if layout.window > 1 and layout.group_channels > 1 else []
        if not is_made and not layout.has_last_input:
            copied.append(reads[0])
        num_weights = layout.filters * layout.group_channels * layout.window
        is_few = layout.group_channels < _FEW and reads[1].num_bytes <= _ELEMENT_BYTES * num_weights
        counts = [_FEW_CHANNELS_INSTRUCTIONS if each is reads[0] and is_few else 0 for each in copied]
        works = [*(map_work(each.num_bytes, count) for each, count in zip(copied, counts, strict=True)), *works]
    elif not layout.has_last_weight and call.eager:
        works = [*without_bias(call.eager)]
    if not layout.has_bias:
        yield replace(call, works=tuple(works))
        return
    result = Access(next(numbers), call.writes[0].num_bytes)
    yield replace(call, works=tuple(works), reads=reads[:2], writes=(result,))
    yield replace(call, role=Role.ELEMENTWISE, works=(), eager=(), reads=(result, reads[2]), layout=None)


def without_bias(works: Sequence[Work]) -> tuple[Work, ...]:
    """Return the kernels of a convolution in eager mode but that of its bias."""
    return tuple(work for work in works if not (isinstance(work, MemoryWork) and work.what.startswith(_BIASES)))


def map_work(num_bytes: int, instructions: int = 0) -> MemoryWork:
    """Return a kernel of Inductor that copies so many bytes."""
    instructions = instructions or round(_BASE_INSTRUCTIONS + _LOAD_INSTRUCTIONS)
    return blocks(f"{MAP} {instructions}", num_bytes, num_bytes, num_bytes // _ELEMENT_BYTES)


def compiled_work(
    calls: Sequence[Call], loads: Sequence[int], num_bytes: tuple[int, int], num_sms: int, instructions: float
) -> MemoryWork:
    """Return the kernel that Inductor makes of some calls.

    It reads `loads` of so many bytes from outside; `num_bytes` are those that it reads and writes, `instructions` those
    of constants that it computes.
    """
    sums = next((call for call in calls if call.role is Role.REDUCTION), None)
    num_elements = max(call.domain.num_elements for call in calls)
    rows, width = (max(1, sums.domain.rows or 1), max(1, sums.domain.width)) if sums else (0, 0)
    is_looped = is_twice = False
    if sums is not None and sums.domain.is_inner:
        first = (*calls[: calls.index(sums)], replace(sums, reads=sums.reads[:1]))  # its weights come after
        is_loose = rows >= num_sms * _MANY_SUMS and width > _MAX_LOOSE and _reads_less(first)
        is_looped = width > _MAX_HELD or is_loose
        after = calls[calls.index(sums) + 1 :]
        is_twice = is_looped and (
            sum(access.num_bytes for access in sums.writes) > num_elements
            or any(call.domain.num_elements == num_elements for call in after)
        )
    most = max(loads, default=0)  # what is much smaller is read again and again
    instructions += _LOAD_INSTRUCTIONS * sum(1.0 if 2 * load > most else 0.5 for load in loads) * (1 + is_twice)
    parts = {access.buffer for call in calls if call.name in _JOINS for access in call.reads}
    for call in calls:
        if call.domain.num_elements != rows:
            is_part = any(access.buffer in parts for access in call.writes)  # warps of the other parts skip it
            instructions += _instructions_of(call) * (call.domain.num_elements / num_elements if is_part else 1.0)
    if sums is None:
        return kernel_work(instructions + _INDEX_INSTRUCTIONS * _reads_less(calls), num_bytes, num_elements)
    is_norm = any(word in sums.name for word in ("layer_norm", "group_norm", "batch_norm"))
    of_loop = _MOMENT_INSTRUCTIONS * is_norm
    if "softmax" in sums.name:
        of_loop = _SOFTMAX_INSTRUCTIONS if width <= _MAX_HELD else _MOMENT_INSTRUCTIONS
    instructions += _PASS_INSTRUCTIONS * is_twice + of_loop * is_looped
    return kernel_work(
        instructions, num_bytes, num_elements, rows, width, is_inner=sums.domain.is_inner, is_looped=is_looped
    )


def kernel_work(
    instructions: float, num_bytes: tuple[int, int], num_elements: int, rows: int = 0, width: int = 0, *,
    is_inner: bool = True, is_looped: bool = False,
) -> MemoryWork:  # fmt: skip
    """Return a kernel of Inductor by its instructions for each element, and the bytes that it reads and writes.

    `rows` sums of `width` elements each are `is_inner` or not, and read in pieces if `is_looped`; 0: there are none.
    """
    if not rows:
        return blocks(f"{MAP} {round(instructions + _BASE_INSTRUCTIONS)}", *num_bytes, num_elements)
    block = min(1 << (width - 1).bit_length(), _MAX_BLOCK)
    filled = -(-width // block) * block if is_inner else width
    of_row = _LOOP_INSTRUCTIONS if is_looped else _HELD_INSTRUCTIONS if is_inner else _COLUMN_INSTRUCTIONS
    at_end = min(_LANE_INSTRUCTIONS * filled, of_row) if filled <= _WARP else of_row
    instructions = ((instructions + _ROW_INSTRUCTIONS) * filled + at_end) / width
    together = max(1, _WARP // filled) if is_inner else _WARP  # rows of a warp
    name = f"{LONG_ROWS if is_looped else ROWS} {round(instructions)}"
    return MemoryWork(name, *num_bytes, -(-rows // together), width * together)


def padded_bias(bias_bytes: int, rows: int, columns: int, stride: int, item_bytes: int) -> tuple[Work, ...]:
    """Return the copy of a bias to all rows of a result that have gaps between them, before its GEMM; else nothing."""
    if rows < _NUM_FACTORS or stride == columns:
        return ()
    return (blocks(_SPREAD, bias_bytes, rows * columns * item_bytes, rows * columns),)


def _reads_less(calls: Sequence[Call]) -> bool:
    """Say whether operations up to a sum read anything but whole tensors: a bias, a mask, rows by an index."""
    most = max((access.num_bytes for call in calls for access in call.reads), default=0)
    made = {access.buffer for call in calls for access in call.writes}
    parts = (access for call in calls for access in call.reads if access.buffer not in made)
    return any(_LEAST_BIAS < access.num_bytes < most // 2 for access in parts)
