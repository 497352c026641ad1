"""`GEMMEvaluator` on GPUs: the lines that serve every chip, and the options that only GPUs take."""

import gc
import json
import math
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import (
    GemmEvalError,
    GEMMEvaluator,
    GemmProblem,
    GEMMResult,
    InvalidMappingError,
    InvalidOptionError,
    UnsupportedError,
    load_arch,
)
from gemm_eval.arch import GpuSpec, data_root, list_archs
from gemm_eval.mapping import KernelConfig
from gemm_eval.models.gpu import BOUNDS, TERMS, coefficients_for
from gemm_eval.models.gpu.packed import Packed
from gemm_eval.models.gpu.terms import RESOURCES, Times

pytestmark = pytest.mark.usefixtures("own_cache")
ARCH = load_arch("h100-sxm")
SIZES = (1, 16, 4096, 12288)
SHAPES = [(1, 1, 4096, 4096), (1, 16, 4096, 12288), (1, 300, 1024, 512), (1, 4096, 4096, 4096)]
W4A16 = GemmProblem(*SIZES, "fp16", "int4", group_size=128)  # type: ignore[arg-type]
SPELLED = [
    {"library": library, "l2": l2, "clock": clock}
    for library in ("gemm-eval", "trtllm")
    for l2 in ("cold", "warm")
    for clock in ("burst", "sustained")
]
BLOCKS = (2, 300, 1024, 520)
ASKED: list[tuple[str, tuple[int, int, int, int], str, dict[str, Any]]] = [
    *(("h100-sxm", SIZES, "w4a16", options) for options in SPELLED),
    *(("h200-sxm", SIZES, "bf16", {"correction": correction}) for correction in (True, False)),
    *(
        ("b200", BLOCKS, dtype, {})
        for dtype in ("fp8_block", "mxfp8", "mxfp4", "nvfp4", "w4a16_mxfp4", "w4a16_nvfp4", "w4a8_fp8")
    ),
    ("h200-sxm", BLOCKS, "fp8", {"quantize_from": "bf16"}),
    ("h200-sxm", BLOCKS, "fp8_block", {"quantize_from": "bf16"}),
    ("h200-sxm", BLOCKS, "int8", {"quantize_from": "fp16"}),
    ("b200", BLOCKS, "mxfp8", {"quantize_from": "fp32"}),
]


@pytest.fixture
def ev() -> GEMMEvaluator:
    return GEMMEvaluator(ARCH)


def check(r: GEMMResult) -> None:
    assert 0 < r.latency_us < math.inf
    assert sum(r.breakdown.values()) == pytest.approx(r.latency_us, rel=1e-9)
    assert all(us >= 0 for name, us in r.breakdown.items() if name not in ("hidden_us", "correction_us"))
    assert sum(r.traffic.values()) == r.dram_bytes
    assert min(r.traffic.values()) >= 0
    assert r.bound in BOUNDS
    assert isinstance(r.mapping, KernelConfig)
    assert 1 <= r.active_cores <= r.arch.num_sms  # type: ignore[union-attr]
    assert 0 < r.sram_used_bytes <= r.arch.smem_per_sm_bytes  # type: ignore[union-attr]
    assert r.source in ("analytic", "calibrated", "corrected")
    assert r.energy_pj is None
    assert r.num_candidates >= 1
    json.dumps(r.to_dict(), allow_nan=False)


def test_documented_calls(ev: GEMMEvaluator) -> None:
    dense = ev.evaluate(1, 4096, 4096, 4096)
    own = ev.evaluate(*SIZES, dtype="w4a16")
    bf16 = {"input_dtype": "bf16", "weight_dtype": "int4", "output_dtype": "bf16", "group_size": 128}
    trtllm = ev.evaluate(*SIZES, **bf16, library="trtllm")  # type: ignore[arg-type]

    for r in (dense, own, trtllm):
        check(r)
        assert r.is_exhaustive
        text = r.explain()
        assert f"bound by {BOUNDS[r.bound]}" in text
        assert "Waves: " in text
        assert f"; {r.active_cores} of 132 SMs at work" in text
        library, family = r.options["library"], r.mapping.family  # type: ignore[union-attr]
        _, origin = coefficients_for(ARCH, library, family)  # type: ignore[arg-type]
        assert f"Source: {r.source}; coefficients of {library}'s {family} kernels: {origin.text}." in text
        assert "Would help most: " in text or "No single doubling" in text
    assert dense.options == {"library": "cublas", "l2": "cold", "clock": "burst"}
    assert own.options == {"library": "gemm-eval", "l2": "cold", "clock": "burst"}
    assert trtllm.options["library"] == "trtllm"
    assert trtllm.problem.input_dtype == "bf16"


def test_who_keeps_a_result_keeps_no_evaluator() -> None:
    """An evaluator remembers thousands of results."""
    ev = GEMMEvaluator(ARCH, library="trtllm", clock="sustained", disk_cache=False)
    r, text, is_alive = ev.evaluate_problem(W4A16), ev.evaluate_problem(W4A16).explain(), weakref.ref(ev)
    del ev
    gc.collect()

    assert is_alive() is None
    assert r.explain() == text
    assert (r.arch, r.backend.arch, r.evaluator.arch) == (ARCH, ARCH, ARCH)
    again = r.evaluator.evaluate_problem(W4A16)
    assert again == r
    assert again.options == {"library": "trtllm", "l2": "cold", "clock": "sustained"}


@pytest.mark.parametrize(("name", "sizes", "dtype", "options"), ASKED, ids=str)
def test_every_way_to_ask_gives_the_same(
    name: str, sizes: tuple[int, int, int, int], dtype: str, options: dict[str, Any], tmp_path: Path
) -> None:
    of_call = {key: options[key] for key in options if key == "quantize_from"}
    preset = GEMMEvaluator(name, **{key: options[key] for key in options if key not in of_call})
    ev = GEMMEvaluator(name, disk_cache=tmp_path / "costs.npz")
    r = ev.evaluate(*sizes, dtype, **options)
    problem, words = r.problem, dict(r.problem.types.words)
    words.pop("accumulator_dtype")
    row = {**dict(zip("GMKN", sizes, strict=True)), "dtype": dtype}
    check(r)
    assert all(r.options.get(key, True) == value for key, value in options.items())  # corrections are the default

    table = ev.evaluate_many(pd.DataFrame([row | options, row]))
    assert list(ev.evaluate_many(table.to_pandas())) == list(table)
    saved = ev.evaluate_many([problem], **options)
    same = [
        ev.evaluate(*sizes, dtype.upper(), **options), ev.evaluate(*sizes, **words, **options),
        ev.evaluate_problem(GemmProblem(*sizes, **words), **options), ev.evaluate_many([sizes], dtype, **options)[0],
        table[0], saved[0], preset.evaluate(*sizes, dtype, **of_call), preset.evaluate_problem(problem, **of_call),
        preset.evaluate_many([sizes], dtype, **of_call)[0], preset.on(name).evaluate_problem(problem, **of_call),
        pickle.loads(pickle.dumps(preset)).evaluate_problem(problem, **of_call), pickle.loads(pickle.dumps(r)),
    ]  # fmt: skip
    assert same == [r] * len(same)
    assert table[1] == ev.evaluate(*sizes, dtype)

    top, replayed = ev.top(problem, 3, **options), ev.evaluate_mapping(problem, r.mapping, **options)
    assert [t.latency_us for t in top] == sorted(t.latency_us for t in top)
    for one in (top[0], replayed):
        assert (one.latency_us, one.breakdown, one.options) == (r.latency_us, r.breakdown, r.options)
    assert top[0].mapping == r.mapping
    assert not replayed.is_exhaustive

    data = json.loads(json.dumps(r.to_dict()))
    assert GemmProblem(**data["problem"]) == problem
    assert data["options"] == r.options
    assert (data["mapping"]["family"], data["mapping"]["decomposition"]) == (
        r.mapping.family, r.mapping.decomposition.name  # type: ignore[union-attr]
    )  # fmt: skip
    assert ev.save_to_disk(saved) == 1
    reader = GEMMEvaluator(name, disk_cache=tmp_path / "costs.npz")
    assert reader.evaluate(*sizes, dtype, **options) == r
    assert reader.cache_info().records.hits == 1


def test_what_a_call_says_wins_and_spelled_defaults_are_the_same_question() -> None:
    ev = GEMMEvaluator(ARCH, l2="warm", clock="sustained", library="trtllm")

    assert ev.evaluate(*SIZES, "w4a16", l2="cold").options == {"library": "trtllm", "l2": "cold", "clock": "sustained"}
    ev = GEMMEvaluator(ARCH, disk_cache=False)
    assert ev.evaluate(*SIZES) == ev.evaluate(*SIZES, library="cublas", l2="cold", clock="burst")
    assert ev.cache_info().records[:2] == (1, 1)


def test_a_library_of_the_evaluator_is_taken_where_it_has_kernels() -> None:
    ev = GEMMEvaluator(ARCH, library="trtllm")

    assert ev.evaluate(*SIZES).options["library"] == "cublas"
    assert ev.evaluate(*SIZES, "w4a16").options["library"] == "trtllm"
    table = ev.evaluate_many([GemmProblem(*SIZES), W4A16])
    assert table["library"].tolist() == ["cublas", "trtllm"]
    with pytest.raises(UnsupportedError):
        ev.evaluate(*SIZES, library="trtllm")


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (InvalidOptionError, "library must be", lambda ev: ev.evaluate(*SIZES, library="cutlas")),
        (InvalidOptionError, "l2 must be", lambda ev: ev.evaluate(*SIZES, l2="hot")),
        (InvalidOptionError, "l2 must be", lambda ev: ev.evaluate(*SIZES, l2=["warm"])),
        (InvalidOptionError, "clock must be", lambda ev: ev.evaluate_problem(W4A16, clock=True)),
        (InvalidOptionError, "clock must be", lambda ev: ev.evaluate_many([SIZES], clock="slow")),
        (InvalidOptionError, "l2 must be", lambda ev: ev.top(W4A16, l2="hot")),
        (InvalidOptionError, "l2 must be", lambda ev: ev.evaluate_mapping(W4A16, None, l2="hot")),
        (InvalidOptionError, "library must be", lambda ev: GEMMEvaluator(ARCH, library="cutlas")),
        (InvalidOptionError, "idle_cores must be True", lambda ev: GEMMEvaluator(ARCH, allow_idle_cores=False)),
        (InvalidOptionError, "distinct must be", lambda ev: ev.top(W4A16, distinct="partition")),
        (UnsupportedError, "cublas", lambda ev: ev.evaluate(*SIZES, "w4a16", library="cublas")),
        (UnsupportedError, "library is for GPUs", lambda ev: GEMMEvaluator("demo-8core", library="cublas")),
        (UnsupportedError, "l2 is for GPUs", lambda ev: ev.on("demo-8core").evaluate(1, 8, 8, 8, l2="cold")),
        (UnsupportedError, "clock is for GPUs", lambda ev: ev.on("demo-8core").evaluate_many([], clock="burst")),
        (UnsupportedError, "clock is for GPUs", lambda ev: ev.on("demo-8core").top(W4A16, clock="burst")),
        (InvalidMappingError, "KernelConfig", lambda ev: ev.evaluate_mapping(W4A16, ((1, 1, 1, 1), (1, 1, 1), "mnk"))),
        (InvalidMappingError, "KernelConfig", lambda ev: ev.evaluate_mapping(W4A16, None)),
    ],
)
def test_refusal(ev: GEMMEvaluator, error: type[GemmEvalError], words: str, call: Any) -> None:
    with pytest.raises(error, match=words):
        call(ev)
    assert ev.cache_info().records.currsize == 0


def test_a_mapping_in_plain_words() -> None:
    ev = GEMMEvaluator(ARCH, library="trtllm")
    config = ev.evaluate_problem(W4A16).mapping
    assert isinstance(config, KernelConfig)
    plain = tuple(getattr(value, "name", value) for value in config)

    assert ev.evaluate_mapping(W4A16, plain).mapping == config  # type: ignore[arg-type]
    lower = tuple(word.lower() if isinstance(word, str) else word for word in plain)
    assert ev.evaluate_mapping(W4A16, lower).mapping == config  # type: ignore[arg-type]
    assert ev.evaluate_mapping(W4A16, config._replace(schedule=1)).mapping.schedule.name == "COOPERATIVE"  # type: ignore
    for name in ("cta_m", "num_stages", "split_k"):
        for bad in (0, -1, 1.0, True, "1"):
            with pytest.raises(InvalidMappingError, match=f"{name} must be an integer"):
                ev.evaluate_mapping(W4A16, config._replace(**{name: bad}))
    for name in ("schedule", "decomposition", "raster_order"):
        for bad in (9, 0.0, True, "other", None):
            with pytest.raises(InvalidMappingError, match="a mapping on a GPU is a KernelConfig"):
                ev.evaluate_mapping(W4A16, config._replace(**{name: bad}))
    with pytest.raises(InvalidMappingError, match="sm90_wgmma kernels are pingpong or cooperative"):
        ev.evaluate_mapping(W4A16, config._replace(schedule="vector"))


def test_every_term_has_a_resource_and_every_resource_a_word() -> None:
    assert tuple(TERMS) == Times._fields
    assert {term.resource for term in TERMS.values()} - {""} == set(RESOURCES)
    assert set(BOUNDS) == set(RESOURCES) - {"sm"} | {"compute", "dequant", "latency"}
    assert all(term.meaning for term in TERMS.values())


def test_waves_are_those_of_the_record(ev: GEMMEvaluator) -> None:
    base = KernelConfig("sm90_wgmma", 128, 128, 64, 2, 1, 8, 4, 0, 0, 1, 0, 1)  # type: ignore[arg-type]
    problem = GemmProblem(1, 128 * 23, 8192, 128 * 23)

    def waves(mapping: KernelConfig) -> str:
        (line,) = [x for x in ev.evaluate_mapping(problem, mapping).explain().splitlines() if x.startswith("Waves")]
        return line

    # 23 tiles along M are 24 in clusters of 2, and 24 * 23 = 4 * 132 + 24
    assert waves(base).startswith(
        "Waves: 552 tiles of C (in whole clusters), 132 CTAs at once, 1 an SM; 5 waves, the last 18% full; 132 of 132"
    )
    assert waves(base._replace(cluster_m=1)).startswith("Waves: 529 tiles of C, 132 CTAs at once, 1 an SM; 5 waves, ")
    problem = GemmProblem(1, 64, 8192, 128)
    many = GEMMEvaluator("a100-sxm-80gb").evaluate(1, 1024, 4096, 28672, dtype="w4a16").explain()
    assert "Waves: 1,792 tiles of C, 216 CTAs at once, 2 an SM; 9 waves, the last 30% full; 108 of 108" in many
    assert "Waves: 1 tile of C, 1 CTA at once, 1 an SM; one wave, 1% full; 1 of 132" in waves(
        base._replace(cluster_m=1)
    )
    split = waves(base._replace(cluster_m=1, decomposition=1, split_k=32))  # type: ignore[arg-type]
    assert "Waves: 1 tile of C x 32 parts of K, 32 CTAs at once, 1 an SM; one wave, 24% full; 32 of 132" in split
    stream = waves(base._replace(cluster_m=1, decomposition=2))  # type: ignore[arg-type]
    assert "Waves: 1 tile of C, shared evenly by 16 CTAs at once, 1 an SM; 16 of 132 SMs at work" in stream


def test_rows_of_a_frame_say_their_own_options(ev: GEMMEvaluator) -> None:
    frame = pd.DataFrame(SHAPES, columns=list("GMKN")).assign(
        dtype=["fp16", "w4a16", "w4a16", None],
        library=[None, "trtllm", np.nan, "cublas"],
        l2=["warm", None, "cold", None],
        scale_dtype=[None, "fp32", None, None],
    )
    table = ev.evaluate_many(frame, l2="warm", clock="sustained")

    assert table["library"].tolist() == ["cublas", "trtllm", "gemm-eval", "cublas"]
    assert table["l2"].tolist() == ["warm", "warm", "cold", "warm"]
    assert table["clock"].tolist() == ["sustained"] * 4
    assert table["scale_dtype"].tolist() == [None, "fp32", "fp16", None]
    assert list(GEMMEvaluator(ARCH).evaluate_many(table.to_pandas())) == list(table)
    with pytest.raises(InvalidOptionError, match="problem 2: l2 must be"):
        ev.evaluate_many(frame.assign(l2=["cold", "warm", "hot", None]))


def test_another_process_reads_what_is_pickled(ev: GEMMEvaluator, tmp_path: Path) -> None:
    """Packed parameters name tables of one process: none may travel."""
    table = ev.evaluate_many(SHAPES, "w4a16")
    results = [*table, ev.evaluate(1, 33, 4097, 511)]
    (tmp_path / "data").write_bytes(pickle.dumps((ev, table, results)))
    code = (
        "import pickle, pathlib\n"
        "from gemm_eval import GEMMEvaluator\n"
        "GEMMEvaluator('l40s').evaluate(1, 64, 64, 64, 'fp8')\n"  # other tables get the first numbers
        "ev, table, results = pickle.loads(pathlib.Path('data').read_bytes())\n"
        "more = ev.evaluate(1, 33, 4097, 511)\n"
        "print([*table, more] == results, more.explain() == results[-1].explain())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


SMALL = [(39, 67, 64, 64), (39, 67, 65, 64), (1, 16, 4096, 1)]  # of the last two rows do not start on 16 bytes


@pytest.mark.parametrize(
    ("name", "libraries"), [("h200-sxm", ["gemm-eval", "hypothetical", "hypothetical"]), ("l40s", ["trtllm"] * 3)]
)
def test_auto_names_the_library_that_answers(name: str, libraries: list[str]) -> None:
    gpu = GEMMEvaluator(name, disk_cache=False)
    table = gpu.evaluate_many(SMALL, "w4a16")
    assert table["library"].tolist() == libraries
    assert table["latency_us"].tolist() == gpu.evaluate_many(SMALL, "w4a16", library="auto")["latency_us"].tolist()
    for shape in table:
        sizes = shape.problem.sizes
        named = gpu.evaluate(*sizes, "w4a16", library=shape.options["library"])
        assert (shape, named) == (gpu.evaluate(*sizes, "w4a16"), shape)
        assert gpu.top(shape.problem, 1)[0].mapping == shape.mapping
        assert ("No such kernels exist" in shape.explain()) == (shape.options["library"] == "hypothetical")


FORMATS: tuple[dict[str, Any], ...] = (
    {"dtype": "w4a16"}, {"dtype": "w4a16", "group_size": 32}, {"dtype": "w4a16", "group_size": -1},
    {"dtype": "w4a16", "zero_dtype": "int4"}, {"dtype": "w4a16_mxfp4"}, {"dtype": "w4a16_nvfp4"},
    {"input_dtype": "bf16", "weight_dtype": "int4", "output_dtype": "bf16", "group_size": 128},
)  # fmt: skip


NVIDIA = {name: arch.sm_arch for name in list_archs() if (arch := load_arch(name)).type == "gpu"}
NVIDIA = {name: sm_arch for name, sm_arch in NVIDIA.items() if sm_arch.startswith("sm_")}
OF_GENERATIONS = {"h200-sxm", *{sm_arch: name for name, sm_arch in NVIDIA.items()}.values()}
"""A GPU of each generation, by which the library of a type is chosen."""


@pytest.mark.parametrize("name", NVIDIA)
def test_narrow_weights_run_on_kernels_that_ran_on_such_a_gpu(name: str) -> None:
    """Ours are the default on generations of GPUs where they have timings, else TensorRT-LLM's, by every way to ask."""
    gpu = GEMMEvaluator(name, disk_cache=False)
    timed = [
        path.parent.name
        for path in (data_root() / "calibration").glob("*/gemm-eval-w4a16_*.yaml")
        if "grouped" not in path.name
    ]
    generations = {load_arch(other, GpuSpec).sm_arch for other in timed}
    library = "gemm-eval" if gpu.arch.sm_arch in generations else "trtllm"  # type: ignore[union-attr]
    assert generations == {"sm_90"}
    formats = FORMATS if "bf16" in gpu.arch.tensor_flop_per_cycle else FORMATS[:-1]  # type: ignore[union-attr]
    for types in formats if name in OF_GENERATIONS else FORMATS[:1]:
        for sizes in ((4, 16, 1024, 512), (1, 1, 4096, 4096), (1, 100, 2048, 1024)):  # the last is a plain one
            result = gpu.evaluate(*sizes, **types)
            assert result.options["library"] == library, (types, sizes)
            assert result.mapping.family.startswith("w4a16_") == (library == "gemm-eval")  # type: ignore[union-attr]
        assert (f"Library: {library} is the default" in result.explain()) == (name not in timed)
        assert set(gpu.evaluate_many([(1, 1, 64, 64), (1, 300, 4096, 64)], **types)["library"]) == {library}
        assert {one.options["library"] for one in gpu.top(result.problem, 3)} == {library}
    odd = gpu.evaluate(1, 3, 250, 250, "w4a16").options["library"]
    assert odd == ("hypothetical" if library == "gemm-eval" else "trtllm")
    assert gpu.evaluate(1, 3, 256, 256, "w8a16").options["library"] == "hypothetical"


def test_a_gpu_that_nobody_uses_any_more_is_forgotten() -> None:
    """A design space is thousands of them."""
    for num_sms in range(201, 221):
        evaluator = GEMMEvaluator(ARCH.with_(num_sms=num_sms), disk_cache=False)
        evaluator.evaluate_many([(1, 64, 4096, 4096), (1, 64, 4097, 4096)])
        evaluator.evaluate(1, 64, 4096, 4096, dtype="w4a16")
    del evaluator
    gc.collect()
    remaining = [one for one in gc.get_objects() if type(one) is Packed and 201 <= one.params["num_sms"][0] < 221]
    assert remaining == []
