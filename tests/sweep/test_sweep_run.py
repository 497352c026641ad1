"""Sweeps in this process: columns, objectives, constraints, groups of rows, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval import DType, GEMMEvaluator, GemmProblem, load_arch, load_model
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep import (
    Adaptive,
    Constraint,
    LatinHypercube,
    Random,
    Range,
    Space,
    Workload,
    load_sweep,
    read_sweep_file,
    sweep,
    transformer_workloads,
    what_if,
)
from gemm_eval.sweep.sweep_file import workloads_of

# ---- sweep run -------------------------------------------------------------------------------------------------------


DEMO = "demo-8core"
SHAPES = [(1, 64, 96, 128), (2, 7, 100, 33)]
BASE: Any = load_arch(DEMO)


def problems(*shapes: tuple[int, ...], dtype: DType = DType.FP16) -> list[GemmProblem]:
    return [GemmProblem(*shape, dtype) for shape in shapes]


FIRST, SECOND = problems((1, 64, 96, 128), (2, 7, 100, 33))
LOADS = [Workload("prefill", ((FIRST, 3), (SECOND, 1)), 100), Workload("tail", ((SECOND, 5),))]


def same(a: Any, b: Any) -> bool:
    """Whether two tables are the same to the bit, nan included."""
    return bool(a.schema == b.schema) and a.to_pandas().equals(b.to_pandas())


def by_hand(arch: Any, load: Workload, **options: Any) -> dict[str, float]:
    options = options or {"allow_idle_cores": False}
    table = GEMMEvaluator(arch, disk_cache=False, **options).evaluate_many([problem for problem, _ in load.gemms])
    total = {}
    for name in ("latency_us", "energy_pj", "dram_bytes"):
        total[name] = 0.0
        for value, (_, count) in zip(table[name].tolist(), load.gemms, strict=True):
            total[name] += count * value
    ideal_us = sum(count * problem.flop / (arch.peak_tflop_per_s() * 1e6) for problem, count in load.gemms)
    return {**total, "flop": sum(count * problem.flop for problem, count in load.gemms), "ideal_us": ideal_us}


def metrics(of: dict[str, float], area_mm2: float, tokens: int | None) -> dict[str, float]:
    latency_us, energy_pj = of["latency_us"], of["energy_pj"]
    tflop_per_s = of["flop"] / latency_us / 1e6
    power_w = energy_pj / latency_us / 1e6
    found = {
        "latency_us": latency_us, "energy_pj": energy_pj, "energy_delay_pj_us": energy_pj * latency_us,
        "power_w": power_w, "dram_bytes": of["dram_bytes"], "tflop_per_s": tflop_per_s,
        "utilization_frac": of["ideal_us"] / latency_us, "tflop_per_s_per_mm2": tflop_per_s / area_mm2,
        "tflop_per_s_per_w": tflop_per_s / power_w,
    }  # fmt: skip
    return found | ({"tokens_per_s": tokens / latency_us * 1e6} if tokens else {})


@pytest.mark.parametrize("timing", ["overlap", "pipeline"])
@pytest.mark.parametrize("idle", [False, True])
def test_every_metric_is_what_the_evaluator_says(timing: str, idle: bool) -> None:
    fields = {"num_cores": [4, 6], "dram_gb_per_s": [50.0, 400.0], "timing": timing, "area_mm2": "= 3 * num_cores"}
    result = sweep(Space(DEMO, fields), LOADS, allow_idle_cores=idle)
    frame = result.to_pandas()
    assert list(frame["point"]) == [0, 1, 2, 3]
    assert list(frame.columns) == list(result.columns)
    for point, row in enumerate(frame.to_dict("records")):
        changes = {name: row[name] for name in fields}
        arch = BASE.with_(**changes)
        assert arch.num_cores == [4, 4, 6, 6][point]
        alone = [by_hand(arch, load, allow_idle_cores=idle) for load in LOADS]
        both = {name: alone[0][name] + alone[1][name] for name in alone[0]}
        expected = metrics(both, arch.area_mm2, 100)
        for load, of in zip(LOADS, alone, strict=True):
            expected |= {f"{load.name}_{k}": v for k, v in metrics(of, arch.area_mm2, load.num_tokens).items()}
        assert {name for name in row if name not in {"point", "arch", "excluded", *fields}} == set(expected)
        for name, value in expected.items():
            close = "utilization" in name  # its sum is taken by type, not by GEMM
            assert row[name] == (pytest.approx(value, rel=1e-14) if close else value), name
        assert row["excluded"] == ""


def test_workloads_in_every_form() -> None:
    space = Space(DEMO, num_cores=[8])
    latency = sweep(space, [(FIRST, 3), SECOND])["latency_us"]
    assert sweep(space, LOADS[:1])["latency_us"] == latency
    assert sweep(space, {"a": [((1, 64, 96, 128), 3), (2, 7, 100, 33)]}, dtype="fp16")["latency_us"] == latency
    assert sweep(space, [SHAPES[0], (SHAPES[0], 2), SHAPES[1]])["latency_us"] == latency
    model = sweep(space, transformer_workloads("llama-3-8b", seq_len=32), ("decode_tokens_per_s", "area_mm2"))
    assert {"prefill_latency_us", "decode_tokens_per_s", "tokens_per_s"} <= set(model.columns)
    assert model["decode_tokens_per_s"] == 1e6 / model["decode_latency_us"]
    with pytest.raises(InvalidOptionError, match="a second prefill_latency_us"):
        sweep(Space(DEMO, variables={"prefill_latency_us": 1.0}), LOADS)


def test_attention_of_a_model_is_fused_unless_asked_otherwise() -> None:
    config = load_model("llama-3.2-1b")
    evaluator = GEMMEvaluator(DEMO, disk_cache=False, allow_idle_cores=False)
    for fused in (True, False):
        (prefill,) = transformer_workloads(config, seq_len=512, phases=["prefill"], fused=fused)
        assert bool(prefill.attention) is fused
        result = sweep(Space(DEMO, num_cores=[8]), prefill, ("latency_us", "energy_pj"), progress=False)
        gemms_us = sum(count * evaluator.evaluate_problem(problem).latency_us for problem, count in prefill.gemms)
        problems = [problem for problem, _ in prefill.attention]
        results = evaluator.evaluate_attention_problems(problems)
        attention_us = sum(count * one.latency_us for (_, count), one in zip(prefill.attention, results, strict=True))
        assert result["latency_us"][0] == pytest.approx(gemms_us + attention_us)
        assert result["energy_pj"][0] > 0
        assert ("attention" in result.explain(0)) is fused
        described = workloads_of(json.loads(json.dumps(result.description)))
        assert described == (prefill,)
    assert transformer_workloads(config, fused=True)[1].flop < transformer_workloads(config, fused=False)[1].flop * 1.01


def test_what_is_excluded_and_why() -> None:
    space = Space(
        DEMO,
        sram_bytes=[64, 1 << 20],
        num_cores=[0, 8, 16],
        area_mm2="= num_cores * 10",
        variables={"sram_total_bytes": "= num_cores * sram_bytes"},
    )
    limits = ["area_mm2 <= 100", Constraint("latency_us", "<", 1e9), "sram_total_bytes >= 1"]
    result = sweep(space, SHAPES, ("latency_us", "area_mm2"), limits)
    reasons = result["excluded"].tolist()
    assert reasons[0].startswith("invalid: num_cores must be >= 1, got 0 (demo-8core: num_cores); area_mm2 must")
    assert reasons[1] == f"infeasible: {FIRST} does not fit in 60 bytes of SRAM a core"
    assert reasons[2] == "area_mm2 = 160, not <= 100"
    assert reasons[4] == ""
    assert reasons[5] == reasons[2]
    assert np.isnan(result["latency_us"]).tolist() == [True, True, True, True, False, True]
    assert result.is_feasible.tolist() == [reason == "" for reason in reasons]
    told = result.excluded()
    assert list(told["reason"]) == ["invalid", "area_mm2", "infeasible"]
    assert list(told["num_points"]) == [2, 2, 1]
    assert list(told["first_point"]) == [0, 2, 1]
    assert list(told["example"]) == [reasons[0], reasons[2], reasons[1]]
    assert list(result.pareto()["point"]) == [4]


def test_a_late_constraint_excludes_but_keeps_the_numbers() -> None:
    space = Space(DEMO, dram_gb_per_s=[10.0, 1000.0])
    free = sweep(space, SHAPES)
    limit = float(free["latency_us"].mean())
    bound = sweep(space, SHAPES, constraints=f"latency_us <= {limit!r}")
    assert bound["latency_us"].tolist() == free["latency_us"].tolist()
    assert bound["excluded"].tolist() == [f"latency_us = {free['latency_us'][0]:.6g}, not <= {limit!r}", ""]
    both = sweep(space, SHAPES, constraints=["latency_us > 1e9", "power_w < 0"])["excluded"]
    assert all("latency_us" in why and "; power_w" in why for why in both)
    assert list(sweep(space, SHAPES, constraints=["latency_us > 1e9"]).pareto()["point"]) == []
    exact = sweep(Space(DEMO, sram_bytes=[1048576, 1048577]), SHAPES, constraints="sram_bytes <= 1_048_576")
    assert exact["excluded"].tolist() == ["", "sram_bytes = 1.04858e+06, not <= 1048576.0"]


def test_what_is_not_known_breaks_a_constraint() -> None:
    space = Space(BASE.with_(mac_pj={}, area_mm2=None), num_cores=[8])
    (why,) = sweep(space, SHAPES, constraints=["area_mm2 <= 100"])["excluded"]
    assert why == "area_mm2 is not known, and must be <= 100"
    (why,) = sweep(space, SHAPES, constraints=["power_w <= 100"])["excluded"]
    assert why == "power_w is not known, and must be <= 100"


def test_points_without_a_value_are_excluded_not_fatal() -> None:
    result = sweep(Space(DEMO, num_cores=[6, 8, 10], area_mm2="= 8 / (num_cores - 8)"), SHAPES)
    assert result["excluded"][1] == "invalid: area_mm2: ZeroDivisionError: division by zero"
    assert result["excluded"][0].startswith("invalid: area_mm2 must be >= 1e-12, got -4.0")
    assert result["excluded"][2] == ""
    np.testing.assert_array_equal(result["area_mm2"], [-4.0, np.nan, 4.0])
    wrong = sweep(Space(DEMO, num_cores=lambda a: a.launch_us + 8.5), SHAPES)
    assert "num_cores must be a valid integer, got 10.5" in wrong["excluded"][0]
    assert np.isnan(wrong["num_cores"].astype(float)[0])
    idle = sweep(Space(DEMO, num_cores=[8, 8192]), SHAPES, allow_idle_cores=True)["excluded"]
    assert idle[0] == ""
    assert idle[1].startswith("invalid: allow_idle_cores must be False above 4096 cores, got 8192")


@pytest.mark.parametrize("options", [{}, {"l2": "warm", "clock": "sustained"}])
def test_gpus(options: dict[str, Any]) -> None:
    load = Workload("gemms", ((FIRST, 2),))
    result = sweep(Space("h200-sxm", num_sms=[66, 132]), load, **options)
    base: Any = load_arch("h200-sxm")
    asked = options or {"l2": "cold"}
    expected = [by_hand(base.with_(num_sms=num), load, **asked) for num in (66, 132)]
    assert result["latency_us"].tolist() == [one["latency_us"] for one in expected]
    assert result["dram_bytes"].tolist() == [one["dram_bytes"] for one in expected]
    assert result.evaluate(0)["gemms"]["latency_us"][0] * 2 == expected[0]["latency_us"]
    assert "66" in result.explain(0).splitlines()[0]


def test_gpus_and_multicore_chips_together() -> None:
    result = sweep(Space([DEMO, "h200-sxm"], launch_us=[0.0, 1.0]), SHAPES, library="cublas")
    demo: Any = BASE.with_(launch_us=0.0)
    assert result["arch"].tolist() == [DEMO, DEMO, "h200-sxm", "h200-sxm"]
    table = GEMMEvaluator(demo, allow_idle_cores=False, disk_cache=False).evaluate_many(SHAPES)
    assert result["latency_us"][0] == table["latency_us"][0] + table["latency_us"][1]
    assert (result["excluded"] == "").all()
    with pytest.raises(InvalidOptionError, match="dtype must be given"):
        sweep(Space([DEMO, BASE.with_(name="b", default_dtype="int8")]), SHAPES)


@pytest.mark.parametrize("kind", [Random, LatinHypercube])
def test_points_are_those_of_a_seed_and_found_directly(kind: Any) -> None:
    space = Space(DEMO, num_cores=[4, 8, 12], launch_us=Range(0, 1))
    rows = kind(5000, seed=3).rows(space, 0, 5000)
    assert rows == kind(5000, seed=3).rows(space, 0, 5000) != kind(5000, seed=4).rows(space, 0, 5000)
    assert kind(5000, seed=3).rows(space, 4090, 4100) == rows[4090:4100]
    assert len(set(rows)) == 5000
    strata = sorted(int(launch_us * 5000) for _, launch_us in rows)
    assert (strata == list(range(5000))) == (kind is LatinHypercube)


def bowl() -> Space:
    """Latency falls with bandwidth and frequency, and the chip may not grow: the best is at an edge."""
    return Space(
        DEMO, dram_gb_per_s=Range(10, 1000), frequency_ghz=Range(0.2, 2.0), num_cores=[1, 2, 4, 8],
        area_mm2="= num_cores * 4 + dram_gb_per_s / 20 + frequency_ghz * 10",
    )  # fmt: skip


@pytest.mark.parametrize("sampler", ["nsga2", "tpe", "qmc"])
def test_adaptive_sampling_is_deterministic(sampler: str) -> None:
    found = [
        sweep(bowl(), SHAPES[:1], sampling=Adaptive(24, 8, seed=5, sampler=sampler), chunk_size=size).to_arrow()
        for size in (3, 64)
    ]
    assert found[0].num_rows == 24
    assert same(*found)
    assert len(set(found[0]["frequency_ghz"].to_pylist())) > 8


SPACE = Space(DEMO, num_cores=[8], load_sharing=["private"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objectives": "latency"}, "objective 'latency' is no column of numbers; there are point, num_cores"),
        ({"objectives": "x" * 100_000}, "objective 'x+\\.\\.\\.x+' is no column of numbers"),
        ({"objectives": "load_sharing"}, "objective 'load_sharing' is no column of numbers"),
        ({"objectives": ()}, "at least one objective"),
        ({"objectives": "prefill_latency_us"}, "objective 'prefill_latency_us'"),
        ({"constraints": "area <= 8"}, "constraint 'area' is no column"),
        ({"constraints": "area_mm2 = 8"}, "a constraint is a column, a sign and a number"),
        ({"constraints": "area_mm2 <= nan"}, "a constraint is a column, a sign and a number"),
        ({"constraints": 8}, "constraints are a list of conditions"),
        ({"sampling": Adaptive}, "sampling must be"),
        ({"sampling": "grid"}, "sampling must be"),
        ({"chunk_size": 0}, r"chunk_size must be an integer in 1..2\*\*62"),
        ({"allow_idle_cores": 1}, "allow_idle_cores must be True or False"),
        ({"l2": "warm"}, "library, l2 and clock are for GPUs"),
        ({"executor": 4}, "executor must be None, a concurrent.futures executor or a Dask client, got 4"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        sweep(SPACE, SHAPES, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraint("area_mm2", "=<", 8), "a constraint compares with <=, >="),
        (lambda: Constraint("area_mm2", "<=", "8"), "must be a number, got '8'"),  # type: ignore[arg-type]
        (lambda: Constraint("area_mm2", "<=", float("nan")), "must be a number, got nan"),
        (lambda: sweep(DEMO, SHAPES), "space must be a Space"),  # type: ignore[arg-type]
        (lambda: sweep(Space("h200-sxm"), SHAPES, l2="hot"), "l2"),
        (lambda: Adaptive(8, sampler="best"), "sampler must be one of nsga2, tpe, qmc"),
        (lambda: Random(0), "num_points must be an integer in 1"),
        (lambda: what_if(DEMO, SHAPES, [{"num_coers": 8}]), "did you mean num_cores"),
        (lambda: what_if(DEMO, SHAPES, {"num_cores": 8}), "changes are tables of fields"),  # type: ignore[dict-item]
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        make()


def test_columns_keep_their_types() -> None:
    space = Space(
        DEMO, num_cores=[8, 16.0], noc_gb_per_s=[None, 100], load_sharing="private", reduction="dram",
        vector_is_concurrent=[True], variables={"ratio": "= num_cores / 3", "note": ["a"], "whole": Range(1, 2, 2)},
    )  # fmt: skip
    result = sweep(space, SHAPES)
    table = result.to_arrow()
    types = {name: str(table.schema.field(name).type) for name in space.names}
    assert types == {
        "arch": "string", "ratio": "double", "note": "string", "whole": "int64", "num_cores": "int64",
        "noc_gb_per_s": "double", "load_sharing": "string", "reduction": "string", "vector_is_concurrent": "bool",
    }  # fmt: skip
    last: Any = result.arch(len(result) - 1)
    assert (last.num_cores, last.noc_gb_per_s, last.vector_is_concurrent) == (16, 100.0, True)
    first: Any = result.arch(0)
    assert first.noc_gb_per_s is None


def test_a_point_again() -> None:
    result = sweep(Space(DEMO, num_cores=[4, 8], dram_gb_per_s=[50.0, 80.0]), LOADS, ("latency_us", "energy_pj"))
    tables = result.evaluate(3)
    assert list(tables) == ["prefill", "tail"]
    assert tables["prefill"]["latency_us"] @ [3, 1] == result["prefill_latency_us"][3]
    text = result.explain(3)
    assert text.startswith("Point 3: demo-8core with num_cores 8, dram_gb_per_s 80\nlatency_us: ")
    assert all(part in text for part in ("\nprefill: ", "\ntail: ", "100.0%  5 x G=2 M=7"))
    assert [len(result.rank(limit=limit)) for limit in (2, None)] == [2, 4]
    for wrong in (-1, 4, True, 1.0):
        with pytest.raises(InvalidOptionError, match=r"point must be in 0\.\.3"):
            result.row(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="no column 'x'"):
        result["x"]
    with pytest.raises(InvalidOptionError, match=r"rows must be in 0\.\.3"):
        result.rows([4])


@pytest.mark.parametrize("arch", [DEMO, "h200-sxm"])
def test_what_if(arch: str) -> None:
    changes = {
        "more DRAM": {"dram_gb_per_s": 5000.0},
        "slower": {"frequency_ghz": 0.01} if arch == DEMO else {"num_sms": 16},
        "none": {},
    }
    table = what_if(arch, SHAPES, changes, objectives=("latency_us", "dram_bytes"))
    assert list(table.columns) == [
        "change", "latency_us", "latency_us_ratio", "dram_bytes", "dram_bytes_ratio", "excluded",
    ]  # fmt: skip
    assert list(table["change"]) == ["as it is", *changes]
    of_sweeps: dict[str, Any] = {"allow_idle_cores": False} if arch == DEMO else {}
    base = GEMMEvaluator(load_arch(arch), disk_cache=False, **of_sweeps).evaluate_many(SHAPES)["latency_us"]
    assert table["latency_us"][0] == base[0] + base[1] == table["latency_us"][3]
    assert table["latency_us_ratio"][0] == 1.0 < table["latency_us_ratio"][2]
    assert table["latency_us_ratio"][1] <= 1.0


# ---- sweep grouped ---------------------------------------------------------------------------------------------------


GROUPS = (120, 3, 0, 17)
GROUPED = GemmProblem.grouped(GROUPS, 96, 128)
PLAIN = GemmProblem(1, 64, 96, 128)
SPACE_OF_SWEEP_GROUPED = Space("demo-8core", num_cores=[2, 4], dram_gb_per_s=[50.0, 400.0])
LOADS_OF_SWEEP_GROUPED = [Workload("experts", ((GROUPED, 3), (PLAIN, 1))), Workload("dense", ((PLAIN, 2),))]


@pytest.mark.parametrize("timing", ["overlap", "pipeline"])
def test_chips_are_given_the_groups_of_their_gemms(timing: str) -> None:
    result = sweep(Space("demo-8core", num_cores=[2, 4], timing=timing), LOADS_OF_SWEEP_GROUPED, progress=False)

    assert result["excluded"].tolist() == ["", ""]
    for point in range(2):
        alone = GEMMEvaluator(result.evaluator(point).arch, allow_idle_cores=False, disk_cache=False)
        grouped_us, plain_us = (alone.evaluate_problem(problem).latency_us for problem in (GROUPED, PLAIN))
        row, total_us = result.row(point), 3 * grouped_us + plain_us
        assert row["experts_latency_us"] == pytest.approx(total_us, rel=1e-14)
        assert row["dense_latency_us"] == 2 * plain_us
        rate = 2 * 96 * 128 * (3 * 140 + 64) / total_us / 1e6
        assert row["experts_tflop_per_s"] == pytest.approx(rate, rel=1e-12)
    assert result.evaluate(0)["experts"]["row_groups"].tolist() == [GROUPS, None]
    gpus = sweep(Space("h200-sxm", num_sms=[66, 132]), [LOADS_OF_SWEEP_GROUPED[0]], progress=False)
    assert gpus["excluded"].tolist() == ["", ""]


def test_a_folder_keeps_groups(tmp_path: Path) -> None:
    first = sweep(SPACE_OF_SWEEP_GROUPED, LOADS_OF_SWEEP_GROUPED, path=tmp_path, progress=False)
    again = load_sweep(tmp_path)

    assert again.workloads == tuple(LOADS_OF_SWEEP_GROUPED)
    assert again["latency_us"].tolist() == first["latency_us"].tolist()
    other = Workload("experts", ((GemmProblem.grouped((120, 3, 1, 16), 96, 128), 3), (PLAIN, 1)))
    with pytest.raises(GemmEvalError, match="another sweep"):
        sweep(SPACE_OF_SWEEP_GROUPED, [other, LOADS_OF_SWEEP_GROUPED[1]], path=tmp_path, progress=False)


FILE = "base: demo-8core\nworkloads:\n  - {name: experts, grouped: [{row_groups: [120, 3, 0, 17], K: 96, N: 128"


def test_groups_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(FILE + ", count: 3}], gemms: [[1, 64, 96, 128]], dtype: fp16}\n")

    (one,) = read_sweep_file(path).workloads
    assert one == Workload("experts", ((PLAIN, 1), (GROUPED, 3)))
    path.write_text(FILE + "}], dtype: w4a16}\n")
    ((problem, count),) = read_sweep_file(path).workloads[0].gemms
    assert (problem.row_groups, str(problem.weight_dtype), count) == (GROUPS, "int4", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE.replace("[120, 3, 0, 17]", "[0, 0]") + "}]}\n", "must have a row in one group"),
        (FILE.replace("120", "-1") + "}]}\n", "row_groups must be integers in"),
        (FILE + ", G: 4}]}\n", "grouped.0.G"),
        (FILE.replace("K: 96, ", "") + "}]}\n", "grouped.0.K"),
        (FILE + ", count: 0}]}\n", "count"),
        ("base: demo-8core\nworkloads:\n  - {name: experts}\n", "has no GEMMs"),
    ],
)
def test_bad_groups_in_a_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(InvalidOptionError, match=message):
        read_sweep_file(path)


def test_points_have_the_correction_of_their_preset() -> None:
    sizes = (1, 64, 4096, 4096)
    result = sweep(Space("h200-sxm", {"num_sms": [100, 132]}), [sizes], dtype="bf16", progress=False)
    base = load_arch("h200-sxm")
    changed = GEMMEvaluator(base.with_(num_sms=100), disk_cache=False).evaluate(*sizes, "bf16")
    preset = GEMMEvaluator(base, disk_cache=False).evaluate(*sizes, "bf16")

    assert result["latency_us"].tolist() == [changed.latency_us, preset.latency_us]
    assert preset.latency_us != preset.physics_us
    assert changed.latency_us / changed.physics_us == pytest.approx(preset.latency_us / preset.physics_us)
    (table,) = result.evaluate(1).values()
    assert table["latency_us"].tolist() == [preset.latency_us]
