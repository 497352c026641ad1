"""Laws of layers of experts on GPUs, on random layers of each library that runs them.

Steps beside the GEMMs are compared with the bytes that they move, layers with the data sheet and with what must move
at least, and with layers of a token more, of twice the tokens and of twice the tensor-parallel ranks. What a library's
rule for tiles costs there is stated for each library, as its tables and its steps of tiles are what it runs.
"""

import random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import GEMMEvaluator, MoeLayer, MoeLayerTable, moe_layers
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.models.gpu import default_layer_library
from gemm_eval.moe.runs import coefficients_of
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import GemmTypes
from tools.laws.report import Report

Floats = npt.NDArray[np.float64]

ROUNDING = 1e-9
_MAY_HELP = 0.1
"""Largest part of its time that a layer saves with more work: a tile more can spare a wave of another kernel."""

_TILE_HELPS = 0.6
"""The same where the library's own rule takes another tile, so that an untuned layer meets a tuned one."""

_L2_HELPS = 0.3
"""The same where a part of the work fits an L2 that the whole does not."""

_EDGE = 0.1  # of an L2: what is not counted, such as scales
_LAYERS = 50  # of one library, types and state of L2
_MODELS = (  # hidden, inter, experts, of a token: DeepSeek-V3, gpt-oss, Qwen3, Mixtral, Llama-4, Nemotron
    (7168, 2048, 256, 8), (2880, 2880, 128, 4), (2880, 2880, 32, 4), (2048, 768, 128, 8), (4096, 14336, 8, 2),
    (5120, 8192, 16, 1), (4096, 1536, 128, 8), (4096, 1024, 512, 10), (3584, 1024, 896, 8),
)  # fmt: skip


class ExpertsCase(NamedTuple):
    """A library that runs layers of some types on a GPU; None: the one that serving engines take.

    Attributes:
        gpu, library, dtype: the question.
    """

    gpu: str
    library: str | None
    dtype: str

    def __str__(self) -> str:
        return f"{self.gpu}-{self.library or 'default'}-{self.dtype}"


CASES = (
    ExpertsCase("h200-sxm", None, "bf16"),
    ExpertsCase("h200-sxm", None, "fp8_block"),
    ExpertsCase("h200-sxm", None, "w4a16_mxfp4"),
    ExpertsCase("h200-sxm", None, "w4a16"),
    ExpertsCase("h200-sxm", "triton", "w4a16_mxfp4"),
    ExpertsCase("h200-sxm", "cutlass", "fp8"),
    ExpertsCase("h200-sxm", "cutlass", "fp8_block"),
    ExpertsCase("h200-sxm", "deepgemm", "fp8_block"),
    ExpertsCase("a100-sxm-80gb", None, "bf16"),
    ExpertsCase("a100-sxm-80gb", None, "w4a16_mxfp4"),
    ExpertsCase("a100-sxm-80gb", "cutlass", "bf16"),
    ExpertsCase("b200", None, "bf16"),
    ExpertsCase("b200", None, "fp8_block"),
    ExpertsCase("b200", None, "nvfp4"),
    ExpertsCase("b200", None, "w4a16_mxfp4"),
    ExpertsCase("b200", "cutlass", "nvfp4"),
    ExpertsCase("l40s", None, "bf16"),
    ExpertsCase("l40s", None, "fp8"),
    ExpertsCase("rtx-pro-6000-server", None, "nvfp4"),
    ExpertsCase("rtx-pro-6000-server", None, "w4a16_mxfp4"),
)


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random layers."""
    rng, report = random.Random(seed), Report()
    for start in range(0, count, _LAYERS):
        case = CASES[(seed + start // _LAYERS) % len(CASES)]
        _Checks(case, rng, report, min(_LAYERS, count - start)).check()
    return report


class _Checks:
    def __init__(self, case: ExpertsCase, rng: random.Random, report: Report, num: int) -> None:
        self.case, self.report = case, report
        self.arch, self.types = load_arch(case.gpu, GpuSpec), GemmTypes.parse(case.dtype)
        self.evaluator = GEMMEvaluator(self.arch)
        self.l2 = rng.choice(("cold", "warm"))
        self.layers = [_draw_layer(rng, case.dtype) for _ in range(num)]

    def check(self) -> None:
        table = self.find(self.layers)
        self.check_bytes(table)
        self.check_data_sheet(table)
        more = [layer.with_(num_tokens=layer.num_tokens + 1) for layer in self.layers]
        self.no_faster("a token more", self.find(more), table)
        more = [layer.with_(num_tokens=2 * layer.num_tokens) for layer in self.layers]
        self.no_faster("twice the tokens", self.find(more), table)
        wholes = [layer for layer in self.layers if layer.local_inter % 2 == 0]
        if self.l2 == "cold":  # half of the weights may fit into a warm L2 where all do not
            halves = self.find([layer.with_(tp=2 * layer.tp) for layer in wholes])
            found = self.find(wholes)
            self.no_faster("half of the columns", halves, found, 2, self.are_across_l2(found, halves))

    def find(self, layers: list[MoeLayer]) -> MoeLayerTable:  # nan where the library refuses sizes: no law
        return moe_layers(self.evaluator, layers, library=self.case.library, l2=self.l2, errors="mark", progress=False)

    def check_bytes(self, table: MoeLayerTable) -> None:
        """Hold each step that a library runs as a kernel of its own to the rates of the memory."""
        law = "no step is faster than the memory that its bytes go through"
        rows = table["rows"]
        steps_in_gemms = self.steps_in_gemms()
        for number, layer in enumerate(table.layers):
            token_bytes = 2.0 * layer.num_tokens * layer.hidden
            moved = {
                "permute_us": 2.0 * token_bytes, "quantize_us": 2.0 * token_bytes,
                "activation_us": 2.0 * (2.0 + layer.gated) * rows[number] * layer.local_inter,
                "finalize_us": (2.0 * rows[number] * layer.hidden + token_bytes) * (layer.topk > 1),
            }  # fmt: skip
            for term, num_bytes in moved.items():
                if term in steps_in_gemms:
                    continue
                self.report.checked[law] += 1
                beyond_l2 = max(0.0, num_bytes - self.arch.l2_bytes)
                least_us = max(
                    num_bytes / bytes_per_us(self.arch.l2_gb_per_s), beyond_l2 / bytes_per_us(self.arch.dram_gb_per_s)
                )
                if table[term][number] < least_us * (1.0 - ROUNDING):
                    self.violates(law, layer, f"{term} {table[term][number]} us, at least {least_us}")

    def steps_in_gemms(self) -> set[str]:
        """Return the steps that the library's GEMMs contain, or that types do not need."""
        library = self.case.library or default_layer_library(self.arch, self.types)
        c = coefficients_of(self.arch, library, self.types)
        is_quantized = self.types.a.dtype.bits < 16
        steps = {"permute_us"} if is_quantized or "moe_token_frac" not in c else set()
        steps |= set() if is_quantized else {"quantize_us"}
        steps |= {"activation_us"} if "moe_activation_frac" not in c else set()
        return steps | ({"finalize_us"} if "moe_finalize_frac" not in c else set())

    def check_data_sheet(self, table: MoeLayerTable) -> None:
        law = "no faster than the data sheet, and no less traffic than the weights"
        rate = self.arch.tensor_flop_per_cycle[self.types.a.dtype] * self.arch.num_sms * self.arch.max_clock_ghz * 1e3
        for number, layer in enumerate(table.layers):
            columns = (2 + layer.gated) * layer.local_inter * layer.hidden
            weights = table["num_active"][number] * columns * self.types.b.dtype.bits / 8
            compute_us = 2.0 * table["rows"][number] * columns / rate
            dram_us = weights / bytes_per_us(self.arch.dram_gb_per_s) if self.l2 == "cold" else 0.0
            least_us = max(compute_us, dram_us)
            self.report.checked[law] += 1
            if table["latency_us"][number] < least_us * (1.0 - ROUNDING):
                self.violates(law, layer, f"{table['latency_us'][number]} us, at least {least_us}")
            if self.l2 == "cold" and table["dram_bytes"][number] < weights * (1.0 - ROUNDING):
                self.violates(law, layer, f"{table['dram_bytes'][number]} bytes, at least {weights}")

    def are_across_l2(self, wholes: MoeLayerTable, parts: MoeLayerTable) -> npt.NDArray[np.bool_]:
        """Say of layers whether an L2 of one partition drops all that a GEMM touches, but not what one of a part does.

        Rows that the kernel before wrote are then read from DRAM, and what is written goes there (MODEL.md, "stay").
        """
        if self.arch.num_l2_partitions > 1:
            return np.zeros(len(wholes.layers), np.bool_)
        whole, part = (self.touched_bytes(table) for table in (wholes, parts))
        is_across = (whole > (1.0 - _EDGE) * self.arch.l2_bytes) & (part < (1.0 + _EDGE) * self.arch.l2_bytes)
        return np.asarray(is_across.any(axis=1), np.bool_)

    def touched_bytes(self, table: MoeLayerTable) -> Floats:
        """Bytes [layers, 2] of A, B and C of both GEMMs."""
        layers = table.layers
        hidden, inter = (
            np.array(sizes, np.float64)
            for sizes in zip(*((one.hidden, one.local_inter) for one in layers), strict=True)
        )
        columns = inter * np.array([1 + layer.gated for layer in layers])
        of_a, of_b = (operand.dtype.bits / 8 for operand in (self.types.a, self.types.b))
        rows, active, of_c = table["rows"], table["num_active"], self.types.c.bits / 8
        sizes = ((hidden, columns), (inter, hidden))
        return np.stack([rows * (K * of_a + N * of_c) + active * K * N * of_b for K, N in sizes], axis=1)

    def no_faster(
        self, what: str, more: MoeLayerTable, fewer: MoeLayerTable, ranks: int = 1,
        are_across_l2: npt.NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """Compare layers of more work, or `ranks` times the time of a part of it, with those of less."""
        law = f"{what} is no faster"
        across = np.zeros(len(fewer.layers), np.bool_) if are_across_l2 is None else are_across_l2
        has_fewer_experts = more["num_active"] < fewer["num_active"]  # another rank has most tokens, on fewer experts
        columns = [table[name] for name in ("latency_us", "library") for table in (more, fewer)]
        rows = zip(fewer.layers, has_fewer_experts, across, *columns, strict=True)
        for layer, is_other, is_across, more_us, fewer_us, *libraries in rows:
            if is_other:
                continue
            self.report.checked[law] += 1
            gain = 1.0 - ranks * more_us / fewer_us
            has_other_tile = libraries[0] != libraries[1]
            if gain > ROUNDING:
                why = "another tile of the library's rule" if has_other_tile else "one tile"
                why = "the part fits L2" if is_across else why
                self.report.except_(f"{law}, {why}: {self.case}", gain)
            if gain > (_TILE_HELPS if has_other_tile else _L2_HELPS if is_across else _MAY_HELP):
                self.violates(law, layer, f"{fewer_us} to {ranks} x {more_us} us, by {gain:.3f}")

    def violates(self, law: str, layer: MoeLayer, what: object) -> None:
        self.report.violations.append(f"{law}: {self.case} {self.l2} {layer}: {what}")


def _draw_layer(rng: random.Random, dtype: str) -> MoeLayer:
    hidden, inter, num_experts, topk = rng.choice(_MODELS)
    tp = rng.choice([tp for tp in (1, 2, 4, 8) if inter % tp == 0])
    ep = rng.choice([ep for ep in (1, 1, 2, 8, 32) if num_experts % ep == 0])
    num_tokens = int(2.0 ** rng.uniform(0.0, 14.0))
    return MoeLayer(num_tokens, hidden, inter, num_experts, topk, tp, ep, dtype=dtype)
