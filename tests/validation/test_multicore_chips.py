"""Multi-core chips against timings: tables, fits, held-out errors, calibrations, and whose mapping an answer is of."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from gemm_eval import GEMMEvaluator, MulticoreSpec, load_arch
from gemm_eval.arch import calibration_file, data_root
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchValidationError, InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate.interval import CHIPS
from gemm_eval.evaluate.multicore import spec_changes
from gemm_eval.models.gpu.correction import MAX_LOG_FACTOR
from gemm_eval.models.gpu.learned import learned_path, load_learned
from gemm_eval.validation.exam import FITTED, MODEL
from gemm_eval.validation.subjects import chips
from gemm_eval.validation.subjects.chip_timings import TimingSet, chips_with_timings, read_chip_timings

CORRECTED = ("arc-pro-b60", "tpu-v4")
CALIBRATED = ("arc-pro-b60", "ipu-gc200", "rk3588-npu", "tpu-v4", "wormhole-n150")


def _rows(arch: MulticoreSpec, num: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sizes = 2 ** rng.integers(4, 12, (num, 3))
    frame = pd.DataFrame(sizes, columns=["M", "K", "N"])
    return frame.assign(chip=arch.name, dtype="fp16", latency_us=1.0)


@pytest.fixture(scope="module")
def chip() -> MulticoreSpec:
    return load_arch("demo-8core", MulticoreSpec).with_(
        launch_us=3.0, dram_efficiency_frac=0.6, coefficients=("launch_us", "dram_efficiency_frac")
    )


@pytest.fixture(scope="module")
def timed(chip: MulticoreSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Timings that the model itself makes, with noise of 1%."""
    rows = TimingSet(_rows(chip), "all")
    noise = np.random.default_rng(1).normal(1.0, 0.01, len(rows.frame))
    path = tmp_path_factory.mktemp("timings") / "mine.csv"
    rows.frame.assign(latency_us=chips.predict_set(chip, rows) * noise).to_csv(path, index=False)
    return path


def test_a_fit_finds_what_made_the_timings(chip: MulticoreSpec, timed: Path) -> None:
    timings = read_chip_timings(chip.name, timed)
    start = chip.with_(launch_us=10.0, dram_efficiency_frac=0.9)
    found = chips.fit_chip(start, timings.sets, chip.coefficients)
    assert found == {"launch_us": pytest.approx(3.0, rel=0.03), "dram_efficiency_frac": pytest.approx(0.6, rel=0.02)}
    fitted, score = chips.calibrate_chip(start, timings)
    of_all = next(line for line in score.lines if line.group == "all")
    assert of_all.errors[MODEL].mape_frac < 0.012 < of_all.errors[FITTED].mape_frac
    read_back = yaml.safe_load(chips.calibration_text(fitted, start))
    assert read_back["coefficients"] == pytest.approx(fitted.coefficients)
    assert read_back["sha256"] == timings.sha256


def test_repeats_say_how_far_timings_are_from_one_another(chip: MulticoreSpec, tmp_path: Path) -> None:
    sizes = _rows(chip, 3).drop_duplicates()
    thrice = pd.concat([sizes.assign(latency_us=us) for us in (100.0, 100.0, 125.0)]).assign(set="thrice")
    once = sizes.assign(M=sizes["M"] + 1, latency_us=50.0, set="once")
    path = tmp_path / "mine.csv"
    pd.concat([thrice, once]).to_csv(path, index=False)
    meta = {"source": "me", "licence": "none", "sets": {"thrice": {}, "once": {}}}
    path.with_name("mine.meta.yaml").write_text(yaml.safe_dump(meta), encoding="utf-8")
    found = chips.score_chip(chip, read_chip_timings(chip.name, path), is_fitted=False).repeats
    assert set(found) == {"thrice"}
    assert found["thrice"].num == 3 * len(sizes)
    # twice 100 by the median of 100 and 125, once 125 by that of 100 and 100
    assert found["thrice"].mape_frac == pytest.approx((0.125 + 0.125 + 0.2) / 3)


def test_a_table_is_of_other_pairs(chip: MulticoreSpec, tmp_path: Path) -> None:
    sizes = [(64, 2**k, 2**n) for k in range(5, 11) for n in range(5, 11)]
    frame = pd.DataFrame(sizes, columns=["M", "K", "N"]).assign(chip=chip.name, dtype="fp16")
    law = frame["K"] ** 0.5 * frame["N"]  # a plane in logarithms: exact inside the table
    path = tmp_path / "mine.csv"
    odd = (frame["K"] == 256) & (frame["N"] == 256)
    frame.assign(latency_us=law.where(~odd, 3.0 * law)).to_csv(path, index=False)
    lines = chips.score_chip(chip, read_chip_timings(chip.name, path), is_fitted=False).lines
    found = next(line for line in lines if line.group == "all").errors[chips.TABLE]
    # the odd one knows nothing of itself, and misleads some of its neighbours alone
    assert found.median_frac < 1e-9
    assert 2.0 / 3.0 / len(frame) < found.mape_frac < 1.0 / 3.0


def test_values_are_put_at_paths() -> None:
    arch = load_arch("wormhole-n150", MulticoreSpec)
    assert arch.rules is not None
    changed = chips.with_values(
        arch, {"load_clock_frac.*": 0.5, "rules.changes.launch_us": 7.0, "by_dtype.bf16.launch_us": 1.5}
    )
    assert set(changed.load_clock_frac) == set(arch.cube_steps_per_cycle)
    assert set(changed.load_clock_frac.values()) == {0.5}
    assert changed.rules is not None
    assert changed.rules.changes["launch_us"] == 7.0
    assert changed.rules.changes["resident"] == arch.rules.changes["resident"]
    assert changed.for_dtype(arch.default_dtype).launch_us == 1.5


def test_what_cannot_be_fitted_is_refused(chip: MulticoreSpec, timed: Path) -> None:
    timings = read_chip_timings(chip.name, timed)
    with pytest.raises(InvalidOptionError, match=r"coefficient must be one of .*launch_us.*got 'num_cores'"):
        chips.fit_chip(chip, timings.sets, ["num_cores"])
    with pytest.raises(InvalidOptionError, match="names no coefficients"):
        chips.score_chip(chip.with_(coefficients=()), timings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="latency_us"), "lacks latency_us; it has"),
        (lambda frame: frame.assign(chip="other"), "these are timings of 'other', not of demo-8core"),
        (lambda frame: frame.assign(latency_us=0.0), "numbers above 0"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(timed: Path, tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "wrong.csv"
    change(pd.read_csv(timed)).to_csv(path, index=False)  # type: ignore[operator]
    with pytest.raises(InvalidInputError, match=message):
        read_chip_timings("demo-8core", path)


META = """
source: mine
licence: none
sets:
  slow timer: {where: {notes: by hand}, timer_us: 2.5, timer_why: a stopwatch}
  others: {}
"""


def test_sets_by_what_stands_in_columns(chip: MulticoreSpec, timed: Path, tmp_path: Path) -> None:
    """Rows of a timer that adds something, told by their notes; the fit takes it off, and finds the rest."""
    frame = pd.read_csv(timed)
    by_hand = np.arange(len(frame)) % 3 == 0
    frame["notes"] = np.where(by_hand, "by hand, on a Monday", "by machine")
    frame.loc[by_hand, "latency_us"] += 2.5
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    (tmp_path / "mine.meta.yaml").write_text(META, encoding="utf-8")
    timings = read_chip_timings(chip.name, path)
    assert [(rows.name, len(rows.frame), rows.timer_us) for rows in timings.sets] == [
        ("slow timer", by_hand.sum(), 2.5), ("others", (~by_hand).sum(), 0.0)
    ]  # fmt: skip
    start = chip.with_(launch_us=10.0, dram_efficiency_frac=0.9)
    assert chips.fit_chip(start, timings.sets, chip.coefficients)["launch_us"] == pytest.approx(3.0, rel=0.03)
    slow = timings.sets[0]
    plain = replace(slow, timer_us=0.0)
    np.testing.assert_allclose(chips.predict_set(chip, slow) - chips.predict_set(chip, plain), 2.5)
    (tmp_path / "mine.meta.yaml").write_text(META.replace("  others: {}\n", ""), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"sets .*its meta file has slow timer"):
        read_chip_timings(chip.name, path)  # rows that no set has


def test_a_meta_file_without_its_table_knows_its_rows(tmp_path: Path) -> None:
    """TPU v4: the table has no licence and does not come along; what is known of it does."""
    rows = [("data/data_matmul2", 32), ("x data/data_matmul3 y", 128), ("data/data_matmul7", 1024)]
    frame = pd.DataFrame({"source": [source for source, _ in rows], "M": [M for _, M in rows]})
    frame = frame.assign(chip="tpu-v4", dtype="fp16", K=128, N=128, latency_us=2.0)
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False)
    told = {of.name: (of.frame["M"].tolist(), of.timer_us) for of in read_chip_timings("tpu-v4", path).sets}
    assert told == {"up to 128": ([32], 0.0), "first runs": ([128], 0.53), "128 and more": ([1024], 0.0)}
    frame.assign(source="mine").to_csv(path, index=False)
    (mine,) = read_chip_timings("tpu-v4", path).sets
    assert (mine.name, mine.timer_us) == ("all", 0.0)
    frame.drop(columns="source").to_csv(path, index=False)
    assert len(read_chip_timings("tpu-v4", path).sets) == 1


def test_a_chip_without_timings_says_which_have_some() -> None:
    with pytest.raises(InvalidOptionError, match=r"arc-pro-b60.*give --data FILE"):
        read_chip_timings("sg2260e")


@pytest.mark.parametrize("name", chips_with_timings())
def test_committed_timings_are_read(name: str) -> None:
    timings = read_chip_timings(name)
    assert sum(len(rows.frame) for rows in timings.sets) > 40
    notice = data_root() / "measured" / name / "NOTICE"
    assert notice.is_file(), "the licence wants it said whose rows these are"


@pytest.mark.parametrize("name", CALIBRATED)
def test_calibrations_are_of_this_model_and_in_range(name: str) -> None:
    arch, plain = load_arch(name, MulticoreSpec), load_arch(name, MulticoreSpec, calibrated=False)
    assert arch.calibration
    assert not plain.calibration
    data = yaml.safe_load(calibration_file(name).read_text(encoding="utf-8"))
    assert tuple(data["coefficients"]) == arch.coefficients
    for path, value in data["coefficients"].items():
        field = next(part for part in path.split(".") if part in chips.RANGES)
        assert chips.RANGES[field][0] < value <= chips.RANGES[field][1]
        assert arch.provenance[path].kind == "fitted"
    result = GEMMEvaluator(arch).evaluate(1, 128, 512, 512)
    assert result.source == ("corrected" if name in CORRECTED else "calibrated")
    assert result.low_us <= result.latency_us <= result.high_us
    assert GEMMEvaluator(plain).evaluate(1, 128, 512, 512).source == "analytic"
    assert GEMMEvaluator(arch.with_(num_cores=2)).evaluate(1, 128, 512, 512).source == "analytic"


@pytest.mark.parametrize("name", CORRECTED)
def test_corrections_of_chips_are_better_and_keep_the_choice(name: str) -> None:
    learned, _ = load_learned(learned_path(name, CHIPS, "f16"))
    assert learned.is_on
    assert all(item.corrected_mape_percent < item.physics_mape_percent for item in learned.data)
    arch = load_arch(name, MulticoreSpec)
    corrected, plain = GEMMEvaluator(arch), GEMMEvaluator(arch.with_(notes="changed"))
    problems = [(1, M, K, N) for M in (16, 333, 2048) for K, N in ((1024, 3072), (4096, 512))]
    table, changed = (evaluator.evaluate_many(problems) for evaluator in (corrected, plain))
    assert set(table["source"]) == {"corrected"}
    assert set(changed["source"]) == {"analytic"}
    np.testing.assert_allclose(table["physics_us"], changed["latency_us"], rtol=1e-12)
    assert (np.abs(np.log(table["latency_us"] / table["physics_us"])) <= MAX_LOG_FACTOR + 1e-9).all()
    for row, sizes in enumerate(problems):
        result, other = corrected.evaluate(*sizes), plain.evaluate(*sizes)
        assert (result.mapping, result.latency_us) == (other.mapping, table["latency_us"][row])
        assert (result.low_us, result.high_us) == (table["low_us"][row], table["high_us"][row])
        assert result.low_us < result.latency_us < result.high_us
        assert sum(result.breakdown.values()) == pytest.approx(result.latency_us)
        assert corrected.evaluate_mapping(result.problem, result.mapping).latency_us == result.latency_us
    assert "by what timings of such GEMMs on this chip showed" in result.explain()
    assert corrected.evaluate_grouped((64, 64), 512, 512).source == "calibrated"


def test_a_calibration_of_another_chip_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("multicore", "calibration"):
        (tmp_path / folder).mkdir()
    text = (data_root() / "multicore" / "tpu-v4.yaml").read_text(encoding="utf-8")
    (tmp_path / "multicore" / "mine.yaml").write_text(text.replace("name: tpu-v4", "name: mine"), encoding="utf-8")
    of_tpu = calibration_file("tpu-v4").read_text(encoding="utf-8")
    for module in ("paths", "loader"):
        monkeypatch.setattr(f"gemm_eval.arch.{module}.data_root", lambda: tmp_path)
    monkeypatch.setattr("gemm_eval.arch.multicore.data_root", lambda: tmp_path)
    (tmp_path / "calibration" / "mine").mkdir()
    (tmp_path / "calibration" / "mine" / "multicore.yaml").write_text(of_tpu, encoding="utf-8")
    with pytest.raises(ArchValidationError, match="this is a calibration of tpu-v4"):
        load_arch("mine")


def test_a_fit_leaves_a_measured_number_where_it_was_measured(chip: MulticoreSpec, timed: Path) -> None:
    """Timings of a chip at 0.6 of its bandwidth, of which a stream test said 0.9."""
    sets = read_chip_timings(chip.name, timed).sets
    paths = ("launch_us", "dram_efficiency_frac")
    measured = {"dram_efficiency_frac": {"kind": "measured", "source": "a stream test of this chip"}}
    start = chip.with_(dram_efficiency_frac=0.9)
    assert chips.fit_chip(start, sets, paths)["dram_efficiency_frac"] == pytest.approx(0.6, rel=0.02)
    known = start.with_(provenance=measured)
    assert set(chips.priors_of(known, paths)) == {"dram_efficiency_frac"}
    assert chips.fit_chip(known, sets, paths)["dram_efficiency_frac"] == pytest.approx(0.9, rel=0.1)


@pytest.mark.parametrize(("K", "tile_k"), [(4096, 4096), (8192, 8192), (16384, 8192)])
def test_a_library_keeps_to_the_sram_and_cuts_what_does_not_fit(K: int, tile_k: int) -> None:
    evaluator = GEMMEvaluator("rk3588-npu")
    result = evaluator.evaluate(1, 128, K, 4096)
    assert result.mapping.tile.tile_k == tile_k  # type: ignore[union-attr]
    for one in (result, *evaluator.top(result.problem, 5)):
        assert one.sram_used_bytes is not None
        assert one.sram_used_bytes <= load_arch("rk3588-npu", MulticoreSpec).sram_usable_bytes


def test_a_peak_is_that_of_the_passes_of_a_policy() -> None:
    arch = load_arch("wormhole-n150", MulticoreSpec)
    best, library = (GEMMEvaluator(arch, policy=policy) for policy in ("best", "library"))
    result = library.evaluate(2, 4096, 8192, 8192)
    assert arch.peak_tflop_per_s() < result.tflop_per_s  # in half of the passes
    assert 0.5 < result.utilization_frac < 1.0
    assert library.evaluate_many([result.problem])["utilization_frac"][0] == result.utilization_frac
    assert "0.5 of the passes of policy best; the peak here is that of its passes, 131.1 TFLOP/s" in result.explain()
    assert "passes" not in best.evaluate(2, 4096, 8192, 8192).explain()


def test_the_best_has_what_the_library_does() -> None:
    """The library's mapping of this GEMM keeps sums out of the SRAM, which the chip's own mappings cannot."""
    best, library = (GEMMEvaluator("rk3588-npu", policy=policy) for policy in ("best", "library"))
    chosen = library.evaluate(1, 4016, 2, 17)
    result = best.evaluate(1, 4016, 2, 17)
    assert (result.latency_us, result.mapping) == (chosen.latency_us, chosen.mapping)
    assert best.evaluate_mapping(result.problem, result.mapping).latency_us == result.latency_us
    assert best.evaluate_many([result.problem])["latency_us"][0] == result.latency_us
    assert "none is better" in chosen.explain()


def test_changes_reach_what_a_type_and_a_library_have_of_a_field() -> None:
    arch = load_arch("rk3588-npu", MulticoreSpec)
    changes = dict(spec_changes(arch))
    assert changes["output_buffers 2"] if arch.output_buffers == 1 else "output_buffers 2" not in changes
    written = arch.with_(**changes["dram_write_gb_per_s x2"])
    assert written.for_dtype(DType.INT8).dram_write_gb_per_s == 2 * arch.by_dtype[DType.INT8]["dram_write_gb_per_s"]
    buffered = arch.with_(**changes["input_buffers 2"])
    assert buffered.rules is not None
    assert buffered.rules.changes["input_buffers"] == 2


def test_rules_hold_for_one_many_and_batches_alike() -> None:
    evaluator = GEMMEvaluator("rk3588-npu")
    shapes = [(1, 128, 2048, 512), (3, 7, 300, 65), (1, 1000, 64, 64)]
    table = evaluator.evaluate_many(shapes)
    for row, shape in enumerate(shapes):
        one = GEMMEvaluator("rk3588-npu").evaluate(*shape)
        assert one.latency_us == table["latency_us"][row]
        assert one.mapping.tile.tile_k == shape[2]  # type: ignore[union-attr]
        assert one.mapping.loop_order.name == "MNK"  # type: ignore[union-attr]
    grouped = GEMMEvaluator("rk3588-npu").evaluate_grouped((7, 0, 7), 300, 65)
    assert grouped.latency_us == GEMMEvaluator("rk3588-npu").evaluate(2, 7, 300, 65).latency_us


@pytest.mark.parametrize(("N", "parts"), [(128, (2, 1)), (192, (2, 1)), (256, (1, 2))])
def test_xla_cuts_few_columns_into_whole_passes(N: int, parts: tuple[int, int]) -> None:
    """TPU v4: with up to 256 columns a core has 128, or all that there are; K is whole, and tiles are large."""
    found = GEMMEvaluator("tpu-v4").evaluate(1, 512, 1024, N, dtype="fp16").mapping
    assert parts == (found.partition.P_M, found.partition.P_N)  # type: ignore[union-attr]
    assert found.tile.tile_k == 1024  # type: ignore[union-attr]
    assert found.tile.tile_m == 512 // parts[0]  # type: ignore[union-attr]
    best = GEMMEvaluator("tpu-v4", policy="best").evaluate(1, 512, 1024, N, dtype="fp16").mapping
    assert best.tile.tile_m < found.tile.tile_m  # type: ignore[union-attr]


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="demo-8core has no rules of a library"):
        GEMMEvaluator("demo-8core", policy="library")
    with pytest.raises(UnsupportedError, match="policy is for multi-core chips, and h200-sxm is a GPU"):
        GEMMEvaluator("h200-sxm", policy="best")
    with pytest.raises(InvalidOptionError, match="policy must be one of library, best"):
        GEMMEvaluator("rk3588-npu", policy="mine")


def test_what_a_library_believes_is_not_what_it_costs() -> None:
    arch = load_arch("demo-8core", MulticoreSpec)
    wrong = arch.with_(rules={"title": "a library", "believes": {"dram_gb_per_s": 1e6, "sram_bytes": 1 << 18}})
    best, chosen = (GEMMEvaluator(one).evaluate(1, 512, 4096, 4096) for one in (arch, wrong))
    assert chosen.latency_us > best.latency_us
    assert GEMMEvaluator(arch).evaluate_mapping(chosen.problem, chosen.mapping).latency_us == chosen.latency_us
    for name in ("num_cores", "rules"):
        with pytest.raises(ArchValidationError, match=f"rules.believes: {name} cannot be otherwise"):
            arch.with_(rules={"believes": {name: 2}})
    with pytest.raises(ArchValidationError, match=r"rules.changes: launch_ms is not a field"):
        arch.with_(rules={"changes": {"launch_ms": 2}})


def test_a_floor_of_launches_is_predicted_as_the_evaluator_says() -> None:
    chip = load_arch("wormhole-n150", MulticoreSpec)
    (rows,) = (rows for rows in read_chip_timings(chip.name).sets if rows.name == "tuned, HiFi4, untraced")
    few = rows.select(np.arange(len(rows.frame)) % 3 == 0)
    predicted = chips.predict_set(chip, few)
    with_floor = chip.with_(
        launch_floor_us=few.changes["launch_floor_us"],
        cube_steps_per_cycle={**chip.cube_steps_per_cycle, **few.changes["cube_steps_per_cycle"]},
    )
    evaluator = GEMMEvaluator(with_floor, policy=few.policy, disk_cache=False)
    said = [
        evaluator.evaluate(1, M, K, N, dtype).latency_us
        for dtype, M, K, N in few.frame[["dtype", "M", "K", "N"]].to_numpy()
    ]
    assert predicted.tolist() == said
    assert min(said) == with_floor.launch_floor_us < max(said)
