"""Laws of fused attention on GPUs, on random problems and all GPU presets: OPERATIONS.md, "Attention".

Every case is one problem, whose answer is compared with the data sheet and with those of a longer, larger and narrower
one. Where a law of the terms does not hold, the cause is named here; corrected answers never fall where terms do not.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.models.gpu.attention import (
    DEFAULT_ATTENTION,
    AttentionCosts,
    AttentionRows,
    attention_answers,
    attention_coefficients,
    attention_costs,
)
from gemm_eval.units import FLOP_PER_MAC, bytes_per_us, us_at_peak
from tools.laws.draws import GPUS
from tools.laws.report import Report

Floats = npt.NDArray[np.float64]

ROUNDING = 1e-9
FEWER_PARTS = 0.3
"""More sequences are cut into fewer parts each, whose sum takes less time than their keys take more."""
MORE_PARTS = 0.15
"""Longer sequences are cut into parts of another length, of which fewer have no keys."""
OTHER_CTAS = 0.6
"""Kernels with a CTA for each query head: where heads are few, TensorRT-LLM gives a CTA more threads and half of the
keys, and all of these may come in two waves.
"""
SHARED_SMS = 0.15
"""Of latents on sm_120: fewer CTAs of 8 bits share a tile and an SM than of 16."""
WIDER_TILES = 0.35
"""A prompt of few tokens computes a whole tile of keys: of 8 bits 256 of them, where 16 bits have 128."""
_GPUS = tuple(arch for arch in GPUS if arch.sm_arch != "gfx90a")  # which has no kernels for latents
_SHORT_PROMPT = 1024
_HELD = 2.0  # of L2: what a kernel may still find there from the call before, as all ranges of hold_frac allow
_PROBLEMS = 500  # of one GPU and phase
_NEVER_CUT = frozenset({"packed_mma_narrow", "latent_cluster"})
_CUT = frozenset({"packed_mma", "packed_wgmma", "packed_tcgen05", "single_tcgen05"})
_CONVERTED = frozenset({"single_narrow", "packed_wgmma"})


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random problems."""
    rng, report = random.Random(seed), Report()
    for start in range(0, count, _PROBLEMS):
        arch = rng.choice(_GPUS)
        draw = rng.choice((_prompts, _expanded, _decode, _latents))
        num = min(_PROBLEMS, count - start)
        _Case(arch, draw(np.random.default_rng(rng.getrandbits(63)), num), report).check()
    return report


def _rows(
    rng: np.random.Generator, num: int, q_len: Floats | None, kv_len: Floats, heads: tuple[Floats, Floats],
    dims: tuple[Floats, Floats], *, is_latent: bool = False,
) -> AttentionRows:  # fmt: skip
    ones, batch = np.ones(num), np.floor(2.0 ** rng.uniform(0.0, 8.0, num))
    q_len = ones if q_len is None else q_len
    batch = np.where(q_len > 1.0, np.clip(batch, 1.0, np.maximum(1.0, (1 << 17) // kv_len)), batch)
    bits = rng.choice((8.0, 16.0), num)
    num_heads, num_kv_heads = heads
    return AttentionRows(
        batch, q_len, kv_len, num_heads, num_kv_heads, *dims, kv_len.copy(), ones, 16.0 * ones, bits,
        ones * is_latent, 0.0 * ones, 0.0 * ones,
    )  # fmt: skip


def _lengths(rng: np.random.Generator, num: int, least: float) -> Floats:
    return np.maximum(np.floor(2.0 ** rng.uniform(0.0, 16.0, num)), least)


def _grouped(rng: np.random.Generator, num: int) -> tuple[Floats, Floats]:
    kv_heads, group = (rng.choice((1.0, 2.0, 3.0, 4.0, 8.0, 16.0), num) for _ in range(2))
    return kv_heads * group, kv_heads


def _prompts(rng: np.random.Generator, num: int) -> AttentionRows:
    dims, length = rng.choice((64.0, 80.0, 128.0, 192.0, 256.0), num), _lengths(rng, num, 1.0)
    return _rows(rng, num, length, length, _grouped(rng, num), (dims, dims))


def _expanded(rng: np.random.Generator, num: int) -> AttentionRows:
    heads, length = rng.integers(1, 129, num).astype(np.float64), _lengths(rng, num, 1.0)
    return _rows(rng, num, length, length, (heads, heads), (np.full(num, 192.0), np.full(num, 128.0)))


def _decode(rng: np.random.Generator, num: int) -> AttentionRows:
    dims = rng.choice((64.0, 80.0, 128.0, 192.0, 256.0), num)
    return _rows(rng, num, None, _lengths(rng, num, 2.0), _grouped(rng, num), (dims, dims))


def _latents(rng: np.random.Generator, num: int) -> AttentionRows:
    heads = np.exp2(rng.integers(0, 8, num).astype(np.float64)), np.ones(num)
    dims = np.full(num, 576.0), np.full(num, 512.0)
    return _rows(rng, num, None, _lengths(rng, num, 2.0), heads, dims, is_latent=True)


class _Case:
    """Random problems of one GPU and phase, with their answers."""

    def __init__(self, arch: GpuSpec, rows: AttentionRows, report: Report) -> None:
        self.arch, self.rows, self.report = arch, rows, report
        self.coefficients = attention_coefficients(arch, DEFAULT_ATTENTION).values
        self.costs = self.cost(rows)

    def cost(self, rows: AttentionRows) -> AttentionCosts:
        return attention_costs(self.arch, self.coefficients, rows, DEFAULT_ATTENTION)

    def check(self) -> None:
        """Check all laws."""
        rows = self.rows
        is_prompt = rows.q_len == rows.kv_len
        self._check_terms()
        self._check_data_sheet()
        for factor in (2.0, 4.0):
            q_len = np.where(is_prompt, rows.q_len * factor, rows.q_len)
            longer = replace(rows, kv_len=rows.kv_len * factor, q_len=q_len, window=rows.window * factor)
            self._check_more("longer", longer)
            self._check_more("more sequences", replace(rows, batch=rows.batch * factor))
            kv_heads = np.where(rows.is_latent > 0, rows.num_kv_heads, rows.num_kv_heads * factor)
            self._check_more("more heads", replace(rows, num_heads=rows.num_heads * factor, num_kv_heads=kv_heads))
        self._check_narrow()

    def _fail(self, law: str, place: int, ratio: float, kernel: str) -> None:
        names = ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "kv_bits")
        sizes = ", ".join(f"{name}={getattr(self.rows, name)[place]:g}" for name in names)
        self.report.violations.append(f"{law} on {self.arch.name}: {ratio:.4f}, {sizes}, {kernel}")

    def _hold(self, law: str, ratios: Floats, causes: Callable[[int, float], str | None], kernels: list[str]) -> None:
        """Count a law; where a ratio is above 1, a cause excuses it or it is a violation."""
        self.report.checked[law] += len(ratios)
        for place in np.flatnonzero(~(ratios <= 1.0 + ROUNDING)).tolist():
            ratio = float(ratios[place])
            cause = causes(place, ratio)
            if cause is None:
                self._fail(law, place, ratio, kernels[place])
            else:
                self.report.except_(f"{law}: {cause}", ratio)

    def _check_terms(self) -> None:
        totals = np.array([sum(terms.values()) for terms in self.costs.terms])
        lowest = np.array([min(terms.values()) for terms in self.costs.terms])
        is_sound = np.isfinite(totals) & (lowest >= 0.0) & (totals > 0.0)
        is_sum = np.abs(totals - self.costs.latency_us) <= ROUNDING * totals
        names = self.costs.families.tolist()
        self._hold("terms are finite and add up", np.where(is_sound & is_sum, 1.0, np.inf), _never, names)

    def _check_data_sheet(self) -> None:
        """No faster than the products at the peak, nor than what L2 does not hold at DRAM's rate."""
        rows, arch = self.rows, self.arch
        pairs = np.where(rows.q_len > 1.0, rows.q_len * (rows.q_len + 1.0) / 2.0, rows.kv_len)
        flop = FLOP_PER_MAC * rows.batch * rows.num_heads * pairs * (rows.head_dim + rows.value_dim)
        known = arch.tensor_flop_per_cycle
        wide = DType.BF16 if DType.BF16 in known else DType.FP16
        narrow = (rows.kv_bits <= 8.0) & (DType.FP8 in known)
        rate = np.where(narrow, arch.peak_tflop_per_s(DType.FP8 if DType.FP8 in known else wide), 0.0)
        rate = np.where(narrow, rate, arch.peak_tflop_per_s(wide))
        names = self.costs.families.tolist()
        self._hold("no faster than the peak", us_at_peak(1.0, 1.0) * flop / rate / self.costs.latency_us, _never, names)
        beyond = np.maximum(rows.kv_bytes - _HELD * arch.l2_bytes, 0.0)
        dram_us = beyond / bytes_per_us(arch.dram_gb_per_s)
        self._hold("no faster than DRAM", dram_us / self.costs.latency_us, _never, names)

    def _check_more(self, law: str, rows: AttentionRows) -> None:
        more = self.cost(rows)
        self._check_corrected(law, rows, more)
        names, others = self.costs.families.tolist(), more.families.tolist()

        def cause(place: int, ratio: float) -> str | None:
            before, after = self.costs.terms[place], more.terms[place]
            if names[place] != others[place]:
                return "TensorRT-LLM's launcher takes another kernel"
            if names[place] == "latent_split" and self.arch.sm_arch in ("sm_100", "sm_103"):
                return "trtllm-gen takes another tile of heads"
            if after["sum_us"] < before["sum_us"] and ratio <= 1.0 + FEWER_PARTS:
                return "fewer parts of a sequence"
            if names[place] in _CUT and after["sum_us"] >= before["sum_us"] and ratio <= 1.0 + MORE_PARTS:
                return "parts of another length"
            if names[place].startswith("single") and ratio <= 1.0 + OTHER_CTAS:
                return "CTAs of other sizes in fewer waves"
            return None

        self._hold(f"{law} is never sooner", self.costs.latency_us / more.latency_us, cause, names)

    def _check_corrected(self, law: str, rows: AttentionRows, costs: AttentionCosts) -> None:
        """A correction of the same kernels keeps the order of the terms."""
        fewer_us, more_us = (
            us.latency_us * attention_answers(self.arch, DEFAULT_ATTENTION, of, us)[:, 0]
            for of, us in ((self.rows, self.costs), (rows, costs))
        )
        is_bound = (costs.families == self.costs.families) & (costs.latency_us >= self.costs.latency_us)
        ratios, names = fewer_us[is_bound] / more_us[is_bound], self.costs.families[is_bound].tolist()
        self._hold(f"{law}, corrected, is never sooner", ratios, _never, names)

    def _check_narrow(self) -> None:
        """An 8-bit cache is read and multiplied no slower; what makes it narrow is in the terms before."""
        wide = self.cost(replace(self.rows, kv_bits=np.full(len(self.rows), 16.0)))
        narrow = self.cost(replace(self.rows, kv_bits=np.full(len(self.rows), 8.0)))
        names = narrow.families.tolist()

        def work(costs: AttentionCosts) -> Floats:
            return np.array([terms["compute_us"] + terms.get("tail_us", 0.0) for terms in costs.terms])

        def cause(place: int, ratio: float) -> str | None:
            is_short = "context" in names[place] and self.rows.q_len[place] <= _SHORT_PROMPT
            if is_short and ratio <= 1.0 + WIDER_TILES:
                return "short prompts pay whole tiles of keys, which are wider in 8 bits"
            if names[place] == "latent_whole" and ratio <= 1.0 + SHARED_SMS:
                return "fewer CTAs share a tile of latents"
            if names[place] in _NEVER_CUT:
                return "kernels for 8 bits that never cut keys"
            if names[place] in _CONVERTED:
                return "kernels for 8 bits that convert keys, as their timings show"
            return None

        self._hold("a narrow cache is never slower", work(narrow) / work(wide), cause, names)


def _never(place: int, ratio: float) -> str | None:
    return None
