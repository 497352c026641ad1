"""A layer of experts: its GEMMs by hand, terms that add up, ranks, draws, what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import (
    GemmEvalError,
    GEMMEvaluator,
    GemmProblem,
    InvalidOptionError,
    MoeLayer,
    MoeLayerResult,
    UnsupportedError,
    load_arch,
    moe_layer,
    moe_layers,
)
from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import parse_scheme
from gemm_eval.evaluate import ProblemBatch
from gemm_eval.evaluate.interval import CORRECTION
from gemm_eval.models.gpu import LayerShape, layer_libraries
from gemm_eval.moe import BREAKDOWN, ExpertCounts, ExpertWeights
from gemm_eval.workload import GemmTypes

GPU, CHIP = "h200-sxm", "demo-8core"
SIZES = {"num_tokens": 64, "hidden": 256, "inter": 128, "num_experts": 16, "topk": 4}


@pytest.fixture(scope="module", params=[GPU, CHIP])
def evaluator(request: pytest.FixtureRequest) -> GEMMEvaluator:
    return GEMMEvaluator(request.param, disk_cache=False)


def layer(evaluator: Any = GPU, **changes: Any) -> MoeLayerResult:
    return moe_layer(evaluator, **(SIZES | changes))


class Spy(GEMMEvaluator):
    """Keeps what it is asked."""

    batch: ProblemBatch

    def evaluate_batch(self, batch: ProblemBatch, **options: Any) -> Any:
        assert not hasattr(self, "batch")  # one batch has all
        self.batch = batch
        return super().evaluate_batch(batch, **options)

    @property
    def problems(self) -> list[GemmProblem]:
        return [self.batch.problem(row) for row in range(len(self.batch.sizes))]

    @property
    def libraries(self) -> list[str]:
        return [self.batch.kinds[kind].options.library for kind in self.batch.kind_of]


def spied(**changes: Any) -> Spy:
    spy = Spy(GPU, disk_cache=False)
    layer(spy, **({"dtype": "fp16"} | changes))
    return spy


def asked(**changes: Any) -> list[GemmProblem]:
    return spied(**changes).problems


def rules_of(library: str | None, arch: Any = GPU, dtype: str = "fp16", **changes: int) -> tuple[Any, Any]:
    """The library of GEMM 1 and 2 by the rules of a library; None on chips that have none."""
    if library is None:
        return None, None
    sizes = SIZES | changes
    shape = LayerShape(*(sizes[name] for name in ("num_tokens", "hidden", "inter", "num_experts", "topk")), gated=2)
    return layer_libraries(load_arch(arch, GpuSpec), library, GemmTypes.parse(dtype), shape)


# The GEMMs.


RAGGED = {"num_tokens": 6, "num_experts": 8, "topk": 2, "ep": 2, "distribution": ExpertCounts((0, 3, 1, 1, 5, 2, 0, 0))}


@pytest.mark.parametrize(
    ("changes", "gemms"),
    [
        ({}, [((16,) * 16, 256, 256), ((16,) * 16, 128, 256)]),  # 64 tokens * 4 / 16 experts
        (RAGGED, [((5, 2, 0, 0), 256, 256), ((5, 2, 0, 0), 128, 256)]),  # of rank 1, which has 7 of 12
        ({"tp": 4}, [((16,) * 16, 256, 2 * 128 // 4), ((16,) * 16, 128 // 4, 256)]),
        ({"gated": False}, [((16,) * 16, 256, 128), ((16,) * 16, 128, 256)]),
    ],
)
def test_gemms_of_a_layer_by_hand(changes: dict[str, Any], gemms: list[Any]) -> None:
    assert asked(**changes) == [GemmProblem.grouped(*sizes) for sizes in gemms]


def test_shared_experts_run_as_one_on_the_tokens_of_the_rank() -> None:
    *_, first, second = asked(ep=4, tp=2, num_shared_experts=2, shared_inter=96)

    assert first.sizes == (1, 16, 256, 2 * 96)
    assert second.sizes == (1, 16, 96, 256)


@pytest.mark.parametrize(
    ("library", "of_experts", "of_shared"),
    [
        (None, "triton", "cublas"),
        ("triton", "triton", "cublas"),
        ("triton/64x64x32w4s3", "triton/64x64x32w4s3", "cublas"),  # a tile of the experts is none of theirs
        ("cublas", "cublas", "cublas"),
    ],
)
def test_shared_experts_run_with_a_library_of_plain_gemms(library: Any, of_experts: str, of_shared: str) -> None:
    spy = spied(library=library, num_shared_experts=1, shared_inter=96)

    assert spy.libraries == [*rules_of(of_experts), of_shared, of_shared]


@pytest.mark.parametrize("dtype", ["fp8_block", parse_scheme("fp8_block"), GemmTypes.parse("fp8_block")])
def test_types_are_words_schemes_or_values(dtype: Any) -> None:
    result = layer(GPU, dtype=dtype)

    assert result.gemm1 is not None
    assert result.gemm1.problem.types == GemmTypes.parse("fp8_block")
    assert "fp8" in result.to_dict()["layer"]["dtype"]


def test_options_of_gpus_reach_the_gemms() -> None:
    cold, warm = layer(GPU), layer(GPU, l2="warm", clock="sustained", correction=False)

    assert cold.gemm1 is not None
    assert warm.gemm1 is not None
    assert (warm.gemm1.options["l2"], warm.gemm1.options["clock"]) == ("warm", "sustained")
    assert warm.gemm1.options["correction"] is False
    assert warm.breakdown["gemm1_us"] < cold.breakdown["gemm1_us"]
    assert cold.library == rules_of("triton", dtype="bf16")[0] != "triton"
    named = layer(GPU, library="cublas")
    assert named.gemm1 is not None
    assert named.library == named.gemm1.options["library"] == "cublas"
    with pytest.raises(UnsupportedError):
        layer(CHIP, l2="warm")


# The result.


@pytest.mark.parametrize("distribution", ["balanced", "uniform", "power_law_1.2"])
@pytest.mark.parametrize("rank", ["most_loaded", "mean", 1])
def test_terms_add_up(evaluator: GEMMEvaluator, distribution: str, rank: Any) -> None:
    result = layer(evaluator, distribution=distribution, rank=rank, ep=4, num_shared_experts=1, dtype="fp16")
    assert tuple(result.breakdown) == BREAKDOWN
    assert sum(result.breakdown.values()) == pytest.approx(result.latency_us, rel=1e-12)
    assert all(us >= 0 for term, us in result.breakdown.items() if term != CORRECTION)
    assert len(result.draws) == (1 if str(result.layer.distribution) == "balanced" else 5)
    for draw in result.draws:
        assert sum(draw.breakdown.values()) == pytest.approx(draw.latency_us, rel=1e-12)
    latencies = [draw.latency_us for draw in result.draws]
    assert result.latency_us == pytest.approx(np.mean(latencies), rel=1e-12)
    assert result.std_us == pytest.approx(np.std(latencies), abs=1e-9)
    assert (result.min_us, result.max_us) == (min(latencies), max(latencies))
    for term in BREAKDOWN:
        assert result.breakdown[term] == pytest.approx(np.mean([draw.breakdown[term] for draw in result.draws]))


@pytest.mark.parametrize("library", [None, "cublas"])
def test_the_gemms_are_those_of_the_evaluator(evaluator: GEMMEvaluator, library: str | None) -> None:
    is_gpu = isinstance(evaluator.arch, GpuSpec)
    result = layer(evaluator, dtype="fp16", library=library if is_gpu else None)

    of_first, of_second = rules_of((library or "triton") if is_gpu else None)
    first = evaluator.evaluate_grouped((16,) * 16, 256, 256, "fp16", library=of_first)
    second = evaluator.evaluate_grouped((16,) * 16, 128, 256, "fp16", library=of_second)
    assert (result.gemm1, result.gemm2) == (first, second)
    assert (result.breakdown["gemm1_us"], result.breakdown["gemm2_us"]) == (first.latency_us, second.latency_us)
    assert result.flop == first.flop + second.flop == 2 * 256 * 3 * 256 * 128
    assert result.dram_bytes == first.dram_bytes + second.dram_bytes


def test_shared_experts_cost_their_gemms_and_an_activation(evaluator: GEMMEvaluator) -> None:
    alone, both = layer(evaluator, dtype="fp16"), layer(evaluator, dtype="fp16", num_shared_experts=1)
    gemms = evaluator.evaluate_many([(1, 64, 256, 256), (1, 64, 128, 256)], "fp16")

    others = [term for term in BREAKDOWN if term != "shared_us"]
    assert {term: both.breakdown[term] for term in others} == {term: alone.breakdown[term] for term in others}
    assert both.breakdown["shared_us"] > gemms["latency_us"].sum()
    assert both.flop == alone.flop + sum(2 * 64 * 256 * 128 * n for n in (2, 1))


def test_the_gemms_shown_are_of_the_median_draw() -> None:
    result = layer(GPU, distribution="power_law_1.2", num_draws=7, num_tokens=300)
    median = sorted(result.draws, key=lambda draw: draw.latency_us)[3]

    assert result.gemm1 is not None
    assert result.gemm1.latency_us == median.breakdown["gemm1_us"]
    assert median.max_rows == result.gemm1.problem.M


def test_a_rank_without_a_token_runs_no_gemm(evaluator: GEMMEvaluator) -> None:
    counts = ExpertCounts((4, 4, 0, 0))
    result = layer(evaluator, num_tokens=4, num_experts=4, topk=2, ep=2, distribution=counts, rank=1)

    assert (result.gemm1, result.gemm2, result.rows, result.flop, result.expert_imbalance) == (None, None, 0, 0, 0)
    assert {term for term, us in result.breakdown.items() if us > 0} == {"routing_us"}
    assert result.bound == "routing"
    assert "GEMM 1" not in result.explain()
    json.dumps(result.to_dict())


def test_the_mean_rank_is_the_mean_of_all_ranks() -> None:
    options: dict[str, Any] = {"ep": 4, "distribution": "power_law_1.2", "evaluator": GPU, "num_draws": 3}
    mean = layer(rank="mean", **options)
    of_ranks = [layer(rank=rank, **options) for rank in range(4)]
    most = layer(**options)

    assert mean.latency_us == pytest.approx(np.mean([result.latency_us for result in of_ranks]), rel=1e-12)
    assert mean.rows == 64
    for draw in range(3):
        of_draw = [result.draws[draw] for result in of_ranks]
        assert most.draws[draw] == max(of_draw, key=lambda d: d.rows)
        assert most.draws[draw].imbalance == max(d.rows for d in of_draw) / 64


# Laws.


# Many at once.


def test_many_layers_are_each_the_one(evaluator: GEMMEvaluator) -> None:
    layers = [
        MoeLayer(**SIZES).with_(
            num_tokens=tokens,
            ep=ep,
            tp=3 - min(ep, 2),
            distribution=of,
            rank=rank,
            num_shared_experts=ep % 2,
            dtype=dtype,
        )
        for tokens in (1, 40)
        for ep in (1, 4)
        for of in ("balanced", "uniform")
        for rank in ("most_loaded", "mean")
        for dtype in ("fp16", "w4a16")
    ]
    table = moe_layers(evaluator, layers)
    alone = [
        moe_layer(evaluator, **{name: getattr(item, name) for name in MoeLayer.__dataclass_fields__}) for item in layers
    ]

    assert len(table) == len(layers)
    assert list(table) == alone
    assert table["latency_us"].tolist() == [result.latency_us for result in alone]
    for name in ("std_us", "gemm1_us", "flop", "imbalance", "expert_imbalance", "bound", "library"):
        values = [result.breakdown[name] if name in BREAKDOWN else getattr(result, name) for result in alone]
        assert table[name].tolist() == values, name
    assert table[-1] == alone[-1]


def test_mappings_and_frames_of_layers() -> None:
    rows: list[dict[str, Any]] = [SIZES, SIZES | {"ep": 2, "distribution": "uniform", "dtype": "fp16"}]
    table = moe_layers(GPU, rows)

    framed = moe_layers(GPU, pd.DataFrame(rows))  # where ep of the first row is nan
    assert framed.to_dicts() == table.to_dicts()
    frame = table.to_pandas()
    assert tuple(frame.columns) == table.columns
    assert frame["latency_us"].tolist() == table["latency_us"].tolist()
    assert frame["distribution"].tolist() == ["balanced", "uniform"]
    assert json.loads(json.dumps(table.to_dicts())) == table.to_dicts()


def test_what_is_wrong_with_a_layer_names_its_place() -> None:
    for layers, words in (
        ([SIZES, SIZES | {"topk": 17}], "layer 1: topk must be <= num_experts = 16, got 17"),
        ([SIZES | {"tokens": 3}], "layer 0: a field must be one of num_tokens"),
        ([{"num_tokens": 3}], "layer 0: hidden, inter, num_experts, topk missing"),
        ([(1, 2, 3)], "layer 0 must be a MoeLayer or a mapping of its fields, got (1, 2, 3)"),
        (MoeLayer(**SIZES), "layers must be an iterable of MoeLayer"),
        ([], "layers must be at least one layer"),
    ):
        with pytest.raises(InvalidOptionError) as caught:
            moe_layers(CHIP, layers)
        assert words in str(caught.value)
    with pytest.raises(KeyError, match="column must be one of"):
        moe_layers(CHIP, [SIZES])["latency"]
    with pytest.raises(IndexError):
        moe_layers(CHIP, [SIZES])[1]


# What it says.


INTERVALS: list[tuple[str, dict[str, Any]]] = [
    ("b200", {"dtype": "fp8_block"}),
    ("b200", {"dtype": "nvfp4", "ep": 8, "distribution": "power_law_1.2", "num_shared_experts": 1}),
    ("h200-sxm", {"dtype": "bf16", "distribution": "uniform", "rank": "mean", "ep": 4, "num_draws": 2}),
    ("h200-sxm", {"dtype": "bf16", "library": "cublas"}),
    ("h200-sxm", {"dtype": "bf16", "library": "torch"}),
    ("l40s", {"dtype": "bf16", "num_shared_experts": 1}),
    ("tpu-v4", {"dtype": "bf16"}),
    (CHIP, {"dtype": "fp16", "num_shared_experts": 1}),
]


@pytest.mark.parametrize(("arch", "options"), INTERVALS)
@pytest.mark.parametrize("num_tokens", [1, 3000])
def test_an_interval_is_around_the_sum_of_the_terms(arch: str, options: dict[str, Any], num_tokens: int) -> None:
    result = moe_layer(arch, num_tokens, 4096, 1024, 64, 4, **options)
    assert result.low_us < result.latency_us < result.high_us < 4.01 * result.low_us
    assert sum(result.breakdown.values()) == pytest.approx(result.latency_us, rel=1e-12)
    assert (result.source == "corrected") == (result.breakdown[CORRECTION] != 0.0)
    assert "80% of measured times are expected within" in result.explain()
    assert result.to_dict()["low_us"] == result.low_us


def test_the_correction_is_of_timed_kernels_on_the_gpu_they_were_timed_on() -> None:
    sizes, options = (256, 6144, 2560, 160, 8), {"ep": 8, "dtype": "fp8_block"}
    b200 = load_arch("b200", GpuSpec)
    of_model = moe_layer(b200, *sizes, **options, correction=False)
    corrected = moe_layer(b200, *sizes, **options)
    evaluator = GEMMEvaluator(b200, correction=False)
    assert (of_model.source, of_model.breakdown[CORRECTION]) == ("calibrated", 0.0)
    assert moe_layer(evaluator, *sizes, **options) == of_model
    assert corrected.source == "corrected"
    assert corrected.latency_us == pytest.approx(of_model.latency_us + corrected.breakdown[CORRECTION])
    assert "correction" in corrected.explain()
    changed = moe_layer(b200.with_(dram_gb_per_s=b200.dram_gb_per_s / 2), *sizes, **options)
    assert changed.source == "analytic"
    assert changed.high_us / changed.latency_us > corrected.high_us / corrected.latency_us
    other_generation = moe_layer("l40s", *sizes, ep=8, dtype="bf16")
    assert (other_generation.source, other_generation.breakdown[CORRECTION]) == ("analytic", 0.0)
    own_tile = moe_layer("a100-sxm-80gb", *sizes, ep=8, dtype="bf16", library="triton/64x64x32")
    assert own_tile.breakdown[CORRECTION] == 0.0 != moe_layer("a100-sxm-80gb", *sizes, ep=8).breakdown[CORRECTION]


def test_a_factor_is_of_all_draws_of_a_layer() -> None:
    result = moe_layer("b200", 512, 6144, 2560, 160, 8, ep=8, dtype="fp8_block", distribution="power_law_1.2")
    of_draws = [draw.breakdown[CORRECTION] / (draw.latency_us - draw.breakdown[CORRECTION]) for draw in result.draws]
    assert of_draws == pytest.approx([of_draws[0]] * 5)
    assert of_draws[0] != 0.0


def test_rows_of_draws() -> None:
    result = layer(GPU, distribution="uniform", num_draws=3)
    frame = result.to_pandas()

    assert frame["latency_us"].tolist() == [draw.latency_us for draw in result.draws]
    assert set(BREAKDOWN) < set(frame.columns)
    document = result.to_dict()
    assert document["layer"]["distribution"] == "uniform"
    assert document["breakdown"] == dict(result.breakdown)
    assert json.loads(json.dumps(document)) == document


# What is refused.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_tokens": 0}, "num_tokens must be an integer in 1..2**40, got 0"),
        ({"hidden": 1.5}, "hidden must be an integer"),
        ({"topk": 17}, "topk must be <= num_experts = 16, got 17"),
        ({"tp": 3}, "tp must divide inter = 128, got 3"),
        ({"ep": 3}, "ep must divide num_experts = 16, got 3"),
        ({"rank": 4, "ep": 4}, "rank must be most_loaded, mean, or a number in 0..3 (ep = 4), got 4"),
        ({"rank": "all"}, "rank must be"),
        ({"rank": True}, "rank must be"),
        ({"gated": 1}, "gated must be True or False"),
        ({"distribution": "zipf"}, "distribution must be one of balanced"),
        ({"num_draws": 0}, "num_draws must be an integer in 1..10000"),
        ({"seed": -1}, "seed must be an integer in 0..9223372036854775807"),
        ({"shared_inter": 64}, "shared_inter is for num_shared_experts >= 1"),
        ({"num_shared_experts": 1, "shared_inter": 3, "tp": 2},
            "tp must divide the width of the shared experts, 1 * 3"),
        ({"num_experts": 2048, "topk": 8}, "a rank can have at most 1,024 experts, got 2048 / ep 1: raise ep"),
        ({"distribution": ExpertWeights((1.0,))}, "weights must be one for each of num_experts = 16, got 1"),
        ({"library": "nobody", "evaluator": GPU}, "library must be"),
        ({"dtype": "w3a16"}, "InvalidProblemError: dtype"),
        ({"num_tokens": 1 << 40, "hidden": 1 << 20}, "InvalidProblemError: G*M*K*N must be <= 2**57"),
        ({"evaluator": 3}, "InvalidInputError: evaluator must be a GEMMEvaluator or an arch"),
        ({"evaluator": "a100-sxm-80gb", "dtype": "fp8"}, "UnsupportedError: "),
    ],
)  # fmt: skip
def test_bad_layers_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(GemmEvalError) as caught:
        layer(**changes)

    message = f"{type(caught.value).__name__}: {caught.value}"
    assert (words if "Error: " in words else "InvalidOptionError: ") in message
    assert words in message


def test_a_layer_that_cannot_run_is_marked() -> None:
    """One of sizes that Marlin refuses and one of types that Hopper lacks, between others."""
    sizes = {"num_tokens": 64, "hidden": 4096, "inter": 1024, "num_experts": 8, "topk": 2}
    layers = [
        sizes | {"dtype": "bf16"}, sizes | {"dtype": "nvfp4"}, sizes | {"dtype": "w4a16", "inter": 1025},
        sizes | {"dtype": "w4a16"},
    ]  # fmt: skip
    table = moe_layers("h200-sxm", layers, errors="mark", progress=False)
    assert table.is_feasible.tolist() == [True, False, False, True]
    assert np.isnan(table["latency_us"]).tolist() == [False, True, True, False]
    assert table[3].latency_us == moe_layers("h200-sxm", layers[3:], progress=False)[0].latency_us
    rows = table.to_dicts()
    assert [rows[row]["latency_us"] for row in (1, 2)] == [None, None]
    assert json.loads(json.dumps(rows)) == rows
    for row, message in ((1, "cannot multiply fp4"), (2, "start on 16 bytes")):
        with pytest.raises(UnsupportedError, match=message):
            table[row]
        with pytest.raises(UnsupportedError, match=message):
            moe_layers("h200-sxm", layers[row:], progress=False)
    with pytest.raises(InvalidOptionError, match="errors"):
        moe_layers("h200-sxm", layers, errors="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "library", "dtype", "hidden", "inter"),
    [
        ("h200-sxm", "triton", "w4a16_mxfp4", 2880, 2880 // 8),  # columns that are no multiple of a block of scales
        ("h200-sxm", "triton", "bf16", 2880, 180),  # rows that do not start on 16 bytes
        ("b200", "trtllm-gen", "w4a16", 7168, 2048),
        ("l40s", "cutlass", "fp8", 4096, 1792),
        ("rtx-pro-6000-server", "cutlass", "bf16", 4096, 1792),
        ("rtx-pro-6000-server", "cutlass", "fp8", 4096, 1792),
        ("rtx-pro-6000-server", "cutlass", "fp8_block", 4096, 1792),
        ("rtx-pro-6000-server", "cutlass", "nvfp4", 4096, 1792),
        ("l40s", "triton/16x256x128w4s2", "bf16", 4096, 3584),  # a buffer less than stages
        ("b200", "triton/256x256x64w8s3", "bf16", 4096, 3584),  # sums lie in tensor memory
    ],
)
def test_what_engines_run_is_not_refused(gpu: str, library: str, dtype: str, hidden: int, inter: int) -> None:
    few, many = (moe_layer(gpu, num, hidden, inter, 8, 2, dtype=dtype, library=library) for num in (4, 512))
    assert 0.0 < few.latency_us < many.latency_us


@pytest.mark.parametrize("gpu", ["h200-sxm", "h100-sxm", "a100-sxm-80gb", "l40s", "rtx-pro-6000-server", "b200"])
def test_gpt_oss_in_mxfp4_runs_on_kernels_of_engines(gpu: str) -> None:
    """Few tokens: never slower than in bf16, within reach of its bytes, and GPUs in the order of their memory."""
    mxfp4, bf16 = (moe_layer(gpu, 64, 2880, 2880, 128, 4, dtype=dtype) for dtype in ("w4a16_mxfp4", "bf16"))
    assert str(mxfp4.library).partition("/")[0] == ("trtllm-gen" if gpu == "b200" else "marlin")
    assert mxfp4.latency_us < bf16.latency_us
    assert "Kernels: " in mxfp4.explain()
    assert moe_layer("h200-sxm", 64, 2880, 2880, 128, 4, dtype="w4a16_mxfp4").latency_us <= mxfp4.latency_us * (
        1.0 if gpu != "b200" else 2.0
    )
    assert str(moe_layer("h200-sxm", 64, 2880, 2880, 128, 4, dtype="w4a16_mxfp4", library="triton").library) == (
        "triton/16x128"
    )


def test_narrow_weights_that_save_no_time_are_said() -> None:
    few, many = (moe_layer("h200-sxm", num, 2880, 2880, 128, 4, dtype="w4a16_mxfp4").explain() for num in (64, 16_384))
    assert "save memory here, not time" in many
    assert "save memory" not in few
