"""What all subjects with an exam have in common: their tables, what they refuse, and their committed calibrations."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from gemm_eval.arch import GpuSpec, data_root, load_arch, read_yaml
from gemm_eval.cli.subjects import VALIDATE
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.validation.exam import MODEL, Exam, MeasuredTable, gpus_with, score
from gemm_eval.validation.fit import held_out, sha256_of
from gemm_eval.validation.subjects import attention, collective, experts, memory_bound, mixers
from gemm_eval.validation.tables import measured_root


class Case(NamedTuple):
    """A subject: its exam, the GPUs with tables, a file of its calibrations, and calls that are refused."""

    exam: Exam[Any]
    gpus: tuple[str, ...]
    dropped: str  # a column without which a table is none
    missing: str  # what the refusal of such a table without a meta file names
    files: str
    calibrate: Callable[[GpuSpec], Any] | None  # of a GPU without timings
    message: str = ""


CASES = {
    "attention": Case(
        attention.exam(),
        ("a100-sxm-80gb", "b200", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000-server"),
        "window", "window, gpu, library, framework, phase", "attention-*.yaml",
        lambda arch: attention.calibrate_attention(arch, "trtllm"), "no timings of attention by trtllm on l4",
    ),
    "collective": Case(
        collective.exam(), ("a100-sxm-80gb", "b200", "h200-sxm", "l40s"),
        "num_ranks", "num_ranks, gpu, library, framework", "collective.yaml",
        collective.calibrate_collectives, "no timings of collectives on l4",
    ),
    "memory-bound": Case(
        memory_bound.exam(), ("h200-sxm", "a100-pcie-40gb", "t4", "v100"), "width", "width, gpu", "memory-bound*.yaml",
        memory_bound.calibrate_memory_bound, "no timings of memory-bound kernels by engines on l4",
    ),
    "mixers": Case(
        mixers.exam(), ("b200", "h200-sxm"), "key_heads", "key_heads, gpu, library", "mixers-*.yaml",
        lambda arch: mixers.calibrate_mixers(arch, "vllm"),
        "no timings of linear or sparse attention by vllm on l4",
    ),
    "moe": Case(
        experts.exam(), ("a100-sxm-80gb", "b200", "h200-sxm", "mi355x"),
        "topk", "topk, gpu, library, dtype, framework", "",
        None,
    ),
}  # fmt: skip


def test_every_exam_is_a_case() -> None:
    exams = {name for name, command in VALIDATE.items() if command.function.endswith(".exam")}
    assert exams == set(CASES)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tables_are_of_these_gpus_and_others_are_refused(case: Case, tmp_path: Path) -> None:
    assert tuple(gpus_with(case.exam)) == tuple(sorted(case.gpus))
    with pytest.raises(InvalidOptionError, match="gpu must be one of"):
        list(score(case.exam, ["l4"]))
    sets: list[MeasuredTable] = case.exam.read(case.gpus[0])
    with pytest.raises(InvalidInputError, match=f"is of {case.gpus[0]}, not of l4"):
        case.exam.held_out(load_arch("l4", GpuSpec), sets)
    path = tmp_path / f"kernels{sets[0].path.suffix}"
    frame = sets[0].frame.drop(columns=case.dropped)
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path)
    with pytest.raises(InvalidInputError, match=f"missing: {case.missing}"):
        type(sets[0]).read(path)
    if case.calibrate is not None:
        with pytest.raises(InvalidInputError, match=case.message):
            case.calibrate(load_arch("l4", GpuSpec))


@pytest.mark.parametrize("name", CASES)
def test_rows_that_are_held_out_decide_no_prediction_of_theirs(name: str) -> None:
    """Whatever the times of a fold, its predictions stay, of model and baselines; those of other folds do not."""
    exam, gpu = CASES[name].exam, CASES[name].gpus[0]
    arch, sets = load_arch(gpu, GpuSpec), exam.read(gpu)[:1]
    if name == "moe":  # rows of two models, balanced: their loads are known
        (table,) = experts.find_tables(gpu, ["triton-bf16"])
        is_balanced = (table.frame["distribution"] == "balanced").to_numpy()
        models = np.array(table.models)[is_balanced]
        sets = [table.select(is_balanced).select(np.isin(models, np.unique(models)[:2]))]
    folds = exam.folds(sets)
    names = list(dict.fromkeys(folds))
    block = np.isin(folds, names[: len(names) // 2])
    wrong_us = np.where(block, 10.0, 1.0) * sets[0].measured_us
    wrong = [replace(sets[0], frame=sets[0].frame.assign(latency_us=wrong_us))]
    right, other = (held_out(block, exam.predict(arch, of)) for of in (sets, wrong))
    assert list(right)[-1] == MODEL
    for who in right:
        np.testing.assert_array_equal(right[who][block], other[who][block])
    assert not np.array_equal(right[MODEL][~block], other[MODEL][~block])


def test_features_of_rows_are_no_times() -> None:
    """What a correction of any subject may learn from: sizes of rows, [rows, columns], and nothing measured."""
    for case in CASES.values():
        table = case.exam.read(case.gpus[0])[0]
        assert len(table.features) == len(table)
        assert len(table.features.columns) >= 2
        assert not any(str(name).endswith("_us") for name in table.features)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_committed_calibrations_are_of_the_committed_tables(case: Case) -> None:
    for path in (data_root() / "calibration").glob(f"*/{case.files}") if case.files else ():
        for errors in read_yaml(path)["errors"]:
            (table,) = measured_root(path.parent.name).glob(f"{errors['data']}.[cp]*")
            assert errors["sha256"] == sha256_of(table), path


def test_options_of_exams_are_checked() -> None:
    for call, message in (
        (lambda: attention.exam(["prefill"]), "phase must be one of context"),
        (lambda: list(score(collective.exam("points"), ["l40s"])), "hold-out must be one of blocks, ranks"),
        (lambda: experts.find_tables("h200-sxm", ["triton-bf61"]), "data must be one of .* did you mean triton-bf16"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            call()
