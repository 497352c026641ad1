"""Layers of experts without a GPU: columns of gate and up, what is compiled, shares of tiles that the model knows."""

import re
from typing import Any

import numpy as np
import pytest

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError, UnsupportedError
from gemm_eval.kernels import Variant, interleave_gate_up, make_variant
from gemm_eval.kernels.experts import compile_route, route_launch
from gemm_eval.kernels.families import Fusion, GroupedSizes, family_of, grouped, grouped_families
from gemm_eval.kernels.plan import choose_grouped, make_plan, spec_and_limits
from gemm_eval.mapping import KernelConfig
from gemm_eval.models.gpu.w4a16 import shared_kernels

FP16, BF16 = DType.FP16, DType.BF16
SPEC, LIMITS = spec_and_limits("h200-sxm")


def variant_of(family: str, cta_m: int, cta_n: int, fusion: Fusion) -> Variant:
    config = next(c for c in grouped_families()[family].configs() if (c.cta_m, c.cta_n) == (cta_m, cta_n))
    return make_variant(config, "fp16", "group", 128)._replace(fusion=fusion)


def chosen(rows: int) -> tuple[GroupedSizes, KernelConfig]:
    sizes, variant = GroupedSizes(rows, 2048, 1536, 128), variant_of("w4a16_sm90_grouped", 16, 256, Fusion.NONE)
    return sizes, choose_grouped(sizes, *variant[1:4], rows, False, SPEC, LIMITS)


def test_gate_and_up_take_turns_of_eight_columns() -> None:
    gate, up = np.arange(48).reshape(2, 24), 100 + np.arange(48).reshape(2, 24)
    both = interleave_gate_up(gate, up)
    for column in range(24):
        at = column // 8 * 16 + column % 8
        assert (both[:, at] == gate[:, column]).all()
        assert (both[:, at + 8] == up[:, column]).all()
    assert interleave_gate_up(gate[0], up[0]).tolist() == both[0].tolist()


@pytest.mark.parametrize("shapes", [((2, 24), (2, 32)), ((2, 12), (2, 12))])
def test_gate_and_up_that_do_not_fit_are_refused(shapes: Any) -> None:
    with pytest.raises(InvalidProblemError, match="multiple of 8 columns"):
        interleave_gate_up(*map(np.zeros, shapes))


def test_few_tokens_are_spread_over_parts_of_their_rows_and_many_are_counted_before() -> None:
    assert route_launch(1, 8, 132) == (1, 4, False)
    assert route_launch(100, 8, 132) == (100, 1, False)
    assert route_launch(4096, 8, 132) == (264, 1, True)


def test_entries_have_machine_code_of_their_own() -> None:
    entries = ("gemm_eval_route", "gemm_eval_count_choices", "gemm_eval_sum_choices")
    codes = {compile_route(entry, "sm_90", activation).cubin for entry in entries for activation in (FP16, BF16)}
    assert len(codes) == 4  # the sum's depends on the type


@pytest.mark.parametrize(("rows", "fusion"), [(16, Fusion.GATED), (16, Fusion.SUMMED), (4096, Fusion.GATED)])
def test_the_models_choice_fuses_without_waits_of_wgmma(rows: int, fusion: Fusion) -> None:
    sizes, config = chosen(rows)
    plan = make_plan(sizes, *make_variant(config, "fp16", "group", 128)[1:4], config, LIMITS, fusion)
    assert plan.compiled.warnings == ()
    assert plan.launch.num_counters >= 0


@pytest.mark.parametrize(
    ("family", "fusion"), [("w4a16_sm80_grouped", Fusion.GATED), ("w4a16_sm90_grouped", Fusion.SUMMED)]
)
def test_kernels_refuse_what_they_do_not_fuse(family: str, fusion: Fusion) -> None:
    variant = variant_of(family, 64, 128, fusion)
    with pytest.raises(UnsupportedError, match=f"does not fuse {fusion.name}"):
        make_plan(GroupedSizes(64, 512, 512, 4), *variant[1:4], variant.config, LIMITS, fusion)


def test_shares_of_tiles_are_those_that_the_model_knows() -> None:
    family = grouped_families()["w4a16_sm90_grouped"]
    for config in family.configs():
        prelude = family_of(config).prelude(make_variant(config, "fp16", "group", 128))
        compiled = [int(n) for n in re.findall(r"\bf\((\d+),", prelude)]
        assert compiled == sorted({config.cta_m, *(n for n in shared_kernels.SHARES if n < config.cta_m)}, reverse=True)
    assert shared_kernels.FEW_TOKENS == grouped.FEW_TOKENS
