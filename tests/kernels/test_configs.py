"""Caches of configs: records, laws of merging, files and their damage, those of an installation, and timings."""

import json
import logging
import multiprocessing
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.arch import load_arch
from gemm_eval.device import runtime as nvrtc
from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.kernels import Sizes, WeightMode, config_cache, limits_of_spec, registry
from gemm_eval.kernels import config_records as file
from gemm_eval.kernels.config_cache import (
    ConfigCache,
    ConfigVersionWarning,
    Versions,
    build_from_timings,
    change_file,
    lookup,
    remember,
)
from gemm_eval.kernels.config_records import FOUND_BY, ConfigKey, ConfigRecord, _hash_of, kernel_hash_of, why_void
from gemm_eval.kernels.families import family_of
from gemm_eval.kernels.registry import legal_configs, make_variant
from gemm_eval.mapping import Decomposition, KernelConfig

# ---- builders --------------------------------------------------------------------------------------------------------


GPU = "h200-sxm"
LIMITS = limits_of_spec(load_arch(GPU))  # type: ignore[arg-type]
SIZES = Sizes(16, 1024, 512)
KEY = ConfigKey.of(GPU, SIZES)
CONFIGS = list(legal_configs(SIZES, LIMITS))
OTHER_KERNEL = next(c for c in CONFIGS if c.family != CONFIGS[0].family)
SPLIT = next(c for c in CONFIGS if c.decomposition is Decomposition.SPLIT_K)
HERE = Versions("580.159.04", "13.0 13.0.88")


def hash_of(config: KernelConfig, key: ConfigKey = KEY) -> str:
    return kernel_hash_of(key.variant_of(config), LIMITS)


def record(latency_us: float = 5.0, config: KernelConfig = CONFIGS[0], key: ConfigKey = KEY, **more: Any) -> Any:
    fields = {
        "found_by": "top_k", "num_timed": 8, "driver": HERE.driver, "compiler": HERE.compiler,
        "kernel_hash": hash_of(config), "date": "2026-11-21",
    }  # fmt: skip
    return ConfigRecord(key, config, latency_us, **(fields | more))


@pytest.fixture
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_noted", "_warned"):
        monkeypatch.setattr(config_cache, name, set())
    _hash_of.cache_clear()
    monkeypatch.setattr(config_cache, "_loaded", {})
    yield
    why_void.cache_clear()
    _hash_of.cache_clear()


pytestmark = pytest.mark.usefixtures("nothing_said_yet")


# ---- the digest of a kernel ----------------------------------------------------------------------------------------


def test_the_hash_covers_all_that_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches the compiler is text, options and entry: a hash that misses one would keep stale records alive."""
    variant = make_variant(CONFIGS[0], "fp16", "group", 128)
    seen: list[Any] = []
    monkeypatch.setattr(nvrtc, "_memo", {})
    monkeypatch.setattr(nvrtc, "cache_dir", lambda: None)
    monkeypatch.setattr(nvrtc, "compiler_version", lambda: "none")
    monkeypatch.setattr(nvrtc, "_compile", lambda *given: seen.append(given))
    monkeypatch.setattr(json, "dumps", lambda value, **_: seen.append(value) or repr(value))
    family = family_of(variant.config)
    registry.compile_kernel(family, variant, "sm_90a")
    kernel_hash_of(variant, "sm_90a")
    (key, (text, entry, target, options), hashed) = seen

    assert key[2:] == [entry, options, text]
    _, hashed_entry, hashed_options, hashed_target, macros, hashed_text = hashed
    assert (hashed_entry, hashed_target, hashed_text) == (entry, target, text)
    assert (*hashed_options, f"-arch={target}", *(f"-D{name}={value}" for name, value in macros)) == options


def test_the_hash_follows_source_macros_and_target_but_not_the_cut_of_k(monkeypatch: pytest.MonkeyPatch) -> None:
    first = hash_of(CONFIGS[0])
    variant = make_variant(CONFIGS[0], "fp16", "group", 128)
    assert len(first) == 16
    assert kernel_hash_of(variant, registry.target_of(family_of(variant.config), (9, 0))) == first
    assert kernel_hash_of(variant, "sm_80") != kernel_hash_of(variant, "sm_90")
    assert hash_of(SPLIT) == hash_of(SPLIT._replace(decomposition=Decomposition.DATA_PARALLEL, split_k=1))
    others = {hash_of(OTHER_KERNEL), kernel_hash_of(variant._replace(group_size=32), LIMITS)}
    assert first not in others
    assert len(others) == 2

    text_of = registry.text_of
    monkeypatch.setattr(registry, "text_of", lambda *given: text_of(*given) + "\n// changed")
    _hash_of.cache_clear()
    assert hash_of(CONFIGS[0]) != first


def test_a_gpu_without_such_kernels_has_no_hash() -> None:
    config = next(c for c in CONFIGS if c.family == "w4a16_sm90")
    with pytest.raises(UnsupportedError, match=r"no kernels for GPUs of compute capability 8\.0"):
        kernel_hash_of(make_variant(config, "fp16", "group", 128), LIMITS._replace(compute_capability=(8, 0)))


# ---- records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"latency_us": 0.0}, "latency_us must be a finite float > 0, got 0.0"),
        ({"latency_us": float("nan")}, "latency_us"),
        ({"found_by": "luck"}, "found_by must be one of all, top_k, got 'luck'"),
        ({"num_timed": 0}, "num_timed must be an integer >= 1, got 0"),
        ({"kernel_hash": "xyz"}, "16 hex digits"), ({"date": "yesterday"}, "2026-11-21, got 'yesterday'"),
        ({"driver": None}, "driver must be a text"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        replace(record(), **fields)


@pytest.mark.parametrize("bad", [("../x", SIZES), (GPU, Sizes(0, 8, 8)), (GPU, SIZES, "fp16", "group", None, "hot")])
def test_a_key_that_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInputError):
        ConfigKey.of(*bad)


def test_fields_of_json_are_checked_one_by_one() -> None:
    good = record().to_json()
    assert ConfigRecord.from_json(json.loads(record().to_line())) == record()
    assert ConfigRecord.from_json(good | {"latency_us": 5}) == record()
    column = record(key=ConfigKey.of(GPU, SIZES, "bf16", "column"))
    assert ConfigRecord.from_json(column.to_json()) == column
    config = good["config"]
    for bad in (
        good | {"more": 1}, good | {"M": "16"}, good | {"M": True}, good | {"mode": "GROUP"}, good | {"config": None},
        good | {"group_size": 0}, good | {"group_size": None}, good | {"latency_us": True}, good | {"gpu": 5},
        good | {"config": config | {"schedule": "SIDEWAYS"}}, good | {"config": config | {"cta_m": 1.0}},
        good | {"config": config | {"more": 1}}, {k: v for k, v in good.items() if k != "driver"}, [1], None,
        good | {"activation": ["fp16"]}, good | {"l2": {}}, good | {"found_by": []},
    ):  # fmt: skip
        with pytest.raises(InvalidInputError):
            ConfigRecord.from_json(bad)


# ---- laws of merging -----------------------------------------------------------------------------------------------

KEYS = [KEY, KEY._replace(M=1), KEY._replace(gpu="h100-sxm"), KEY._replace(l2="warm"), KEY._replace(mode=WeightMode(2))]


@st.composite
def records_st(draw: st.DrawFn) -> ConfigRecord:
    return record(
        draw(st.sampled_from([1.0, 2.0, 3.5])), draw(st.sampled_from([CONFIGS[0], SPLIT])), draw(st.sampled_from(KEYS)),
        found_by=draw(st.sampled_from(FOUND_BY)), num_timed=draw(st.integers(1, 2)),
        driver=draw(st.sampled_from(["580.1", "590.2"])), kernel_hash=draw(st.sampled_from(["0" * 16, "f" * 16])),
        date=draw(st.sampled_from(["2026-01-01", "2026-12-31"])),
    )  # fmt: skip


caches = st.lists(records_st(), max_size=8).map(ConfigCache)


@given(caches, caches, caches)
def test_merging_is_idempotent_commutative_and_associative(a: ConfigCache, b: ConfigCache, c: ConfigCache) -> None:
    assert a.merge(a) == a
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(ConfigCache()) == a


@given(caches, caches)
def test_what_is_merged_is_the_best_of_each_and_survives_the_file(a: ConfigCache, b: ConfigCache) -> None:
    merged = a.merge(b)
    for one in (*a.records, *b.records):
        (kept,) = [r for r in merged.records if (r.key, r.kernel_hash) == (one.key, one.kernel_hash)]
        assert kept.latency_us <= one.latency_us
    text = file.to_text(merged.records)
    assert [ConfigRecord.from_json(fields) for fields in json.loads(text)["records"]] == merged.records
    assert file.to_text(ConfigCache(reversed(merged.records)).records) == text


def test_faster_wins_then_later() -> None:
    slow, fast = record(6.0), record(5.0)
    later = record(5.0, date="2026-11-22")

    assert ConfigCache([slow]).merge(ConfigCache([fast])).records == [fast]
    assert ConfigCache([later]).merge(ConfigCache([fast])).records == [later]


# ---- what holds ----------------------------------------------------------------------------------------------------


def test_the_fastest_that_holds_is_found() -> None:
    slow, fast = record(6.0), record(5.0, OTHER_KERNEL)
    cache = ConfigCache([slow, fast])

    assert cache.find(KEY, LIMITS) == cache.find(KEY) == fast
    assert cache.find(KEY._replace(M=17)) is None
    cache.put(record(4.0))
    assert cache.find(KEY, LIMITS) == record(4.0)


@pytest.mark.parametrize("kind", ["hash", "config", "family", "split", "gpu"])
def test_what_does_not_hold_is_ignored_and_noted_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    known = record()
    stale, why = {
        "hash": (replace(known, kernel_hash="0" * 16), "its kernel has changed since"),
        "config": (replace(known, config=CONFIGS[0]._replace(cta_m=7)), "has no such kernel"),
        "family": (replace(known, config=CONFIGS[0]._replace(family="w3a16")), "config.family must be one of"),
        "split": (replace(known, config=SPLIT._replace(split_k=1000)), "has less than 1000 blocks"),
        "gpu": (replace(known, key=KEY._replace(gpu="h100-sxm")), "it is of h100-sxm, not h200-sxm"),
    }[kind]
    cache = ConfigCache([stale])
    with caplog.at_level(logging.INFO, "gemm_eval"):
        assert cache.find(KEY, LIMITS) is None
        assert cache.find(KEY, LIMITS) is None
        ConfigCache([stale]).find(KEY, LIMITS)

    (note,) = (entry.getMessage() for entry in caplog.records)
    assert why in note
    assert "M=16 K=1024 N=512 fp16 group 128 cold" in note
    assert caplog.records[0].levelno == logging.INFO
    assert ConfigCache([stale, record(9.0, OTHER_KERNEL)]).find(KEY, LIMITS) == record(9.0, OTHER_KERNEL)


def test_other_versions_are_used_with_one_warning() -> None:
    cache = ConfigCache([record()], Path("some.json"))
    now = Versions("590.1", HERE.compiler)
    with pytest.warns(ConfigVersionWarning, match=r"some\.json: found with driver 580\.159\.04 .* driver 590\.1"):
        assert cache.find(KEY, LIMITS, now) == record()
    assert cache.find(KEY, LIMITS, now) == record()  # warnings are errors here
    assert cache.find(KEY, LIMITS, HERE) == record()
    with pytest.warns(ConfigVersionWarning):
        cache.find(KEY, LIMITS, Versions("590.1", "14.0"))


def test_present_versions_go_before_speed() -> None:
    old, new = record(4.0, driver="570.1"), record(5.0, OTHER_KERNEL)

    assert ConfigCache([old, new]).find(KEY, LIMITS, HERE) == new
    assert ConfigCache([old, new]).find(KEY, LIMITS) == old


# ---- files -----------------------------------------------------------------------------------------------------------


def update(path: Path, records: Any = ()) -> None:
    change_file(path, lambda cache: cache.merge(ConfigCache(records)))


# ---- the file ------------------------------------------------------------------------------------------------------


def test_a_file_reads_well_and_repeats_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "new" / "configs.json"
    cache = ConfigCache([record(5.0), record(2.0, key=KEY._replace(M=1))])
    cache.save(path)
    first = path.read_bytes()
    ConfigCache.load(path).save(path)

    assert path.read_bytes() == first
    assert ConfigCache.load(path) == cache
    lines = first.decode().splitlines()
    assert [json.loads(line.rstrip(","))["M"] for line in lines[4:6]] == [1, 16]
    document = json.loads(first)
    assert (document["format"], document["version"]) == ("gemm-eval w4a16 configs", 1)
    assert document["records"][0]["config"]["schedule"] == CONFIGS[0].schedule.name.lower()
    assert os.listdir(path.parent) == ["configs.json"]  # noqa: PTH208


def test_records_that_stand_twice_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    a, b, c = (x.to_line() for x in (record(6.0), record(5.0), record(4.0, key=KEY._replace(M=1))))
    path.write_text(
        f'{{"format": "gemm-eval w4a16 configs", "version": 1, "records": [{a}, {b}, {c}, {a}]}}', "utf-8-sig"
    )

    assert ConfigCache.load(path).records == [record(4.0, key=KEY._replace(M=1)), record(5.0)]


GOOD = file.to_text([record()])


@pytest.mark.parametrize(
    ("text", "num_left"),
    [
        (b"", 0), (GOOD.encode()[:-40], 0), (b"\xff\xfe\x00", 0), (b"[" * 100_000, 0), (b"[1, 2]", 0),
        (b'{"format": "other", "version": 1, "records": []}', 0),
        (GOOD.replace('"version": 1', '"version": 0').encode(), 1),
        (GOOD.replace('"version": 1', '"version": true').encode(), 0),
        (GOOD.replace('"records": [', '"records": [{"gpu": 1},').encode(), 1),
        (GOOD.replace('"latency_us": 5.0', '"latency_us": NaN').encode(), 0),
        (GOOD.replace('"records"', '"lines"').encode(), 0),
    ],
)  # fmt: skip
def test_a_damaged_file_is_set_aside_and_begun_anew(tmp_path: Path, text: bytes, num_left: int) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(text)
    with pytest.raises(GemmEvalError, match="is damaged"):
        ConfigCache.load(path, is_read_only=True)
    assert path.read_bytes() == text
    with pytest.warns(RuntimeWarning, match=r"set aside as c\.json\.damaged-1, .* with \d records"):
        assert len(ConfigCache.load(path)) == num_left

    assert (tmp_path / "c.json.damaged-1").read_bytes() == text
    assert len(ConfigCache.load(path)) == num_left  # no warning any more
    path.write_bytes(text)
    with pytest.warns(RuntimeWarning, match="damaged-2"):
        update(path, [record(3.0)])
    assert ConfigCache.load(path).records == [record(3.0)]


def test_three_damaged_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    for number in range(5):
        path.write_text(f"{number}")
        with pytest.warns(RuntimeWarning):
            ConfigCache.load(path)

    assert sorted(x.name for x in tmp_path.glob("*.damaged-*")) == [f"c.json.damaged-{n}" for n in (3, 4, 5)]
    assert (tmp_path / "c.json.damaged-5").read_text() == "4"


def test_a_newer_file_is_an_error_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(newer := GOOD.replace('"version": 1', '"version": 2'))
    for use in (ConfigCache.load, update):
        with pytest.raises(GemmEvalError, match="has version 2, and this gemm_eval reads 1 at most: update"):
            use(path)

    assert path.read_text() == newer


def test_what_cannot_be_read_or_written_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(GemmEvalError, match="cannot read"):
        ConfigCache.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(GemmEvalError, match="cannot write"):
        ConfigCache().save(tmp_path / "file" / "c.json")
    with pytest.raises(GemmEvalError, match="cannot write"):
        update(tmp_path / "file" / "c.json")


def test_numbers_beyond_floats_and_endless_records_are_damage(tmp_path: Path) -> None:
    line = record().to_line()
    head = '{"format": "gemm-eval w4a16 configs", "version": 1, "records": ['
    for number, (text, message) in enumerate((
        (line.replace('"latency_us": 5.0', f'"latency_us": {10**400}'), "latency_us must be a finite float"),
        (line.replace('"M": ', '"M": 1' + "0" * 400), "integers in 1"),
        (line.replace('"cold"', f'"{"x" * 100_000}"'), "l2 must be one of cold, warm"),
        ("0," * 200_000 + "0", "200,001 records, more than 100,000"),
    )):  # fmt: skip
        path = tmp_path / f"{number}.json"
        path.write_text(f"{head}{text}]}}")
        with pytest.raises(GemmEvalError, match=message) as caught:
            ConfigCache.load(path, is_read_only=True)
        assert len(str(caught.value)) < 1000


def test_a_file_that_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_MAX_FILE_BYTES", 100)
    with pytest.raises(GemmEvalError, match="keep fewer GEMMs in one file"):
        ConfigCache([record()]).save(tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_others_hold_is_waited_for_and_then_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with (
        file.lock(path),
        pytest.raises(GemmEvalError, match=r"hold .*c\.json\.lock for more than 0\.02 s"),
        file.lock(path, timeout_s=0.02),
    ):
        pass
    with file.lock(path, timeout_s=0.02):
        pass


NUM_PROCESSES, NUM_UPDATES = 3, 8


def _write_many(path: Path, worker: int) -> None:
    os.environ["GEMM_EVAL_CACHE_DIR"] = str(path.parent)
    for step in range(NUM_UPDATES):
        own = record(key=KEY._replace(M=1 + worker * NUM_UPDATES + step))
        if worker == 0:
            remember(own)
        else:
            update(path, [own, record(9.0 - worker - step / 100, key=KEY._replace(M=5000))])


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "w4a16-configs.json"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write_many, args=(path, i)) for i in range(NUM_PROCESSES)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        ConfigCache.load(path, is_read_only=True)  # whole at every moment
    for worker in workers:
        worker.join()

    assert [worker.exitcode for worker in workers] == [0] * NUM_PROCESSES
    found = ConfigCache.load(path).records
    assert {r.key.M for r in found} == {*range(1, 1 + NUM_PROCESSES * NUM_UPDATES), 5000}
    assert found[-1].latency_us == 9.0 - (NUM_PROCESSES - 1) - (NUM_UPDATES - 1) / 100
    assert {p.name for p in tmp_path.iterdir()} == {path.name, f"{path.name}.lock"}


# ---- the files of an installation ----------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's file and the shipped one, in a folder of their own."""
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path / "user"))
    monkeypatch.setattr(config_cache, "data_root", lambda: tmp_path / "data")
    user = config_cache.user_path()
    assert user is not None
    return user, config_cache.shipped_path(GPU)


def test_the_users_file_goes_first_and_is_read_again_when_it_changes(places: tuple[Path, Path]) -> None:
    user, shipped = places
    assert lookup(KEY, LIMITS) is None
    ConfigCache([record(4.0)]).save(shipped)
    assert lookup(KEY, LIMITS) == record(4.0)
    remember(record(6.0))
    assert lookup(KEY, LIMITS) == record(6.0)
    remember(record(7.0))
    assert lookup(KEY, LIMITS) == record(7.0)
    user.unlink()
    assert lookup(KEY, LIMITS) == record(4.0)
    shipped.unlink()
    assert lookup(KEY, LIMITS) is None


def test_files_are_read_once(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ConfigCache([record()]).save(places[0])
    assert lookup(KEY, LIMITS) == record()
    monkeypatch.setattr(ConfigCache, "load", lambda *_, **__: pytest.fail("read again"))

    assert lookup(KEY, LIMITS) == record()
    assert lookup(KEY._replace(M=3), LIMITS) is None


def test_files_that_cannot_be_used_fail_no_gemm(places: tuple[Path, Path]) -> None:
    user, shipped = places
    user.parent.mkdir(parents=True)
    user.write_text(GOOD.replace('"version": 1', '"version": 2'))
    ConfigCache([record(4.0)]).save(shipped)
    with pytest.warns(RuntimeWarning, match="configs are not used: .* has version 2"):
        assert lookup(KEY, LIMITS) == record(4.0)
    assert lookup(KEY, LIMITS) == record(4.0)  # said once
    with pytest.warns(RuntimeWarning, match="a config was not kept"):
        remember(record(3.0))
    user.unlink()
    shipped.write_text("damaged")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert lookup(KEY, LIMITS) is None

    assert shipped.read_text() == "damaged"
    assert [p.name for p in shipped.parent.iterdir()] == ["configs.json"]


def test_without_caching_nothing_is_kept(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")
    remember(record())

    assert config_cache.user_path() is None
    assert lookup(KEY, LIMITS) is None
    assert not places[0].exists()


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U16)\n",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug 19 2023\nGCC version: gcc 12.2.0",
    ],
)
def test_the_driver_says_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(config_cache, "_DRIVER_FILE", tmp_path / "version")
    config_cache.driver_version.cache_clear()
    try:
        assert config_cache.driver_version() in {"580.159.04", "535.104"}
        config_cache.driver_version.cache_clear()
        monkeypatch.setattr(config_cache, "_DRIVER_FILE", tmp_path / "none")
        monkeypatch.setattr(config_cache, "_SMI", (str(tmp_path / "no-such-command"),))
        assert config_cache.driver_version() is None
    finally:
        config_cache.driver_version.cache_clear()


def test_a_new_record_is_of_this_machine_and_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_cache, "driver_version", lambda: None)
    monkeypatch.setattr(config_cache, "compiler_version", lambda: "13.0")
    made = config_cache.new_record(KEY, CONFIGS[0], 5, "top_k", 3, LIMITS)

    assert (made.driver, made.compiler, made.kernel_hash) == ("unknown", "13.0", hash_of(CONFIGS[0]))
    assert config_cache.present_versions() == Versions(None, "13.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ConfigCache([made]).find(KEY, LIMITS, config_cache.present_versions()) == made


# ---- from timings --------------------------------------------------------------------------------------------------

META = {
    "gpu": {"driver_version": "580.159.04"}, "runner": {"compiler": "13.0 13.0.88"},
    "gpu_states": [{"time": "2026-11-20T23:00:00+00:00"}, {"time": "2026-11-21T01:00:00+00:00"}],
}  # fmt: skip


def rows_of(times: dict[KernelConfig, float], **more: Any) -> list[dict[str, Any]]:
    gemm = {"M": 16, "K": 1024, "N": 512, "input_dtype": "fp16", "mode": "group", "group_size": 128, "l2": "cold"}
    names = ("schedule", "decomposition", "raster_order")
    return [
        gemm | config._asdict() | {name: getattr(config, name).name.lower() for name in names}
        | {"latency_us": latency_us} | more
        for config, latency_us in times.items()
    ]  # fmt: skip


def test_the_fastest_of_each_gemm_is_taken() -> None:
    pd = pytest.importorskip("pandas")
    gone = CONFIGS[0]._replace(cta_m=7)
    some = rows_of({CONFIGS[0]: 5.00049, CONFIGS[1]: 6.0, gone: 1.0})
    every = rows_of({config: 9.0 + i for i, config in enumerate(CONFIGS)}, l2="warm")
    column = rows_of({CONFIGS[0]: 3.0, CONFIGS[1]: float("nan")}, mode="column", group_size=-1)
    nothing_left = rows_of({gone: 1.0}, M=8)
    cache = build_from_timings(pd.DataFrame([*some, *every, *column, *nothing_left]), META, GPU)
    by_way = {(r.key.l2, r.key.mode): r for r in cache.records}

    assert len(cache) == 3
    best = by_way["cold", WeightMode.GROUP]
    assert best == record(5.0, num_timed=2)
    full = by_way["warm", WeightMode.GROUP]
    assert (full.found_by, full.num_timed, full.config) == ("all", len(CONFIGS), CONFIGS[0])
    per_column = by_way["cold", WeightMode.COLUMN]
    assert (per_column.key.group_size, per_column.num_timed) == (0, 1)
    for one in cache.records:
        assert cache.find(one.key, LIMITS, HERE) == one


def test_timings_without_what_is_needed_are_refused() -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(rows_of({CONFIGS[0]: 5.0}))
    with pytest.raises(InvalidInputError, match="must have the columns latency_us"):
        build_from_timings(table.drop(columns="latency_us"), META, GPU)
    with pytest.raises(InvalidInputError, match=r"gpu\.driver_version"):
        build_from_timings(table, {}, GPU)
