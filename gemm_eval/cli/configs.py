"""The commands on files of best configs of our W4A16 kernels: `configs build`, `configs list` and `configs merge`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gemm_eval.cli.options import JsonOption, argument, command, complete_gpus, give, group, option

if TYPE_CHECKING:
    from gemm_eval.kernels.config_cache import ConfigCache
    from gemm_eval.kernels.config_records import ConfigRecord


app = group("Build, list and merge files of the best config of our W4A16 kernels for each GEMM.")

_Out = Annotated[Path, option("File to write; an existing file is replaced.", "--out", "-o")]


@command(app)
def build(
    out: _Out,
    timings: Annotated[list[Path] | None, argument(
        "Data sets of `gemm-eval measure --kernel w4a16`. Default: the package's.", "[TIMINGS...]"
    )] = None,
    arch: Annotated[
        str, option("Preset of the GPU that was measured.", metavar="NAME", complete=complete_gpus)
    ] = "h200-sxm",
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Write the fastest config of each GEMM that was timed.

    Examples:

    gemm-eval configs build timings --arch h200-sxm --out best.json
    """
    from gemm_eval.arch import read_yaml
    from gemm_eval.errors import ArchError, InvalidInputError
    from gemm_eval.kernels.config_cache import ConfigCache, build_from_timings
    from gemm_eval.measure import meta_path, read_timings

    cache = ConfigCache()
    for path in timings or _shipped_timings(arch):
        try:
            meta = read_yaml(meta_path(path))
        except ArchError as error:
            raise InvalidInputError(f"timings need their meta file: {error}") from None
        cache = cache.merge(build_from_timings(read_timings(path), meta, arch))
    _write(cache, out, as_json=json)


@command(app, "list", needs_words=False)
def list_(
    file: Annotated[Path | None, argument("Default: your file, and those of the library.", "[FILE]")] = None,
    json: JsonOption = False,
) -> None:
    """List the records of a file, one a line: GEMM, config, time, how and when found, and whether it still holds.

    Weights: mode and group size. Found by: whether all legal configs were timed or some, and how many.

    Examples:

    gemm-eval configs list
    """
    from gemm_eval.kernels.config_cache import ConfigCache

    paths = _own_files() if file is None else [_existing(file)]
    files = [(path, ConfigCache.load(path, is_read_only=True)) for path in paths]
    give(json, lambda: {"files": [_document(*item) for item in files]}, lambda: _print_tables(files))


@command(app)
def merge(
    files: Annotated[list[Path], argument("Files to merge.", "FILE...")], out: _Out, json: JsonOption = False
) -> None:
    """Write the records of several files into one: of the same GEMM, GPU and kernel the fastest that was measured.

    Examples:

    gemm-eval configs merge mine.json yours.json --out both.json
    """
    from gemm_eval.kernels.config_cache import ConfigCache

    cache = ConfigCache()
    for file in files:
        cache = cache.merge(ConfigCache.load(_existing(file), is_read_only=True))
    _write(cache, out, as_json=json)


def _shipped_timings(arch: str) -> list[Path]:
    from gemm_eval.arch import data_root
    from gemm_eval.errors import InvalidInputError

    folder = data_root() / "measured" / arch / "w4a16"
    tables = [path for path in sorted(folder.glob("*.parquet")) if not path.stem.endswith("-cublas")]
    if not tables:
        raise InvalidInputError(f"the package has no timings of our kernels on {arch}: give a file")
    return tables


def _existing(file: Path) -> Path:
    from gemm_eval.errors import InvalidInputError

    if not file.is_file():
        raise InvalidInputError(f"there is no file {file}")
    return file


def _own_files() -> list[Path]:
    from gemm_eval.arch import data_root
    from gemm_eval.kernels.config_cache import shipped_path, user_path

    gpus = sorted(path.name for path in (data_root() / "measured").iterdir() if path.is_dir())
    paths = (user_path(), *map(shipped_path, gpus))
    return [path for path in paths if path is not None and path.is_file()]


def _void(record: ConfigRecord) -> str | None:
    """Return why a record no longer holds; None: it does."""
    from gemm_eval.errors import GemmEvalError
    from gemm_eval.kernels.config_cache import limits_of_preset
    from gemm_eval.kernels.config_records import why_void

    try:
        return why_void(record, limits_of_preset(record.key.gpu))
    except GemmEvalError as error:
        return str(error)


def _document(path: Path, cache: ConfigCache) -> dict[str, Any]:
    return {"path": str(path), "records": [record.to_json() | {"void": _void(record)} for record in cache.records]}


def _write(cache: ConfigCache, out: Path, *, as_json: bool) -> None:
    from gemm_eval.cli.output import print_line

    cache.save(out)
    counts = Counter(record.found_by for record in cache.records)
    ways = ", ".join(f"{count} by {way}" for way, count in sorted(counts.items()))
    give(
        as_json,
        lambda: {"path": str(out), "num_records": len(cache), "num_bytes": out.stat().st_size, "found_by": counts},
        lambda: print_line(f"{out}: {len(cache)} records" + (f" ({ways})" if ways else "")),
    )


def _print_tables(files: Sequence[tuple[Path, ConfigCache]]) -> None:
    from gemm_eval.cli.output import make_console, print_wide, rows_table

    console = make_console()
    if not files:
        console.print("no files of configs: you have none, and the package has none")
    for path, cache in files:
        console.print(f"{path}: {len(cache)} records", soft_wrap=True)
        print_wide(rows_table(list(map(_cells, cache.records)), _HEADERS))


_HEADERS = ("GPU", "M", "K", "N", "A", "weights", "L2", "us", "found by", "date", "config")


def _cells(record: ConfigRecord) -> dict[str, str]:
    from gemm_eval.cli.output import format_number
    from gemm_eval.cli.values import format_mapping

    key, void, mode = record.key, _void(record), record.key.mode.name.lower()
    way = f"{record.found_by.removesuffix('_k')} {record.num_timed}"  # of the k of "top_k"
    return {
        "GPU": key.gpu, "M": str(key.M), "K": str(key.K), "N": str(key.N), "A": str(key.activation),
        "weights": f"{mode} {key.group_size}" if key.group_size else mode, "L2": key.l2,
        "us": format_number(record.latency_us), "found by": way, "date": record.date,
        "config": format_mapping(record.config) if void is None else f"void: {void}",
    }  # fmt: skip
