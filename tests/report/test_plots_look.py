"""How plots look: one colour for a term, neutral colours by name, texts apart and inside, units that suit."""

import itertools
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from gemm_eval import (
    DType,
    GEMMEvaluator,
    GemmProblem,
    estimate_models,
    estimate_training,
    load_model,
    transformer_gemms,
)
from gemm_eval.evaluate.crossover import w4a16_crossover
from gemm_eval.figures import (
    BOUND_MARKERS,
    DASHES,
    LINE,
    MARKERS,
    MUTED,
    ON_DARK_FILL,
    ON_LIGHT_FILL,
    RAMP,
    SERIES,
    SURFACE,
    TERM_LOOKS,
    TEXT,
    ink_on,
    luminance,
    number_text,
    scale_of,
    tick_texts,
)
from gemm_eval.models import gpu, multicore
from gemm_eval.report.plots import (
    plot_breakdown,
    plot_heat_map,
    plot_latency_over_m,
    plot_mapping,
    plot_pareto,
    plot_roofline,
    plot_steps,
    plot_training_step,
)
from gemm_eval.validation import measured_speedups, plot_crossover
from tests.report.figures import boxes_of_texts, colors_of, draw

PAGES = ("#ffffff", "#14171b")  # backgrounds of a light page and of a dark one
LEAST_CONTRAST = 3.0  # of marks, WCAG 2.2, 1.4.11
LEAST_DISTANCE = 0.06  # in OKLab; what is just seen side by side is about 0.02
OCTAVES = [2**power for power in range(14)]


@pytest.fixture(scope="module")
def designs() -> dict[str, Any]:
    """120 designs, whose times span decades; some are not feasible."""
    cores, kib, gb = (
        a.ravel() for a in np.meshgrid([4, 8, 16, 32, 64, 128], [256, 512, 1024, 2048], [50.0, 100.0, 400.0])
    )
    latency_us = 8e6 / np.minimum(cores, gb / 10) + 1e6 / kib
    latency_us[(cores == 8) & (gb == 100.0)] = np.nan
    area_mm2 = cores * (2.0 + kib / 512) + gb / 10
    return {
        "num_cores": cores, "sram_bytes": kib * 1024, "dram_gb_per_s": gb, "latency_us": latency_us,
        "area_mm2": area_mm2, "energy_pj": area_mm2 * np.nan_to_num(latency_us, nan=1.0) * 1e6,
        "bound": np.where(cores < gb / 10, "compute", "dram"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def figures(evaluators: dict[str, GEMMEvaluator], designs: dict[str, Any]) -> dict[str, Any]:
    """Every plot on inputs as users have them."""
    demo, chip, h200 = evaluators.values()
    many = GEMMEvaluator("ipu-gc200", disk_cache=False)
    model = load_model("llama-3-8b")
    layers = {
        "prefill": transformer_gemms(model, phase="prefill", batch_size=8, seq_len=4096),
        "decode": transformer_gemms(model, phase="decode", batch_size=8, seq_len=4096),
    }
    found = {
        "mapping, one tile of C": plot_mapping(chip.evaluate(1, 16, 4096, 12288, dtype="w4a16")),
        "mapping, a batch": plot_mapping(chip.evaluate(32, 128, 128, 2048)),
        "mapping, few cores": plot_mapping(demo.evaluate(1, 1000, 4096, 4096)),
        "mapping, 1,472 cores": plot_mapping(many.evaluate(1, 32768, 256, 256)),
        "waves": plot_mapping(h200.evaluate(1, 2048, 4096, 4096)),
        "waves, one": plot_mapping(h200.evaluate(1, 16, 4096, 12288, dtype="w4a16")),
        "waves, many": plot_mapping(h200.evaluate(1, 65536, 4096, 28672)),
        "waves, a batch": plot_mapping(h200.evaluate(64, 512, 128, 512)),
        "breakdown, archs": plot_breakdown([one.evaluate(1, 64, 4096, 14336) for one in (demo, chip, h200)]),
        "breakdown, types": plot_breakdown([h200.evaluate(1, 9, 4096, 4096, dtype=d) for d in ("w4a16", "fp8")]),
        "latency, GPU": plot_latency_over_m(h200, 4096, 4096, M=range(16, 1025, 16)),
        "latency, octaves": plot_latency_over_m(h200, 4096, 14336, M=OCTAVES),
        "latency, chip": plot_latency_over_m(chip, 4096, 4096, M=range(1, 1000, 10)),
        "latency, several": plot_latency_over_m([demo, chip, h200, many], 4096, 4096, M=OCTAVES[:10], dtype="fp16"),
        "pareto": plot_pareto(designs, "area_mm2", "latency_us"),
        "pareto, numbers": plot_pareto(designs, "area_mm2", "latency_us", color="energy_pj"),
        "pareto, bounds": plot_pareto(designs, "area_mm2", "latency_us", color="bound", front=designs["num_cores"] > 9),
        "heat map": plot_heat_map(designs, "num_cores", "dram_gb_per_s", "latency_us"),
        "heat map, bytes": plot_heat_map(designs, "sram_bytes", "num_cores", "energy_pj"),
        "training": plot_training_step(estimate_training(
            "llama-3-8b", "h100-sxm", global_batch=16, seq_len=2048, pipeline_parallel=4, tensor_parallel=2
        )),
        "steps": plot_steps(list(estimate_models(["qwen3-30b-a3b"], ["h200-sxm"], [1, 64], [512], tensor_parallel=2))),
    }  # fmt: skip
    gemms = [GemmProblem(1, m, n, n, d) for m in (1, 128, 2048) for n in (256, 4096) for d in (DType.FP16, DType.FP8)]
    found["roofline, bounds"] = plot_roofline(h200, gemms)
    for phase, name in (("prefill", "sg2260"), ("decode", "h200-sxm")):
        results = [evaluators[name].evaluate_problem(gemm.problem) for gemm in layers[phase]]
        names, counts = [gemm.name for gemm in layers[phase]], [gemm.total_count for gemm in layers[phase]]
        found[f"breakdown, {phase}"] = plot_breakdown(results, names=names, counts=counts)
        found[f"roofline, {phase}"] = plot_roofline(evaluators[name], layers[phase])
    found["crossover, measured"] = plot_crossover(
        w4a16_crossover(h200, 4096, 12288, max_M=2048), measured_speedups("h200-sxm")
    )
    found["crossover, predicted"] = plot_crossover(w4a16_crossover(h200, 8192, 1280, max_M=16384))
    return found


def test_texts_are_apart_and_inside(figures: dict[str, Any]) -> None:
    wrong: list[tuple[str, ...]] = []
    for name, figure in figures.items():
        boxes = boxes_of_texts(figure)
        assert len(boxes) > 5, name
        edge = figure.bbox.padded(1.0)
        wrong += [(name, text) for text, box in boxes if not (edge.contains(*box.min) and edge.contains(*box.max))]
        wrong += [(name, a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)]
    assert not wrong


def test_no_panel_is_empty(figures: dict[str, Any]) -> None:
    for name, figure in figures.items():
        assert all(axes.has_data() for axes in figure.axes), name
        if name.startswith("mapping"):
            labels = {patch.get_label() for patch in figure.axes[1].patches}
            assert {"tile of A", "tile of B", "tile of C"} <= labels, name


def test_colors_are_those_of_meanings_and_neutrals_are_named(figures: dict[str, Any]) -> None:
    ramp = {mpl.colors.to_hex(color) for color in mpl.colormaps[RAMP](range(256))}
    meant = {look.color for look in TERM_LOOKS.values()} | set(SERIES) | {ON_DARK_FILL, ON_LIGHT_FILL}
    known = {color.lower() for color in meant | {TEXT, MUTED, LINE, SURFACE}} | ramp
    for name, figure in figures.items():
        assert colors_of(figure) <= known, (name, colors_of(figure) - known)
        assert figure.get_facecolor()[3] == 0.0
        for axes in figure.axes:
            is_field = name.startswith("heat map") and axes is figure.axes[0]
            assert mpl.colors.to_hex(axes.get_facecolor(), keep_alpha=True) in (
                (f"{LINE}ff",) if is_field else ("#00000000", "#ffffff00")
            ), name


def test_a_term_has_one_look_in_all_plots(figures: dict[str, Any]) -> None:
    def spelled(term: str) -> str:
        return term.removesuffix("_us").replace("_", " ").lower()

    looks = {spelled(term): look for term, look in TERM_LOOKS.items()}
    seen: dict[str, set[tuple[str, str]]] = {}
    for name, figure in figures.items():
        if name.startswith("breakdown"):
            for bars in figure.axes[0].containers:
                label = bars.get_label().lower().partition(" (")[0]
                if label != "hidden":
                    pairs = {(mpl.colors.to_hex(bar.get_facecolor()).upper(), bar.get_hatch() or "") for bar in bars}
                    seen.setdefault(label, set()).update(pairs)
    assert {"matrix", "dram", "dram a", "l2", "launch", "dequant", "step wait", "prologue", "other"} <= set(seen)
    assert seen == {label: {(looks[label].color, looks[label].hatch)} for label in seen}


def test_every_term_and_bound_of_the_models_has_a_look_of_its_own() -> None:
    assert {*gpu.TERMS, *multicore.TERMS, "correction_us"} <= set(TERM_LOOKS)
    assert {*gpu.BOUNDS, *multicore.BOUNDS} <= set(BOUND_MARKERS)
    assert len(set(TERM_LOOKS.values())) == len(TERM_LOOKS)
    assert len(set(DASHES)) == len(set(MARKERS)) == len(set(SERIES)) == len(SERIES)


def test_marks_have_contrast_and_series_are_no_terms() -> None:
    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    terms = {look.color for look in TERM_LOOKS.values()}
    for color in {*terms, *SERIES}:
        assert all(contrast(color, page) >= LEAST_CONTRAST for page in PAGES), color
        assert contrast(color, ink_on(color)) >= 4.5, color
    for one, other in itertools.combinations(SERIES, 2):
        assert distance(one, other) >= LEAST_DISTANCE, (one, other)
    for one, other in itertools.product(SERIES, terms):
        assert distance(one, other) >= LEAST_DISTANCE, (one, other)


def distance(a: str, b: str) -> float:
    """In OKLab (Ottosson, 2020), which follows what eyes see."""
    to_cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    to_lab = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]

    def lab(color: str) -> Any:
        parts = np.array(mpl.colors.to_rgb(color))
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return np.asarray(to_lab) @ np.cbrt(np.asarray(to_cones) @ linear)

    return float(np.linalg.norm(lab(a) - lab(b)))


@pytest.fixture
def hostile() -> Iterator[dict[str, Any]]:
    """A session with a style of its own."""
    own = {"text.color": "red", "axes.facecolor": "black", "font.size": 20.0, "xtick.color": "red", "axes.grid": True}
    with mpl.rc_context(own):
        yield own


def test_the_style_of_a_session_neither_leaks_in_nor_changes(
    hostile: dict[str, Any], evaluators: dict[str, GEMMEvaluator]
) -> None:
    before = dict(mpl.rcParams)
    result = evaluators["demo-8core"].evaluate(1, 64, 4096, 4096)
    for figure in (plot_breakdown([result]), plot_mapping(result)):
        draw(figure)
        assert "#ff0000" not in colors_of(figure)
        assert figure.axes[0].xaxis.label.get_fontsize() == 9.0
    assert dict(mpl.rcParams) == before


def test_units_suit_the_values() -> None:
    assert scale_of("latency_us", [900.0]).label == "latency (us)"
    assert scale_of("latency_us", [3.0, 2500.0])[:2] == ("latency (ms)", 1e3)
    assert scale_of("energy_pj", [5e12]).label == "energy (J)"
    assert scale_of("sram_kib", [4096]).label == "SRAM (KiB)"
    assert scale_of("sram_kib", [65536]).label == "SRAM (MiB)"
    assert scale_of("num_cores", [1e9]) == ("number of cores", 1.0, "")
    assert tick_texts("sram_bytes", [64, 2048, 1 << 29]) == ("SRAM", ["64 bytes", "2 KiB", "512 MiB"])
    assert tick_texts("sram_bytes", [1 << 20, 1 << 25]) == ("SRAM (MiB)", ["1", "32"])
    assert tick_texts("bound", ["dram", 3]) == ("bound", ["dram", "3"])
    assert [number_text(value) for value in (0, 0.0312, 384.0, 1234.5)] == ["0", "0.0312", "384", "1,234"]
