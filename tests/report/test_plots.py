"""Plots of designs, and what all plots have in common: labels, missing packages, what they refuse."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from gemm_eval import (
    GemmEvalError,
    GEMMEvaluator,
    InvalidInputError,
    InvalidOptionError,
    estimate_models,
    estimate_training,
)
from gemm_eval.cli.app import app
from gemm_eval.report.plots import (
    axis_label,
    plot_breakdown,
    plot_heat_map,
    plot_latency_over_m,
    plot_mapping,
    plot_pareto,
    plot_roofline,
    plot_steps,
    plot_training_step,
)
from gemm_eval.sweep.pareto import pareto_front
from gemm_eval.units import time_text
from tests.report.figures import SIZES, draw, same_points


@pytest.fixture
def designs() -> dict[str, np.ndarray]:
    """24 designs on a grid; larger chips are faster, and one is not feasible."""
    cores, kib, gb = (axis.ravel() for axis in np.meshgrid([4, 8, 16, 32], [256, 512], [50.0, 100.0, 200.0]))
    latency_us = 8000.0 / np.minimum(cores, gb / 10.0) + 1000.0 / kib
    latency_us[3] = np.nan
    return {
        "num_cores": cores, "sram_kib": kib, "dram_gb_per_s": gb, "latency_us": latency_us,
        "area_mm2": cores * 2.0 + kib / 64 + gb / 10, "bound": np.where(cores < gb / 10.0, "compute", "dram"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("latency_us", "latency (us)"), ("energy_pj", "energy (pJ)"), ("area_mm2", "area (mm$^2$)"),
        ("tokens_per_s", "throughput (tokens/s)"), ("tflop_per_s", "throughput (TFLOP/s)"),
        ("dram_gb_per_s", "DRAM (GB/s)"), ("energy_pj_per_token", "energy (pJ/token)"),
        ("vector_ops_per_cycle", "vector (ops/cycle)"), ("pj_per_mac", "ratio (pJ/MAC)"),
        ("sram_bytes", "SRAM (bytes)"), ("utilization_frac", "utilization (fraction)"),
        ("num_cores", "number of cores"), ("bound", "bound"), ("us", "us"),
    ],
)  # fmt: skip
def test_axis_labels_come_from_names(name: str, label: str) -> None:
    assert axis_label(name) == label


@pytest.mark.parametrize("larger", [(), ("latency_us",), ("area_mm2",), ("area_mm2", "latency_us")])
def test_pareto_staircase_bounds_every_point(designs: dict[str, np.ndarray], larger: tuple[str, ...]) -> None:
    figure = plot_pareto(designs, "area_mm2", "latency_us", maximize=larger)
    axes = figure.axes[0]
    kept = np.isfinite(designs["latency_us"])
    x, y = designs["area_mm2"][kept], designs["latency_us"][kept]
    front = pareto_front(np.column_stack([x, y]), maximize=[name in larger for name in ("area_mm2", "latency_us")])
    line = axes.get_lines()[0]
    across, up = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())

    assert same_points(np.asarray(axes.collections[0].get_offsets()), x, y)
    assert same_points(np.column_stack([across, up]), x[front], y[front])
    assert same_points(np.asarray(axes.collections[1].get_offsets()), x[front], y[front])
    assert (np.diff(across) >= 0).all()
    assert line.get_drawstyle() == ("steps-pre" if "area_mm2" in larger else "steps-post")
    sign = -1 if "latency_us" in larger else 1  # the step over a point is never worse than the point
    for px, py in zip(x, y, strict=True):
        reachable = up[across >= px] if "area_mm2" in larger else up[across <= px]
        assert (sign * reachable).min() <= sign * py
    draw(figure)


@pytest.mark.parametrize("reduce", ["min", "max", "median"])
def test_heat_map_cells_are_the_reduced_values(designs: dict[str, np.ndarray], reduce: str) -> None:
    figure = plot_heat_map(designs, "num_cores", "sram_kib", "latency_us", reduce=reduce)
    axes, bar = figure.axes
    frame = pd.DataFrame(designs).dropna()
    wanted = frame.pivot_table(index="sram_kib", columns="num_cores", values="latency_us", aggfunc=reduce)

    np.testing.assert_allclose(np.asarray(axes.collections[0].get_array()).reshape(2, 4), wanted.to_numpy())
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8", "16", "32"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["256", "512"]
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("number of cores", "SRAM (KiB)", "latency (ms)")
    assert axes.get_title() == f"latency, {reduce} of up to 3 designs a cell"
    assert len(axes.texts) == 8
    draw(figure)


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, evaluators: dict[str, GEMMEvaluator], designs: dict[str, np.ndarray]
) -> None:
    result = evaluators["demo-8core"].evaluate(*SIZES[0])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for plot in (
        lambda: plot_roofline(evaluators["demo-8core"], SIZES),
        lambda: plot_pareto(designs, "area_mm2", "latency_us"),
        lambda: plot_heat_map(designs, "num_cores", "sram_kib", "latency_us"),
        lambda: plot_breakdown([result]),
        lambda: plot_mapping(result),
        lambda: plot_mapping(evaluators["h200-sxm"].evaluate(*SIZES[0])),
        lambda: plot_latency_over_m(evaluators["demo-8core"], 64, 64, M=[1, 2]),
    ):
        with pytest.raises(GemmEvalError, match=r"plotting needs matplotlib: pip install 'gemm_eval\[plot\]'"):
            plot()


def test_steps_are_bars_of_their_operations() -> None:
    found = list(estimate_models(["qwen3-30b-a3b"], ["h200-sxm", "b200"], [4], [512], tensor_parallel=2))
    figure = plot_steps(found)
    draw(figure)
    prefill, decode = figure.axes
    for axes, phase in ((prefill, "prefill"), (decode, "decode")):
        steps = [getattr(item, phase) for item in found]
        ends = [
            max(bar.get_x() + bar.get_width() for bar in axes.patches if round(bar.get_y() + 0.34) == row)
            for row in (0, 1)
        ]
        assert ends == pytest.approx([step.latency_us for step in steps], rel=1e-6)
        assert axes.get_xlabel() == f"{phase}: time of a step (ms)"
        assert {time_text(step.latency_us) for step in steps} <= {text.get_text() for text in axes.texts}
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "gemm", "attention", "moe", "memory", "collective",
    }  # fmt: skip
    draw(plot_steps(found[0]))
    with pytest.raises(InvalidInputError, match="at least one ModelEstimate"):
        plot_steps([])


def test_a_training_step_is_the_passes_of_its_stages(tmp_path: Path) -> None:
    step: dict[str, Any] = {
        "global_batch": 8, "seq_len": 1024, "pipeline_parallel": 4, "tensor_parallel": 2, "data_parallel": 2
    }  # fmt: skip
    plain = estimate_training("llama-3.2-1b", "h100-sxm", **step)
    (axes,) = plot_training_step(plain).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"stage {row}" for row in range(4)]
    ends_us = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert max(ends_us) == pytest.approx(plain.latency_us, rel=0.1)
    for row, stage in enumerate(plain.stages):
        work_us = sum(bar.get_width() for bar in axes.patches if round(bar.get_y() + 0.39) == row)
        after_us = stage.data_us + stage.optimizer_us
        assert work_us == pytest.approx(plain.num_microbatches * stage.times.total_us + after_us)
    names = {text.get_text() for text in plot_training_step(plain).legends[0].get_texts()}
    assert {"forward", "backward", "exposed collectives of a pass", "optimizer"} <= names
    with pytest.raises(InvalidInputError, match="at most 20,000 passes"):
        plot_training_step(dataclasses.replace(plain, num_microbatches=10_000))
    arguments = "train llama-3.2-1b --arch h100-sxm --gpus 8 --batch 8 --seq-len 512 --pp 4 --micro-batch 1 --json"
    ran = CliRunner().invoke(app, [*arguments.split(), "--plot", str(tmp_path / "step.png")])
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "step.png").stat().st_size > 10_000


def test_what_plots_refuse(evaluators: dict[str, GEMMEvaluator], designs: dict[str, np.ndarray]) -> None:
    chip, area, us = evaluators["sg2260"], "area_mm2", "latency_us"
    result = chip.evaluate(*SIZES[0])
    many = {"a_us": np.arange(9), "b_us": np.arange(9), "c": np.array(list("abcdefghi"))}
    refused: list[tuple[Any, str]] = [
        (lambda: plot_roofline(chip, []), "at least one GEMM, got none"),
        (lambda: plot_roofline(chip, SIZES, names=["a"]), r"as many as gemms \(4\), got 1"),
        (lambda: plot_breakdown([]), "at least one GEMMResult, got none"),
        (lambda: plot_breakdown([result], counts=[1, 2]), r"counts must be as many as results \(1\), got 2"),
        (lambda: plot_breakdown([result], counts=[0]), "counts must be >= 1, got 0"),
        (lambda: plot_mapping("x"), "result must be a GEMMResult, got 'x'"),  # type: ignore[arg-type]
        (lambda: plot_latency_over_m(chip, 512, 512, M=[]), "M must hold at least one value"),
        (lambda: plot_latency_over_m([], 512, 512), "evaluators must be 1 to 8, got 0"),
        (lambda: plot_pareto(designs, "cost_usd", us), "no column 'cost_usd'; it has num_cores, "),
        (lambda: plot_pareto(designs, "bound", us), "column 'bound' must hold numbers"),
        (lambda: plot_pareto(designs, area, us, maximize=us), "maximize must be a sequence of 'area_mm2' and 'latency"),
        (lambda: plot_pareto(designs, area, us, front=np.ones(3, bool)), "front must be truth values for each of the"),
        (lambda: plot_pareto({**designs, "is_feasible": np.zeros(24, bool)}, area, us), "no feasible row"),
        (lambda: plot_pareto(many, "a_us", "b_us", color="c"), "at most 8 different words, got 9"),
        (lambda: plot_heat_map(designs, "num_cores", "sram_kib", us, reduce="mean"), "reduce must be one of min, max"),
        (lambda: plot_heat_map(designs, "num_cores", "sram_kib", "bound"), "column 'bound' must hold numbers"),
    ]
    for make, message in refused:
        with pytest.raises((InvalidInputError, InvalidOptionError), match=message):
            make()
