"""Plots of GEMMs: roofline, breakdown, mapping, latency over M."""

from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem
from gemm_eval.evaluate import GEMMResult
from gemm_eval.mapping import Decomposition, LoopOrder, MulticoreMapping, Partition, Tile
from gemm_eval.models.multicore.model import pack_params
from gemm_eval.report.plots import plot_breakdown, plot_latency_over_m, plot_mapping, plot_roofline
from gemm_eval.report.plots.mapping import _find_waves
from gemm_eval.report.plots.mapping_multicore import first_steps, sram_parts
from gemm_eval.units import time_text
from tests.report.figures import ARCHS, SIZES, draw, legend_of, offsets, same_points, texts


@pytest.mark.parametrize("arch", ARCHS)
def test_roofline_holds_the_numbers_of_the_results(evaluators: dict[str, GEMMEvaluator], arch: str) -> None:
    evaluator = evaluators[arch]
    results = [evaluator.evaluate(*sizes) for sizes in SIZES]
    figure = plot_roofline(evaluator, SIZES)
    axes = figure.axes[0]
    intensity = [result.flop / result.dram_bytes for result in results]

    assert same_points(offsets(axes), intensity, [result.tflop_per_s for result in results])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "arithmetic intensity (FLOP per DRAM byte)"
    assert axes.get_ylabel() == "achieved rate (TFLOP/s)"
    for result, x in zip(results, intensity, strict=True):
        roofs = [np.interp(np.log(x), np.log(line.get_xdata()), np.log(line.get_ydata())) for line in axes.get_lines()]
        assert np.log(result.tflop_per_s) <= min(roofs) + 1e-9 or x > max(axes.get_lines()[0].get_xdata())
    assert {f"bound: {result.bound}" for result in results} <= set(legend_of(figure))
    draw(figure)


def _taken_off_us(result: GEMMResult) -> float:
    """What terms are longer than the latency for: overlap, and a correction to less."""
    return result.breakdown["hidden_us"] + min(0.0, result.breakdown.get("correction_us", 0.0))


@pytest.mark.parametrize("arch", ARCHS)
def test_breakdown_bars_less_hidden_time_are_the_latency(evaluators: dict[str, GEMMEvaluator], arch: str) -> None:
    results = [evaluators[arch].evaluate(*sizes) for sizes in SIZES]
    counts = [1, 32, 2, 1]
    figure = plot_breakdown(results, counts=counts)
    axes = figure.axes[0]
    bars = {group.get_label(): [bar.get_width() for bar in group] for group in axes.containers}
    hidden = next(bars.pop(name) for name in list(bars) if name.startswith("hidden"))
    latency_us = [count * result.latency_us for count, result in zip(counts, results, strict=True)]

    np.testing.assert_allclose(np.sum(list(bars.values()), axis=0) - hidden, latency_us)
    np.testing.assert_allclose(
        bars["matrix"], [c * r.breakdown["matrix_us"] for c, r in zip(counts, results, strict=True)]
    )
    np.testing.assert_allclose(hidden, [-c * _taken_off_us(r) for c, r in zip(counts, results, strict=True)], atol=1e-9)
    np.testing.assert_allclose([line[0, 0] for line in axes.collections[-1].get_segments()], latency_us)
    assert [label.get_text() for label in axes.get_yticklabels()][1] == "G1 M64 K4096 N4096  x32"
    unit = "us" if max(map(sum, zip(*bars.values(), strict=True))) < 999.5 else "ms"
    assert axes.get_xlabel() == f"time of all runs, terms stacked ({unit})"
    assert [text.get_text() for text in axes.texts] == [time_text(us) for us in latency_us]
    assert "latency" in legend_of(figure)
    assert any("not in the latency" in name for name in legend_of(figure))
    draw(figure)
    named = plot_breakdown(evaluators[arch].evaluate_many(SIZES), names=list("abcd")).axes[0]
    assert [label.get_text() for label in named.get_yticklabels()] == list("abcd")
    assert named.get_xlabel().startswith("time, terms stacked (")
    assert named.yaxis_inverted()


def replay(evaluator: GEMMEvaluator, sizes: tuple[int, ...], *mapping: Any) -> GEMMResult:
    partition, tile, order = mapping
    return evaluator.evaluate_mapping(
        GemmProblem(*sizes), MulticoreMapping(Partition(*partition), Tile(*tile), LoopOrder[order])
    )


def blocks_of(figure: Any) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of what is coloured in the picture of C."""
    return [
        (*path.vertices.min(axis=0).tolist(), *path.vertices.max(axis=0).tolist())
        for path in figure.axes[0].collections[0].get_paths()
    ]


def test_blocks_of_cores_cover_c_once_edges_true_to_size(evaluators: dict[str, GEMMEvaluator]) -> None:
    result = replay(evaluators["demo-8core"], (1, 1000, 256, 500), (1, 3, 2, 1), (64, 64, 64), "NKM")
    figure = plot_mapping(result)
    blocks = blocks_of(figure)

    assert [(block[2] - block[0], block[3] - block[1]) for block in blocks] == [(250, 334)] * 4 + [(250, 332)] * 2
    assert sum((right - left) * (bottom - top) for left, top, right, bottom in blocks) == 1000 * 500
    assert {f"core {core}" for core in range(6)} <= set(texts(figure))
    assert len(np.unique(figure.axes[0].collections[0].get_facecolor(), axis=0)) == 6
    assert figure.axes[0].get_title() == "C[1, 1000, 500] over 6 of 8 cores: M in 3, N in 2\nidle: 2 (cores 6-7)"
    assert "loops, outermost first: n 4 x 64, k 4 x 64, m 6 x 64" in figure.axes[1].get_title()
    assert "a tile of C leaves SRAM 4 times" in figure.axes[1].get_title()
    assert figure.axes[0].get_xticks().tolist() == [0, 250, 500]
    assert figure.axes[0].get_yticks().tolist() == [0, 334, 668, 1000]
    draw(figure)


def test_first_steps_follow_the_loop_order() -> None:
    trips = {"m": 2, "n": 3, "k": 4}

    def steps(order: str) -> list[tuple[int, int, int]]:
        return first_steps(MulticoreMapping(Partition(1, 1, 1, 1), Tile(1, 1, 1), LoopOrder[order]), trips)

    assert steps("MNK") == [(1, 0, 0), (5, 0, 1), (9, 0, 2), (13, 1, 0), (17, 1, 1), (21, 1, 2)]
    assert steps("NKM") == [(1, 0, 0), (2, 1, 0)]
    assert steps("KNM") == [(1, 0, 0), (2, 1, 0), (3, 0, 1), (4, 1, 1), (5, 0, 2), (6, 1, 2)]


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [("demo-8core", None), ("demo-8core", "w4a16"), ("sg2260", "w4a16"), ("tpu-v5e", None), ("ipu-gc200", None)],
)
def test_parts_of_sram_add_up(arch: str, dtype: str | None) -> None:
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    result = evaluator.evaluate(1, 100, 1000, 3000, dtype=dtype)
    parts = sram_parts(pack_params(evaluator.arch, result.problem.types)[0], result.mapping)
    axes = plot_mapping(result).axes[2]
    unit = 1024 if axes.get_xlabel().endswith("(KiB)") else 1024**2

    assert sum(parts.values()) == result.sram_used_bytes
    assert sum(bar.get_width() for group in axes.containers for bar in group) * unit == pytest.approx(
        result.sram_used_bytes
    )


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((1, 4096, 4096, 4096), "fp16"), ((1, 1000, 8192, 3000), "fp16"), ((1, 64, 16384, 256), "fp16"),
        ((8, 100, 128, 77), "fp16"), ((3, 300, 8192, 1000), "w4a16"), ((1, 16, 4096, 12288), "w4a16"),
        ((1, 4096, 4096, 4096), "fp8"),
    ],
)  # fmt: skip
def test_waves_of_a_gpu(evaluators: dict[str, GEMMEvaluator], sizes: tuple[int, ...], dtype: str) -> None:
    evaluator = evaluators["h200-sxm"]
    best = evaluator.evaluate(*sizes, dtype=dtype)
    waves = _find_waves(best)
    record = evaluator.evaluate_many([best.problem]).records[0]
    assert len(waves.ctas) * (sizes[0] // waves.num_batches) == record["num_waves"]
    assert waves.num_batches == sizes[0]  # ours do a batch in one launch where that is faster
    for result in evaluator.top(best.problem, 30):
        config, waves = result.mapping, _find_waves(result)
        assert len(np.unique(waves.order)) == waves.order.size
        assert (waves.rows[-1], waves.columns[-1]) == (waves.num_batches * sizes[1], sizes[3])
        assert (np.diff(waves.rows) > 0).all()
        assert (waves.ctas[:-1] == waves.slots).all()
        assert 0 < waves.ctas[-1] <= waves.slots <= evaluator.arch.num_sms * evaluator.arch.max_ctas_per_sm
        assert waves.wave.max() < len(waves.ctas)
        if config.decomposition is not Decomposition.STREAM_K and config.cluster_m * config.cluster_n == 1:
            # every CTA is of one tile, and the last wave holds what is left
            assert waves.ctas.sum() == waves.order.size * waves.parts
            last = (waves.wave == len(waves.ctas) - 1).sum()
            assert -(-waves.ctas[-1] // waves.parts) == last


def test_picture_of_a_gpu_kernel(evaluators: dict[str, GEMMEvaluator]) -> None:
    result = evaluators["h200-sxm"].evaluate(1, 4096, 4096, 4096)
    figure = plot_mapping(result)
    tiles, ctas, smem = figure.axes
    waves = _find_waves(result)

    assert np.asarray(tiles.collections[0].get_array()).size == waves.wave.size
    assert [bar.get_width() for bar in ctas.patches] == waves.ctas.tolist()
    assert ctas.get_title() == f"{len(waves.ctas)} waves, the last 88% full\nline: the 132 CTAs that the GPU holds"
    assert (tiles.get_xlabel(), tiles.get_ylabel()) == ("N (columns of C)", "M (rows of C)")
    assert sum(bar.get_width() for bar in smem.patches) == pytest.approx(result.sram_used_bytes / 1024)
    assert str(result.mapping) in figure.get_suptitle()
    split = plot_mapping(evaluators["h200-sxm"].evaluate(1, 64, 16384, 256))
    assert "split-K: " in split.axes[0].get_title()
    big = plot_mapping(evaluators["h200-sxm"].evaluate(1, 65536, 4096, 28672))
    assert "drawn: the last 256 x" in big.axes[0].get_title()
    assert "drawn: the last 12" in big.axes[1].get_title()
    for drawn in (figure, split, big):
        draw(drawn)


@pytest.mark.parametrize("arch", ARCHS)
def test_latency_over_m_draws_every_evaluation(evaluators: dict[str, GEMMEvaluator], arch: str) -> None:
    evaluator = evaluators[arch]
    rows = range(100, 2000, 100)
    above, below = plot_latency_over_m(evaluator, 4096, 4096, M=rows).axes
    results = [evaluator.evaluate(1, m, 4096, 4096) for m in rows]

    ms = max(result.latency_us for result in results) >= 1e3
    for axes, values in (
        (above, [result.latency_us for result in results]), (below, [result.tflop_per_s for result in results]),
    ):  # fmt: skip
        line = axes.get_lines()[0]
        assert line.get_xdata().tolist() == list(rows)
        assert line.get_ydata().tolist() == values
        assert line.get_drawstyle() == "steps-post"
        assert axes.get_xscale() == "linear"
    assert (above.get_ylabel(), below.get_ylabel()) == (f"latency ({'ms' if ms else 'us'})", "rate (TFLOP/s)")
    assert below.get_xlabel() == "M (rows of A and C)"
    assert arch in above.get_title()


def test_sections_are_those_of_waves_and_partitions(evaluators: dict[str, GEMMEvaluator]) -> None:
    rows = range(128, 4097, 128)
    gpu = plot_latency_over_m(evaluators["h200-sxm"], 4096, 4096, M=rows)
    table = evaluators["h200-sxm"].evaluate_many([(1, m, 4096, 4096) for m in rows])
    changes = int((np.diff(table.records["num_waves"]) != 0).sum())
    assert len(gpu.axes[0].patches) == changes + 1
    assert "band: 80% of measured times expected" in legend_of(gpu)
    assert "sections: number of waves, on top" in legend_of(gpu)
    assert {text.get_text() for text in gpu.axes[0].texts} <= set(map(str, table.records["num_waves"]))

    chip = plot_latency_over_m(evaluators["sg2260"], 4096, 4096, M=range(1, 1000, 100))
    assert "sections: partition over cores, on top" in legend_of(chip)
    assert "N8" in {text.get_text() for text in chip.axes[0].texts}
    restless = plot_latency_over_m(evaluators["h200-sxm"], 4096, 28672, M=range(128, 8193, 64))
    assert any("the number of waves changes " in text for text in legend_of(restless))
    assert not restless.axes[0].patches
    for figure in (gpu, chip, restless):
        draw(figure)
