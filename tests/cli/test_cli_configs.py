"""The commands `gemm-eval configs`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from gemm_eval.arch.paths import data_root
from gemm_eval.cli import configs as _configs
from gemm_eval.cli.app import _Application
from gemm_eval.kernels import config_cache
from gemm_eval.kernels.config_cache import ConfigCache, ConfigRecord

TIMINGS = data_root() / "measured" / "h200-sxm" / "w4a16" / "fp16.parquet"
app = typer.Typer(cls=_Application)
app.add_typer(_configs.app, name="configs")


def run(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["configs", *map(str, words)], env={"COLUMNS": "240", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


@pytest.fixture(scope="module")
def timings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of three GEMMs of ours: building all takes seconds."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pd.read_parquet(TIMINGS)
    few = table[(table.M == 16) & (table.K == 4096) & (table.N == 4096)]
    path = tmp_path_factory.mktemp("timings") / "fp16.parquet"
    few.to_parquet(path)
    meta = yaml.safe_load(TIMINGS.with_suffix("").with_suffix(".meta.yaml").read_text("utf-8"))
    meta.pop("sha256", None)
    path.with_name("fp16.meta.yaml").write_text(yaml.safe_dump(meta | {"num_rows": len(few)}))
    return path


@pytest.fixture(scope="module")
def built(timings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "configs.json"
    assert "configs.json: " in run("build", timings, "--out", out)
    return out


def test_built_records_are_the_fastest_that_were_timed(timings: Path, built: Path) -> None:
    pd = pytest.importorskip("pandas")
    best = pd.read_parquet(timings).groupby(["mode", "group_size"]).latency_us.min()
    found = ConfigCache.load(built, is_read_only=True).records

    assert len(found) == len(best)
    for record in found:
        measured = best[record.key.mode.name.lower(), record.key.group_size or -1]
        assert record.latency_us >= round(measured, 3)  # a kernel that is gone since may have been faster
        assert (record.driver, record.compiler) == ("580.159.04", "13.0 13.0.88")
        assert record.date == "2026-11-23"


def test_a_file_is_listed(built: Path) -> None:
    text = run("list", built)
    found = ConfigCache.load(built).records

    assert f"{built}: {len(found)} records" in text
    assert "h200-sxm" in text
    assert "group 128" in text
    assert "void" not in text
    assert f"top {found[0].num_timed}" in text or f"all {found[0].num_timed}" in text


def test_what_no_longer_holds_says_why(built: Path, tmp_path: Path) -> None:
    first, *rest = ConfigCache.load(built).records
    path = tmp_path / "c.json"
    ConfigCache([replace(first, kernel_hash="0" * 16), *rest]).save(path)
    document = json.loads(run("list", path, "--json"))
    (listed,) = document["files"]
    voids = [record["void"] for record in listed["records"]]

    assert "void: its kernel has changed" in run("list", path)
    assert listed["path"] == str(path)
    assert sorted(void is None for void in voids) == [False] + [True] * len(rest)
    bare = {key: value for key, value in listed["records"][0].items() if key != "void"}
    assert ConfigRecord.from_json(bare).key == first.key


def test_without_a_file_the_users_and_the_shipped_are_listed(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(config_cache, "shipped_path", lambda gpu: tmp_path / "shipped" / f"{gpu}.json")
    assert "no files of configs" in run("list")
    cache = ConfigCache.load(built)
    cache.save(tmp_path / "w4a16-configs.json")
    cache.save(tmp_path / "shipped" / "h200-sxm.json")
    paths = [Path(file["path"]) for file in json.loads(run("list", "--json"))["files"]]

    assert paths == [tmp_path / "w4a16-configs.json", tmp_path / "shipped" / "h200-sxm.json"]


def test_files_are_merged(built: Path, tmp_path: Path) -> None:
    first, *rest = ConfigCache.load(built).records
    faster = replace(first, latency_us=0.5)
    other, out = tmp_path / "other.json", tmp_path / "out.json"
    ConfigCache([faster]).save(other)
    said: Any = json.loads(run("merge", built, other, "--out", out, "--json"))

    assert said["num_records"] == len(rest) + 1
    assert said["num_bytes"] == out.stat().st_size
    assert faster in ConfigCache.load(out).records
    assert sum(said["found_by"].values()) == len(rest) + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("list", "none.json"), "there is no file none.json"),
        (("merge", "none.json", "-o", "x"), "there is no file none.json"),
        (("build", "none.parquet", "-o", "x"), "timings need their meta file"),
        (("build", "--arch", "l4", "-o", "x"), "no timings of our kernels come for l4"),
    ],
)
def test_what_is_not_there_is_an_error_of_one_line(words: tuple[str, ...], message: str) -> None:
    error = run(*words, code=2)

    assert message in error
    assert len(error.splitlines()) == 1


def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("{")

    assert "is damaged" in run("list", path, code=2)
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]
