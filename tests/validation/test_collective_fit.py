"""Collectives that were timed: tables, fits that find what was planted, blocks held out, committed calibrations."""

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import GpuSpec, load_arch, read_yaml
from gemm_eval.models.gpu import collective as model
from gemm_eval.models.gpu.learned import learned_path, load_learned
from gemm_eval.validation.exam import MODEL, TABLE, score
from gemm_eval.validation.learned import PHYSICS
from gemm_eval.validation.subjects import collective as subject

GPUS = ("a100-sxm-80gb", "b200", "h200-sxm", "l40s")
MAX_ALL_REDUCE = 0.15
"""MAPE that all-reduces of blocks held out may have, of all tables of a GPU together."""


def test_tables_say_what_they_are() -> None:
    for gpu in GPUS:
        nccl, own = subject.tables(gpu)
        assert (nccl.library, own.library, len(nccl), len(own)) == ("nccl", "trtllm", 504, 69)
        assert set(own.words("what")) == {"all_reduce"}
        gathers = np.array([what == "all_gather" for what in nccl.words("what")])
        assert nccl.size_bytes[gathers].min() == 512
        assert nccl.frame["message_bytes"][gathers].min() == 64  # of each of eight
        # what nobody's link can do would be a size that means something else
        link = subject.interconnect_of(load_arch(gpu, GpuSpec))
        wire = np.array([problem.wire_bytes for problem in nccl.problems])
        assert (wire / nccl.measured_us / 1e3 / link.gb_per_s).max() < 1.1


@pytest.mark.parametrize("gpu", ["h200-sxm", "l40s"])
def test_a_fit_finds_what_was_planted(gpu: str) -> None:
    link = subject.interconnect_of(load_arch(gpu, GpuSpec))
    rows, _ = subject.measured_rows(link, subject.tables(gpu))
    planted = {item.name: min(item.high, 1.15 * item.default) for item in model.COLLECTIVE_COEFFICIENTS}
    planted |= {"direct_bytes": float(round(2.0**23.5)), "two_shot_frac": 0.8}
    times = model.collectives_us(link, planted, rows)
    found = subject.fit_collectives(link, rows, times)
    np.testing.assert_allclose(model.collectives_us(link, found, rows), times, rtol=0.02)
    for name in ("launch_us", "hop_us", "link_frac", "peer_link_frac"):
        assert found[name] == pytest.approx(planted[name], rel=0.1), name


@pytest.mark.parametrize("gpu", GPUS)
def test_committed_calibrations_are_of_blocks_held_out(gpu: str) -> None:
    """All-reduces are within 15%, and better than latency and rate fitted on the same rows."""
    arch, sets, path = load_arch(gpu, GpuSpec), subject.tables(gpu), model.collective_calibration_path(gpu)
    link, found = subject.interconnect_of(arch), model.CollectiveCalibration.model_validate(read_yaml(path))
    assert 20 <= len(set(subject.folds_of(sets))) <= 24
    predicted = subject.exam().held_out(arch, sets)
    measured = np.concatenate([item.measured_us for item in sets])
    errors = {name: np.abs(us / measured - 1.0) for name, us in predicted.items()}
    reduced = np.array([name == "all_reduce" for item in sets for name in item.words("what")])
    assert errors[MODEL][reduced].mean() < MAX_ALL_REDUCE
    assert errors[MODEL].mean() < MAX_ALL_REDUCE
    assert errors[MODEL].mean() < min(errors[subject.FITTED].mean(), errors[TABLE].mean())
    assert errors[MODEL].mean() < 0.2 * errors[subject.NAIVE].mean()
    recorded = sum(item.num_rows * item.mape_percent for item in found.errors) / len(measured)
    assert 100.0 * errors[PHYSICS].mean() == pytest.approx(recorded, rel=0.02)
    operations = np.array([name for item in sets for name in item.words("what")])
    for operation in set(operations.tolist()):
        rows = operations == operation
        assert errors[MODEL][rows].mean() < errors[PHYSICS][rows].mean(), operation
    groups = subject.describe(arch, sets, predicted[PHYSICS])[0]
    for group in model.COLLECTIVE_GROUPS:
        learned, _ = load_learned(learned_path(gpu, model.COLLECTIVE, group))
        (data,) = learned.data
        assert data.physics_mape_percent == pytest.approx(100.0 * errors[PHYSICS][groups == group].mean(), rel=0.02)
        if learned.is_on:
            assert data.corrected_mape_percent == pytest.approx(100.0 * errors[MODEL][groups == group].mean(), rel=0.03)
            assert data.corrected_mape_percent < data.physics_mape_percent
    again = subject.fit_collectives(link, *subject.measured_rows(link, sets))
    for name, value in found.coefficients.items():
        assert again[name] == pytest.approx(value, rel=0.02), name
    assert found.to_yaml() == path.read_text(encoding="utf-8")
    assert model.collective_coefficients(arch)[0] == pytest.approx(found.coefficients)


@pytest.mark.parametrize("gpu", GPUS)
def test_rows_are_predicted_as_a_user_is_answered(gpu: str) -> None:
    """The columns that fits and scores take say what the public call says, with nothing but what a row has."""
    arch, evaluator = load_arch(gpu, GpuSpec), GEMMEvaluator(gpu)
    of = model.collective_coefficients(arch)[0]
    for timings in subject.tables(gpu):
        rows, _ = subject.measured_rows(subject.interconnect_of(arch), [timings])
        answers = [
            evaluator.evaluate_collective(
                item.what, item.message_bytes, item.num_ranks, dtype=str(item.dtype), library=timings.library
            )
            for item in timings.problems
        ]
        physics_us = [answer.latency_us - answer.breakdown.get("correction_us", 0.0) for answer in answers]
        np.testing.assert_allclose(
            model.collectives_us(subject.interconnect_of(arch), of, rows), physics_us, rtol=1e-12
        )


@pytest.mark.parametrize("gpu", GPUS)
def test_the_public_call_keeps_the_published_error(gpu: str) -> None:
    """All-reduces of engines, with nothing said but the message and the ranks."""
    path, timings = model.collective_calibration_path(gpu), subject.tables(gpu)[1]
    published = model.CollectiveCalibration.model_validate(read_yaml(path)).errors[1].mape_percent / 100.0
    evaluator = GEMMEvaluator(gpu)
    answers = [
        evaluator.evaluate_collective(item.what, item.message_bytes, item.num_ranks).latency_us
        for item in timings.problems
    ]
    errors = np.abs(np.array(answers) / timings.measured_us - 1.0)
    assert errors.mean() < published
    is_large = timings.size_bytes >= 32 << 20
    assert errors[is_large].max() < 0.16
    for ranks in (2, 4, 8):
        assert errors[timings.column("num_ranks") == ranks].mean() < published + 0.05, ranks


def test_scores_by_operation_and_size() -> None:
    lines = list(score(subject.exam("ranks"), ["l40s"]))
    assert {line.labels["what"] for line in lines} == {
        "all_gather",
        "all_to_all",
        "reduce_scatter",
        "all_reduce",
        "all",
    }
    assert {line.group for line in lines} == {
        "up to 64 KiB", "up to 8 MiB", "more", "2 ranks", "4 ranks", "8 ranks", "all",
    }  # fmt: skip
    assert all(set(line.errors) == {subject.NAIVE, subject.FITTED, TABLE, PHYSICS, MODEL} for line in lines)
