"""The file of costs on disk: damaged as a file, as a database, and by entries that lie under a right checksum."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from gemm_eval import GEMMEvaluator
from gemm_eval.errors import StorageError
from gemm_eval.evaluate import disk as _disk
from gemm_eval.evaluate.costs import FoundCosts
from tools.fuzz.mutate import ODD_NUMBERS, mutate_bytes, mutate_text

SIZES = [(1, 16, 256, 512), (1, 1, 4096, 4096), (2, 33, 130, 70), (1, 512, 512, 512), (1, 7, 264, 96)]
# archs, settings and types of the template; a case asks one of them
ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("demo-8core", {}, "fp16"),
    ("demo-8core", {"allow_idle_cores": False}, "w4a16"),
    ("h100-sxm", {}, "fp16"),
    ("h100-sxm", {"l2": "warm"}, "w4a16"),
]
TWINS = ("P_G", "P_M", "P_N", "P_K", "loop_order")  # other numbers of these may name a mapping of the very same cost
ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1e-9, 1e308, 1 << 62, -(1 << 63), 1 << 70, "", "16", [], {}, [[1]], {"a": 1},
)  # fmt: skip
SCHEMAS = (
    "DROP TABLE entries",
    "CREATE TABLE more (a)",
    "ALTER TABLE entries ADD COLUMN more",
    "ALTER TABLE entries RENAME COLUMN value TO text",
    "DROP INDEX entries_by_key",
    "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
    "ALTER TABLE entries RENAME TO e; CREATE VIEW entries AS SELECT * FROM e",
    "ALTER TABLE entries RENAME TO e; CREATE VIEW entries AS WITH RECURSIVE n(id) AS "
    "(SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id, 1 namespace, x'00' key, '' value, 1 checksum, 1 last_used_s "
    "FROM n",
    "PRAGMA application_id = 7",
    "PRAGMA user_version = 2",
    "PRAGMA user_version = -1",
    "PRAGMA auto_vacuum = 0; VACUUM",
    "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM",
    "UPDATE entries SET value = CAST(value AS BLOB)",
    "UPDATE entries SET value = id",
    "UPDATE entries SET checksum = 'text'",
    "UPDATE entries SET last_used_s = x'ff'",
    "UPDATE entries SET last_used_s = 9e18",
    "UPDATE entries SET namespace = 0",
    "UPDATE entries SET key = id",
    "UPDATE entries SET key = zeroblob(100000) WHERE id = 1",
)


class Template(NamedTuple):
    """A valid file, and the right answers."""

    content: bytes
    namespace: str
    records: list[npt.NDArray[np.void]]  # of `SIZES`, for each of `ASKED`
    savers: list[GEMMEvaluator]  # for each of `ASKED`


@cache
def prepare() -> Template:
    """Compile, and build the valid file once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.sqlite3"
        records, savers = [], []
        for arch, settings, dtype in ASKED:
            savers.append(GEMMEvaluator(arch, disk_cache=path, **settings))
            table = savers[-1].evaluate_many(SIZES, dtype)
            savers[-1].save_to_disk(table)
            records.append(table.records)
            GEMMEvaluator(arch, disk_cache=path, **settings).evaluate(*SIZES[0], dtype)  # compiles what replays
        namespace = _disk._cache_at(path)._options["namespace"]
        _disk._cache_at.cache_clear()
        return Template(path.read_bytes(), namespace, records, savers)


def run_one(rng: random.Random, folder: Path) -> str:
    """Damage the file, evaluate through it, write to it, and evaluate again."""
    template = prepare()
    path = folder / "costs.sqlite3"
    path.write_bytes(template.content)
    rng.choice(DAMAGES)(rng, path, template)
    which = rng.randrange(len(ASKED))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            is_best = _ask(rng, path, which, template)
        except StorageError:
            return "left alone"
        finally:
            _disk._cache_at.cache_clear()  # closes the file
    texts = [str(one.message) for one in told]
    assert all(one.category is RuntimeWarning for one in told), texts
    if any("set aside" in text for text in texts):
        return "set aside"
    if any("removed" in text for text in texts):
        return "entries removed"
    return "ok" if is_best else "true, not best"


def _ask(rng: random.Random, path: Path, which: int, template: Template) -> bool:
    """Check the answers; say whether all are the best ones. A row of a file is believed if it is true, best or not."""
    _, settings, dtype = ASKED[which]
    saver, expected = template.savers[which], template.records[which]
    is_best = True
    for _ in range(2):
        evaluator = GEMMEvaluator(saver.arch, disk_cache=path, **settings)
        evaluator._costs = FoundCosts(saver.backend, path)  # its tables are packed already
        if rng.random() < 0.5:
            place = rng.randrange(len(SIZES))
            assert evaluator.evaluate(*SIZES[place], dtype).latency_us >= expected["latency_us"][place]
        table = evaluator.evaluate_many(SIZES, dtype)
        unchecked = {*TWINS, *evaluator.backend.search_counts}
        for place, (sizes, record) in enumerate(zip(SIZES, table.records, strict=True)):
            same = all(
                record[name].tobytes() == expected[place][name].tobytes()
                for name in expected.dtype.names or ()
                if name not in unchecked
            )
            if not same:
                is_best = False
                result = table[place]
                assert evaluator.evaluate_mapping(result.problem, result.mapping, **result.options).latency_us == (
                    result.latency_us
                ), f"{sizes}: no mapping has this cost"
        evaluator.save_to_disk(table)
        _disk._cache_at.cache_clear()
    return is_best


# damages


def _bytes(rng: random.Random, path: Path, template: Template) -> None:
    path.write_bytes(mutate_bytes(rng, template.content))


def _pages(rng: random.Random, path: Path, template: Template) -> None:
    pages = [template.content[at : at + 4096] for at in range(0, len(template.content), 4096)]
    for _ in range(rng.choice((1, 1, 3))):
        one, other = rng.randrange(len(pages)), rng.randrange(len(pages))
        match rng.randrange(5):
            case 0:
                pages[one], pages[other] = pages[other], pages[one]
            case 1:
                pages[one] = pages[other]
            case 2:
                pages[one] = bytes(len(pages[one]))
            case 3:
                pages[one] = rng.randbytes(len(pages[one]))
            case _:
                pages = pages[: one + 1]
    path.write_bytes(b"".join(pages))


def _first_page(rng: random.Random, path: Path, template: Template) -> None:
    """Header and schema: what is read first."""
    content = bytearray(template.content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        content[rng.choice((rng.randrange(120), rng.randrange(4096)))] = rng.randrange(256)
    path.write_bytes(content)


def _text(rng: random.Random, path: Path, template: Template) -> None:
    path.write_bytes(rng.choice((b"", b"\0" * 5000, b"dear diary\n" * 500, template.content[:16], rng.randbytes(9000))))


def _companion(rng: random.Random, path: Path, template: Template) -> None:
    suffix = rng.choice(("-wal", "-shm", "-journal", ".guard"))
    content = rng.choice((rng.randbytes(9000), template.content, b"", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600)))
    path.with_name(path.name + suffix).write_bytes(content)


def _schema(rng: random.Random, path: Path, template: Template) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in rng.sample(SCHEMAS, rng.choice((1, 1, 2))):
            with contextlib.suppress(sqlite3.Error):  # the second may not go with the first
                connection.executescript(statement)


def _rows(rng: random.Random, path: Path, template: Template) -> None:
    """Entries that lie, with checksums that are right."""
    seed = crc32(template.namespace.encode() + b"\0")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT id, key, value FROM entries").fetchall()
        for number, key, value in rng.sample(rows, rng.choice((1, 3, len(rows)))):
            if rng.random() < 0.2:
                _, key, _ = rng.choice(rows)
                key = key[:16] + rng.randbytes(16) if rng.random() < 0.5 else rng.randbytes(32)
            changed = _changed(rng, value, rng.choice(rows)[2]).encode("utf-8", "replace")
            with contextlib.suppress(sqlite3.IntegrityError):  # a key that is there
                connection.execute(
                    "UPDATE entries SET key = ?, value = CAST(? AS TEXT), checksum = ? WHERE id = ?",
                    (key, changed, crc32(changed, crc32(key, seed)), number),
                )
        connection.commit()


def _changed(rng: random.Random, value: str, other: str) -> str:
    entry, another = json.loads(value), json.loads(other)
    part = rng.choice(list(entry))
    match rng.randrange(6):
        case 0:
            return mutate_text(rng, value, words=("null", "NaN", "1e-9", "[", "fp16"), others=(other,))
        case 1:
            entry[part] = another[part]
        case 2:
            entry[part] = rng.choice(ODD_VALUES)
        case 3:
            place = rng.randrange(len(entry["cost"]))
            old = entry["cost"][place]
            near = [old * 2, old + 1, -old, old / 3] if isinstance(old, int | float) else []
            entry["cost"][place] = rng.choice([*near, *ODD_VALUES])
        case 4:
            entry["cost"] = [0.1 if isinstance(number, float) else number for number in entry["cost"]]
        case _:
            return value.replace(rng.choice("0123456789"), rng.choice(ODD_NUMBERS), rng.choice((1, -1)))
    return json.dumps(entry)


DAMAGES: list[Callable[[random.Random, Path, Template], None]] = [
    _bytes, _bytes, _pages, _first_page, _text, _companion, _schema, _rows, _rows, _rows,
]  # fmt: skip
