"""The exam of dense GEMMs goes through the public call: what is scored is what users are answered."""

import dataclasses

import numpy as np
import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidInputError
from gemm_eval.validation.subjects.dense import model_predictor
from gemm_eval.validation.subjects.gemms import answer, are_in_answers
from gemm_eval.validation.tables import QUANT_COLUMN, Timings, list_timings

GPUS = ("a100-sxm-80gb", "b200", "h200-sxm", "l40s", "rtx-pro-6000-server")
SETS = [item for gpu in GPUS for item in list_timings(gpu, has_held_back=True) if item.library in ("cublas", "trtllm")]
OF_FP8 = [item for item in SETS if item.is_net and len(item) > 200]


def some(timings: Timings, num: int) -> Timings:
    mask = np.zeros(len(timings), bool)
    mask[np.random.default_rng(0).permutation(len(timings))[:num]] = True
    return timings.select(mask)


@pytest.mark.parametrize("timings", SETS, ids=lambda item: f"{item.gpu} {item.name}")
def test_held_out_fits_and_users_are_answered_by_one_model(timings: Timings) -> None:
    asked, arch = some(timings, 20).whole(), load_arch(timings.gpu, GpuSpec)
    predicted_us = model_predictor(arch, timings.library).predict(asked)
    answers = answer(arch, asked, correction=False)
    assert not asked.is_net
    assert answers["latency_us"] + asked.timer_us == pytest.approx(predicted_us, rel=1e-12)


@pytest.mark.parametrize("timings", OF_FP8, ids=lambda item: f"{item.gpu} {item.name}")
def test_intervals_of_gemms_behind_quantization_hold_80_percent(timings: Timings) -> None:
    """By physics, whose dozen coefficients know no single row; corrections have learned from these very ones."""
    asked, arch = timings.whole(), load_arch(timings.gpu, GpuSpec)
    inside = are_in_answers(asked, answer(arch, asked, correction=False))
    assert 0.75 < inside.mean() < 0.85


def test_whole_times_have_the_quantization_that_was_taken_off() -> None:
    net = OF_FP8[0]
    whole = net.whole()
    assert whole.measured_us == pytest.approx(net.measured_us + net.column(QUANT_COLUMN))
    assert whole.whole() is whole
    assert whole.content_hash != net.content_hash
    with pytest.raises(InvalidInputError, match="columns are missing: quant_us"):
        dataclasses.replace(net, frame=net.frame.drop(columns=QUANT_COLUMN))
