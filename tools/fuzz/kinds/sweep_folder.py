"""Folders of sweeps, finished and half finished, of which files are damaged, swapped, added and taken away.

What is read of such a folder is right or refused, and the same sweep in it ends with the table of an undamaged one.
"""

import json
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval.errors import GemmEvalError
from gemm_eval.sweep import Random, Space, SweepResult, load_sweep, sweep
from tools.fuzz.kinds import label_of
from tools.fuzz.mutate import ODD_TEXTS, mutate_bytes, mutate_text

_SHAPES = [(1, 64, 96, 128)]
_SPACES = (
    Space("demo-8core", num_cores=[2, 4], launch_us=[0.0, 1.0, 2.0], area_mm2="= num_cores * 2"),
    Space("demo-8core", num_cores=[2, 8], launch_us=[0.0, 1.0, 2.0], area_mm2="= num_cores * 2"),
)
_OTHERS = [None, True, -1, 0, 1, 7, 1 << 62, 1 << 70, 1.5, "", "x", "Grid", "\x1b[31m", [], [1], {}, {"kind": "Range"}]


class _Sweep(NamedTuple):
    files: dict[str, bytes]
    rows: list[dict[str, Any]]


def prepare() -> None:
    """Make the sweeps that are damaged."""
    for at in range(len(_SPACES)):
        _whole(at)


def run_one(rng: random.Random, folder: Path) -> str:
    """Damage a folder, load it, and let the sweep go on in it."""
    whole, other, path = _whole(0), _whole(1), folder / "sweep"
    path.mkdir()
    for name, raw in whole.files.items():
        if name == "_sweep.json" or rng.random() < 0.85:
            (path / name).write_bytes(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_DAMAGES)(rng, path, other)
    return f"load {_loaded(path, whole)}, resume {_resumed(path, whole)}"


def _loaded(path: Path, whole: _Sweep) -> str:
    try:
        result = load_sweep(path)
        rows = _rows(result)
        result.pareto()
        repr(result), result.excluded(), result.bases, result.workloads
        if rows:
            result.explain(rows[0]["point"])
    except GemmEvalError as error:
        return label_of(error, 4000)
    assert all(row in whole.rows for row in rows)
    assert len({row["point"] for row in rows}) == len(rows)
    return "ok"


def _resumed(path: Path, whole: _Sweep) -> str:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = _go(0, path)
    except GemmEvalError as error:
        return type(error).__name__
    assert _rows(result) == whole.rows
    assert _rows(load_sweep(path)) == whole.rows
    assert not [entry for entry in path.glob(".*.tmp") if entry.is_file()]
    return "with warnings" if caught else "ok"


@cache
def _whole(at: int) -> _Sweep:
    with tempfile.TemporaryDirectory() as folder:
        result = _go(at, Path(folder))
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".lock"}
        return _Sweep(files, _rows(result))


def _go(at: int, path: Path) -> SweepResult:
    sampling = Random(6, seed=at) if at == 1 else None
    return sweep(_SPACES[at], _SHAPES, path=path, sampling=sampling, chunk_size=2, progress=False)


def _rows(result: SweepResult) -> list[dict[str, Any]]:
    # as text: nan is itself there
    return [{name: value if name == "point" else repr(value) for name, value in row.items()}
            for row in result.to_arrow().to_pylist()]  # fmt: skip


def _some(rng: random.Random, path: Path) -> Path:
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.is_symlink())
    return rng.choice(files) if files else path / "_sweep.json"


def _mutated(rng: random.Random, path: Path, other: _Sweep) -> None:
    file = _some(rng, path)
    if file.exists() and (raw := file.read_bytes()):
        file.write_bytes(mutate_bytes(rng, raw, others=list(other.files.values())))


def _mutated_text(rng: random.Random, path: Path, other: _Sweep) -> None:
    file = path / "_sweep.json"
    if file.is_file() and not file.is_symlink() and (text := file.read_bytes().decode("utf-8", "replace")):
        file.write_bytes(mutate_text(rng, text, words=("null", "1e999", "NaN", '{"a":')).encode("utf-8", "replace"))


def _mutated_json(rng: random.Random, path: Path, other: _Sweep) -> None:
    file = path / "_sweep.json"
    if file.is_symlink() or not file.is_file():  # made strange before
        return
    try:
        document = json.loads(file.read_bytes())
        inner: Any = document
        while True:
            key = rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
            if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.2:
                break
            inner = inner[key]
        if rng.random() < 0.2:
            del inner[key]
        else:
            inner[key] = rng.choice(_OTHERS)
        file.write_text(json.dumps(document))
    except (OSError, ValueError, IndexError, TypeError):
        return  # damaged before


def _taken(rng: random.Random, path: Path, other: _Sweep) -> None:
    _some(rng, path).unlink(missing_ok=True)


def _swapped(rng: random.Random, path: Path, other: _Sweep) -> None:
    one, two = _some(rng, path), _some(rng, path)
    if one.exists() and two.exists():
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)


def _renamed(rng: random.Random, path: Path, other: _Sweep) -> None:
    file, place = _some(rng, path), path / _name(rng)
    if file.is_file() and not place.is_dir():
        file.replace(place)


def _added(rng: random.Random, path: Path, other: _Sweep) -> None:
    place = path / _name(rng)
    if not os.path.lexists(place):
        place.write_bytes(rng.choice((b"", b"PAR1", *other.files.values(), *_whole(0).files.values())))


def _strange(rng: random.Random, path: Path, other: _Sweep) -> None:
    """Something that is no regular file."""
    place = path / _name(rng)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    kind = rng.randrange(4)
    if kind == 0:
        place.mkdir()
    elif kind == 1:
        os.mkfifo(place)
    elif kind == 2:
        place.symlink_to(rng.choice(("/dev/zero", "nothing", "../elsewhere", "_sweep.json", place.name)))
    else:
        place.touch(mode=0o000)


def _name(rng: random.Random) -> str:
    odd = rng.choice(ODD_TEXTS).replace("\0", "").replace("/", "")
    return rng.choice((
        "points-0000000000.parquet", "points-0000000002.parquet", "points-0000000004.parquet",
        "points-0000000006.parquet", "points-0000000001.parquet", "points-00000000002.parquet", "_sweep.json", ".lock",
        f"points-{rng.randrange(1 << 70)}.parquet", f"points-{odd}.parquet", "notes.md", "_damaged-points.parquet",
        "_damaged-points-0000000002.parquet", f".points-0000000002.parquet.{'0' * 32}.tmp",
    ))  # fmt: skip


_DAMAGES: tuple[Callable[[random.Random, Path, _Sweep], None], ...] = (
    _mutated, _mutated, _mutated_text, _mutated_json, _mutated_json, _taken, _swapped, _renamed, _added, _strange
)  # fmt: skip
