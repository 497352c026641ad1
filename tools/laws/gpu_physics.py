"""Laws of physics that the answers of the GPU model must keep, on random problems.

Each law compares the best configs of the same problems under two states, chips, types or sizes, or one answer with a
figure of the data sheet. Where a law holds only up to a tolerance or but for named exceptions, both stand here with
their causes, and in EVIDENCE.md, "Laws".
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval import GemmProblem, UnsupportedError
from gemm_eval.arch import GFX_ARCHS, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import KernelConfig, Schedule
from gemm_eval.models.gpu import AUTO, HYPOTHETICAL, default_library, library_of, pack_gpu
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.sizes import NO_PADDING, load_rules, loads_of, rows_on
from gemm_eval.search.gpu import find_best_config_many
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import RunOptions
from tools.laws import draws
from tools.laws.report import Report

Floats = npt.NDArray[np.float64]
Sizes = npt.NDArray[np.int64]

ROUNDING = 1e-9
BURST_US = 1e3  # the burst clock is that of about 1 ms of load; MODEL.md, "Time"
# A wave waits for its slowest resource, and CTAs come in whole waves: with more SMs, or rows, the last wave is another.
OTHER_WAVES = 0.3
ONE_MORE = 0.175  # the same, and the rule by which a library cuts K, for one row, column, k or GEMM more
_PROBLEMS = 250  # of one chip, types and states
# Where a higher clock alone makes memory no faster, the tensor cores' clock has further to fall.
YIELDS = 1e-2
# Of our kernels on Hopper it falls further, by the power of data on their way: with four times the clock up to 0.15.
OUR_YIELDS = 0.2
_FACTORS = (1.0625, 1.3, 2.0, 4.0)


def run(seed: int, count: int) -> Report:
    """Check laws until `count` answers have been compared."""
    rng, report = random.Random(seed), Report()
    while sum(report.checked.values()) < count:
        arch = draws.draw_arch(rng)
        types = draws.draw_types(rng, arch)
        options = draws.draw_options(rng, types)
        sizes = draws.draw_sizes(rng, _PROBLEMS)
        try:
            case = Case(arch, types, options, sizes, report)
        except UnsupportedError:
            continue
        for law in rng.sample(_LAWS, 4):
            law(case, rng)
    return report


class Case:
    """Random problems of one chip, with their answers."""

    def __init__(
        self, arch: GpuSpec, types: GemmProblem, options: RunOptions, sizes: Sizes, report: Report
    ) -> None:  # fmt: skip
        found = _find(arch, types, options, sizes)
        is_feasible = found["active_sms"] > 0
        self.arch, self.types, self.options, self.report = arch, types, options, report
        self.sizes, self.found = sizes[is_feasible], found[is_feasible]

    @property
    def latency_us(self) -> Floats:
        latency_us: Floats = self.found["latency_us"]
        return latency_us

    def other(
        self,
        *,
        arch: GpuSpec | None = None,
        types: GemmProblem | None = None,
        sizes: Sizes | None = None,
        **options: Any,
    ) -> npt.NDArray[np.void]:
        """Answers with something changed; latencies are inf where nothing runs."""
        asked = self.options._replace(**options)
        found = _find(arch or self.arch, types or self.types, asked, self.sizes if sizes is None else sizes)
        found["latency_us"][found["active_sms"] == 0] = np.inf
        return found

    def check(
        self, law: str, faster_us: Floats, slower_us: Floats, tolerance: float = ROUNDING, what: str = "",
        excepted: dict[str, npt.NDArray[np.bool_]] | None = None,
    ) -> None:  # fmt: skip
        """`faster_us` must not be above `slower_us`, but where a mask of `excepted` says why it may."""
        self.report.checked[law] += len(faster_us)
        with np.errstate(invalid="ignore"):
            ratio = faster_us / slower_us
        bad = ~(ratio <= 1.0 + ROUNDING) & np.isfinite(slower_us)
        for row in np.flatnonzero(bad):
            for name, mask in (excepted or {}).items():
                if mask[row]:
                    self.report.except_(f"{law}: {name}", ratio[row])
                    break
            else:
                if ratio[row] <= 1.0 + tolerance:
                    self.report.except_(f"{law}: within {tolerance:g}", ratio[row])
                    continue
                self.report.violations.append(
                    f"{law}: {ratio[row]:.6f} = {faster_us[row]:.4f} / {slower_us[row]:.4f} us, {what} "
                    f"{self.arch.name} ({self.arch.num_sms} SMs, {self.arch.smem_per_cta_bytes} B) "
                    f"{'x'.join(map(str, self.sizes[row]))} {self.types.input_dtype} x {self.types.weight_dtype} "
                    f"{self.types.group_size} {self.types.zero_dtype} {self.options}"
                )


def _find(arch: GpuSpec, types: GemmProblem, options: RunOptions, sizes: Sizes) -> npt.NDArray[np.void]:
    return find_best_config_many([pack_gpu(arch, types.types, options)], np.zeros(len(sizes), np.int64), sizes)


# --- one answer and the data sheet -----------------------------------------------------------------------------------


def no_faster_than_the_data_sheet(case: Case, _: random.Random) -> None:
    arch, sizes = case.arch, case.sizes.astype(float)
    G, M, K, N = sizes.T
    flop_us = 2 * G * M * K * N / (arch.highest_tflop_per_s(case.types.input_dtype) * 1e6)
    case.check("utilization is at most 1", flop_us, case.latency_us)
    if case.options.l2 != "warm":
        assert case.types.weight_dtype is not None
        read_us = G * K * N * case.types.weight_dtype.bits / 8 / bytes_per_us(arch.dram_gb_per_s)
        case.check("weights are read no faster than the spec's DRAM", read_us, case.latency_us)
    if case.options.l2 == "cold-all":
        read_us += G * M * K * case.types.input_dtype.bits / 8 / bytes_per_us(arch.dram_gb_per_s)
        case.check("operands are read no faster than the spec's DRAM", read_us, case.latency_us)
    case.check("launch is part of it", np.full(len(sizes), arch.graph_node_us), case.latency_us)


# --- states ----------------------------------------------------------------------------------------------------------


def states(case: Case, _: random.Random) -> None:
    us = {l2: case.other(l2=l2)["latency_us"] for l2 in ("warm", "cold", "cold-all")}
    case.check("warm is no slower than cold", us["warm"], us["cold"])
    case.check("cold is no slower than cold-all", us["cold"], us["cold-all"])


def clocks(case: Case, _: random.Random) -> None:
    us = {clock: case.other(clock=clock)["latency_us"] for clock in ("burst", "sustained")}
    case.check("burst is no slower than sustained", us["burst"], us["sustained"])


# --- more of everything ----------------------------------------------------------------------------------------------


def _scaled(table: Any, factor: float) -> dict[Any, float]:
    return {dtype: value * factor for dtype, value in table.items()}


def _faster_clocks(arch: GpuSpec, factor: float) -> dict[str, Any]:
    return {
        "max_clock_ghz": arch.max_clock_ghz * factor,
        "boost_clock_ghz": arch.boost_clock_ghz * factor,
        "tensor_clock_burst_ghz": _scaled(arch.tensor_clock_burst_ghz, factor),
        "tensor_clock_sustained_ghz": _scaled(arch.tensor_clock_sustained_ghz, factor),
    }


_MORE: dict[str, Callable[[GpuSpec, float], dict[str, Any]]] = {
    "DRAM bandwidth": lambda arch, f: {"dram_gb_per_s": arch.dram_gb_per_s * f},
    "L2 bandwidth": lambda arch, f: {"l2_bytes_per_cycle": arch.l2_bytes_per_cycle * f},
    "L2": lambda arch, f: {"l2_bytes": int(arch.l2_bytes * f)},
    "clock": _faster_clocks,
    "highest clock alone": lambda arch, f: {"max_clock_ghz": arch.max_clock_ghz * f},
    "tensor clock": lambda arch, f: {
        "max_clock_ghz": arch.max_clock_ghz * f,
        "tensor_clock_burst_ghz": _scaled(arch.tensor_clock_burst_ghz, f),
        "tensor_clock_sustained_ghz": _scaled(arch.tensor_clock_sustained_ghz, f),
    },
    "tensor rate": lambda arch, f: {"tensor_flop_per_cycle": _scaled(arch.tensor_flop_per_cycle, f)},
    "shared-memory bandwidth": lambda arch, f: {"smem_bytes_per_cycle": arch.smem_bytes_per_cycle * f},
    "DRAM latency": lambda arch, f: {"dram_latency_ns": arch.dram_latency_ns / f},
    "launch": lambda arch, f: {"graph_node_us": arch.graph_node_us / f},
    "issue slots": lambda arch, f: {
        "issue_slots_per_cycle": arch.issue_slots_per_cycle * f, "half2_ops_per_cycle": arch.half2_ops_per_cycle * f,
    },
}  # fmt: skip
_QUANTIZED: dict[str, Callable[[GpuSpec, float], dict[str, Any]]] = {
    "SMs": lambda arch, f: {"num_sms": int(arch.num_sms * f)},
    "shared memory": lambda arch, f: {
        name: int(getattr(arch, name) * f) for name in ("smem_per_sm_bytes", "smem_per_cta_bytes")
    },
}


def _more_is_not_slower(case: Case, rng: random.Random) -> None:
    what, factor = rng.choice(sorted(_MORE)), rng.choice(_FACTORS)
    after = case.other(arch=case.arch.with_(**_MORE[what](case.arch, factor)))
    is_clock = what == "highest clock alone"
    tolerance, of_ours = (YIELDS, OUR_YIELDS) if is_clock else (ROUNDING, YIELDS)
    case.check(
        f"more {what} is not slower", after["latency_us"], case.latency_us, tolerance, what=f"x{factor}",
        excepted={_MOVING_POWER: _are_ours_within(case, after, of_ours)},
    )  # fmt: skip


def _more_sms_are_not_slower(case: Case, rng: random.Random) -> None:
    what, factor = rng.choice(sorted(_QUANTIZED)), rng.choice(_FACTORS)
    after = case.other(arch=case.arch.with_(**_QUANTIZED[what](case.arch, factor)))
    case.check(
        f"more {what} are not slower", after["latency_us"], case.latency_us, OTHER_WAVES, what=f"x{factor}",
        excepted={_OTHER_SPLIT: _is_cut_otherwise(after, case.found)},
    )  # fmt: skip


def less_hardware_is_not_faster(case: Case, rng: random.Random) -> None:
    """A preset is compared with chips that have less of something, and more of it."""
    _more_is_not_slower(case, rng)
    _more_sms_are_not_slower(case, rng)


# --- quantization of A -----------------------------------------------------------------------------------------------


def _quantization(case: Case, rng: random.Random) -> None:
    """It takes time, from a wider type no less, and from a faster memory no more; the GEMM behind it stays the same."""
    if case.types.input_dtype.bits >= DType.FP16.bits:
        return
    found = {source: case.other(quantize_from=source) for source in (None, "bf16", "fp32")}
    us = {source: records["latency_us"] for source, records in found.items()}
    case.check("no GEMM is faster behind the quantization of A", us[None], us["bf16"])
    case.check("quantization from bf16 is no slower than from fp32", us["bf16"], us["fp32"])
    kernels = {source: found[source][list(KernelConfig._fields)] for source in (None, "bf16")}
    is_another = (kernels[None] != kernels["bf16"]).astype(float)
    case.check("the kernel behind the quantization of A is the same", 1.0 + is_another, np.ones(len(is_another)))
    what, factor = rng.choice(("DRAM bandwidth", "L2 bandwidth", "L2")), rng.choice(_FACTORS)
    after = case.other(arch=case.arch.with_(**_MORE[what](case.arch, factor)), quantize_from="bf16")
    case.check(f"more {what} is not slower with quantization", after["latency_us"], us["bf16"], what=f"x{factor}")


# --- types and sizes -------------------------------------------------------------------------------------------------


def _fp8_is_not_slower(case: Case, _: random.Random) -> None:
    rates = case.arch.tensor_flop_per_cycle
    if case.types.is_weight_quantized or DType.FP8 not in rates or case.types.input_dtype is DType.FP8:
        return
    if case.types.input_dtype not in (DType.FP16, DType.BF16):
        return
    types = GemmProblem(1, 1, 1, 1, DType.FP8)
    narrow = case.other(types=types)
    is_less = (_alignment(types, case.sizes) < _alignment(case.types, case.sizes)).any(axis=0)
    excepted = {
        _FEWER_BYTES: is_less,
        _OTHER_SPLIT: _is_cut_otherwise(narrow, case.found),
        "one row of 16 bits has kernels without tensor cores": case.found["schedule"] == Schedule.VECTOR,
        "few rows of fp8 have kernels without tensor cores": narrow["schedule"] == Schedule.VECTOR,
        "AMD's libraries of 8 and 16 bits are fitted apart": np.full(len(narrow), case.arch.sm_arch in GFX_ARCHS),
    }
    case.check("fp8 is not slower than 16 bits", narrow["latency_us"], case.latency_us, excepted=excepted)


def _batch_is_not_slower(case: Case, _: random.Random) -> None:
    one = case.sizes.copy()
    one[:, 0] = 1
    alone, batch = case.other(sizes=one, l2="cold-all"), case.other(l2="cold-all")
    is_long = (batch["latency_us"] > BURST_US) & (case.options.clock == "burst")
    case.check(
        "a batch is not slower than its GEMMs one by one", batch["latency_us"], alone["latency_us"] * case.sizes[:, 0],
        OTHER_WAVES,
        excepted={
            "it is longer than the bursts in which each of them has its clock": is_long,
            "L2 holds A of each of them between the passes of its quantization, not that of all": (
                batch["quantize_us"] > alone["quantize_us"] * case.sizes[:, 0]
            ),
            _OTHER_SPLIT: _is_cut_otherwise(batch, alone),
            "single GEMMs of few rows have kernels of their own": batch["family"] != alone["family"],
        },
    )  # fmt: skip


def bigger_is_not_faster(case: Case, rng: random.Random) -> None:
    """A larger GEMM is not faster, but by a tolerance."""
    axis = rng.randrange(4)
    more = case.sizes.copy()
    step = rng.choice(("one", "block", "twice"))
    if step == "twice":
        more[:, axis] *= 2
        law, tolerance = f"twice the {'GMKN'[axis]} is not faster", OTHER_WAVES
    else:
        more[:, axis] += 1 if step == "one" else _BLOCK
        law, tolerance = f"{1 if step == 'one' else _BLOCK} {'GMKN'[axis]} more is not faster", ONE_MORE
    found = case.other(sizes=more)
    before, after = _alignment(case.types, case.sizes), _alignment(case.types, more)
    excepted = {
        _FEWER_BYTES: (before < after).any(axis=0),
        "its columns of B, off 16 bytes, are whole lines of the same banks": (
            ~_are_aligned(case.types, case.sizes) & (before[1] == _LINE_BITS) & (after[1] < _LINE_BITS)
        ),
        "another library answers auto": _is_ours(case.found) != _is_ours(found),
        "another family, for rows that start on fewer or more bytes": (
            (case.found["family"] != found["family"]) | (_loads(case.types, case.sizes) != _loads(case.types, more))
        ),
        _OTHER_SPLIT: _is_cut_otherwise(case.found, found),
        "its columns of B, as the library pads them, are whole lines": (
            ~_have_whole_lines(case) & _have_whole_lines(case, more)
        ),
        "kernels run only a K of whole k-steps": (
            (_least_steps(case.found) > 0) & (more[:, 2] & -more[:, 2] > case.sizes[:, 2] & -case.sizes[:, 2])
        ),
        "few rows have kernels without tensor cores, by the library's rule": (
            (case.found["schedule"] == Schedule.VECTOR) & (found["schedule"] != Schedule.VECTOR)
        ),
        "below timed sizes the correction fades": (
            (case.found["correction_factor"] != found["correction_factor"]) & (case.sizes[:, 2:] < _BLOCK).any(axis=1)
        ),
        _BATCHED: (case.found["correction_factor"] != 1.0) & (case.sizes[:, 0] != more[:, 0]),
        _ONE_ROW: (case.found["correction_factor"] != 1.0) & (case.sizes[:, 1] == 1),
        "it has more rows outside the matrix, which TMA fills": (
            case.latency_us - case.found["outside_us"] <= found["latency_us"] - found["outside_us"]
        ),
    }
    case.check(law, case.latency_us, found["latency_us"], tolerance, excepted=excepted)


_MOVING_POWER = "data that come faster take more power, and the clock of our kernels yields"
_FEWER_BYTES = "its rows start on fewer bytes"
_ONE_ROW = "timings showed that one row takes other kernels"
_BATCHED = "nothing was learned of batches"
_OTHER_SPLIT = "K is cut otherwise, by the library's rule"


def _least_steps(found: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the bytes of the only k-step of each answer's family that runs any K; 0: all do."""
    least = {family.number: family.least_step_bytes for family in FAMILIES.values()}
    return np.array([least[number] for number in found["family"].tolist()], np.int64)


def _is_ours(found: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return whether our own kernels answer."""
    ours = [family.number for family in FAMILIES.values() if family.is_ours]
    is_ours: npt.NDArray[np.bool_] = np.isin(found["family"], ours)
    return is_ours


def _are_ours_within(case: Case, after: npt.NDArray[np.void], tolerance: float) -> npt.NDArray[np.bool_]:
    """Return whether our own kernels answer after a change, slower by no more than their clock yields."""
    ours: npt.NDArray[np.bool_] = _is_ours(after) & (after["latency_us"] <= case.latency_us * (1.0 + tolerance))
    return ours


def _are_aligned(types: GemmProblem, sizes: Sizes) -> npt.NDArray[np.bool_]:
    """Return whether rows start on 16 bytes; others run with another family's coefficients."""
    are: npt.NDArray[np.bool_] = rows_on(types.types, 16).takes(*sizes[:, 1:].T)
    return are


def _loads(types: GemmProblem, sizes: Sizes) -> npt.NDArray[np.int64]:
    """Return the bytes of loads that all rows allow: kernels of other loads have coefficients and corrections apart."""
    return loads_of(load_rules(types.types, NO_PADDING), *sizes[:, 1:].T)


def _have_whole_lines(case: Case, sizes: Sizes | None = None) -> npt.NDArray[np.bool_]:
    """Return whether columns of B, of K as the library pads it, are whole lines of L2, or no longer than one."""
    types = case.types.types
    name = case.options.library or default_library(case.arch, types)
    padding = library_of(HYPOTHETICAL if name == AUTO else name).padding(case.arch.sm_arch, types)
    K = -(-(case.sizes if sizes is None else sizes)[:, 2] // padding.k_multiple) * padding.k_multiple
    bits = K * types.b.dtype.bits
    whole: npt.NDArray[np.bool_] = (bits % _LINE_BITS == 0) | (bits <= _LINE_BITS)
    return whole


def _is_cut_otherwise(found: npt.NDArray[np.void], other: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return whether K is cut in another way, or was by one of the two."""
    is_other: npt.NDArray[np.bool_] = found["split_k"] != other["split_k"]
    is_other |= found["decomposition"] != other["decomposition"]
    return is_other


def _alignment(types: GemmProblem, sizes: Sizes) -> npt.NDArray[np.int64]:
    """Bits, at most those of a line of L2, on which the rows of A, B and C all start, [3, rows]; C at most 16 bytes."""
    assert types.weight_dtype is not None
    assert types.output_dtype is not None
    c_bits = sizes[:, 3] * types.output_dtype.bits
    if not types.is_weight_quantized:
        c_bits = np.where(sizes[:, 3] == 1, _LOAD_BITS, c_bits)  # one column is one row
    bits = np.stack([sizes[:, 2] * types.input_dtype.bits, sizes[:, 2] * types.weight_dtype.bits, c_bits])
    alignment: npt.NDArray[np.int64] = np.minimum(bits & -bits, np.array([[_LINE_BITS], [_LINE_BITS], [_LOAD_BITS]]))
    return alignment


_LINE_BITS, _LOAD_BITS = 128 * 8, 16 * 8
_BLOCK = 128  # rows, columns or k, as layers differ


_LAWS = (
    no_faster_than_the_data_sheet, states, clocks, _more_is_not_slower, _more_is_not_slower,
    _more_sms_are_not_slower, _quantization, _fp8_is_not_slower, _batch_is_not_slower, bigger_is_not_faster,
)  # fmt: skip
