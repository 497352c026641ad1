"""Records of the best config of a GEMM: the digest of a kernel, laws of merging, and which of them hold."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.device import nvrtc
from gemm_eval.errors import InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.kernels import Sizes, WeightMode, registry
from gemm_eval.kernels import config_records as file
from gemm_eval.kernels.config_cache import ConfigCache, ConfigVersionWarning, Versions
from gemm_eval.kernels.config_records import FOUND_BY, ConfigKey, ConfigRecord, _hash_of, kernel_hash_of
from gemm_eval.kernels.families import family_of
from gemm_eval.kernels.registry import make_variant
from gemm_eval.mapping import Decomposition
from tests.kernels.config_records import CONFIGS, GPU, HERE, KEY, LIMITS, OTHER_KERNEL, SIZES, SPLIT, hash_of, record

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


def test_what_is_put_replaces_what_was_there() -> None:
    cache = ConfigCache([record(5.0)])
    cache.put(record(6.0))
    assert cache.records == [record(6.0)]


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
