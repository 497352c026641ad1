"""The file of costs on disk, damaged in many ways: answers stay right, and a file of somebody's stays as it is."""

import random
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval import GEMMEvaluator
from gemm_eval.errors import StorageError
from gemm_eval.evaluate.costs import FoundCosts
from tools.fuzz.mutate import mutate_bytes

SIZES = [(1, 16, 256, 512), (1, 1, 4096, 4096), (2, 33, 130, 70), (1, 512, 512, 512), (1, 7, 264, 96)]
# archs, settings and types of the template; a case asks one of them
ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("demo-8core", {}, "fp16"),
    ("demo-8core", {"allow_idle_cores": False}, "w4a16"),
    ("h100-sxm", {}, "fp16"),
    ("h100-sxm", {"l2": "warm"}, "w4a16"),
]


class Template(NamedTuple):
    """A valid file, and the right answers."""

    content: bytes
    records: list[npt.NDArray[np.void]]  # of `SIZES`, for each of `ASKED`
    savers: list[GEMMEvaluator]  # for each of `ASKED`


@cache
def prepare() -> Template:
    """Compile, and build the valid file once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.npz"
        records, savers = [], []
        for arch, settings, dtype in ASKED:
            savers.append(GEMMEvaluator(arch, disk_cache=path, **settings))
            table = savers[-1].evaluate_many(SIZES, dtype)
            savers[-1].save_to_disk(table)
            records.append(table.records)
        return Template(path.read_bytes(), records, savers)


def run_one(rng: random.Random, folder: Path) -> str:
    """Damage the file, evaluate through it, write to it, and evaluate again."""
    template = prepare()
    path = folder / "costs.npz"
    path.write_bytes(template.content)
    rng.choice(DAMAGES)(rng, path, template.content)
    damaged = path.read_bytes()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            _ask(rng, path, template)
        except StorageError:
            assert path.read_bytes() == damaged
            return "left alone"
    assert all(warning.category is RuntimeWarning for warning in told), told
    return "set aside" if any("set aside" in str(warning.message) for warning in told) else "ok"


def _ask(rng: random.Random, path: Path, template: Template) -> None:
    which = rng.randrange(len(ASKED))
    _, settings, dtype = ASKED[which]
    saver, expected = template.savers[which], template.records[which]
    for num_known in (None, len(SIZES)):
        evaluator = GEMMEvaluator(saver.arch, disk_cache=path, **settings)
        evaluator._costs = FoundCosts(saver.backend, path)  # its tables are packed already
        if rng.random() < 0.5:
            place = rng.randrange(len(SIZES))
            assert evaluator.evaluate(*SIZES[place], dtype).latency_us == expected["latency_us"][place]
        table = evaluator.evaluate_many(SIZES, dtype)
        assert table.records.tobytes() == expected.tobytes()
        if num_known is not None:
            assert evaluator.cache_info().records.misses == 0, "what was written is found"
        assert evaluator.save_to_disk(table) == len(SIZES)


def _bytes(rng: random.Random, path: Path, content: bytes) -> None:
    path.write_bytes(mutate_bytes(rng, content))


def _few_bytes(rng: random.Random, path: Path, content: bytes) -> None:
    """Anywhere, or in the list of members at the end."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        changed[-rng.choice((rng.randrange(1, 900), rng.randrange(1, len(changed))))] = rng.randrange(256)
    path.write_bytes(changed)


def _blocks(rng: random.Random, path: Path, content: bytes) -> None:
    blocks = [content[at : at + 512] for at in range(0, len(content), 512)]
    for _ in range(rng.choice((1, 1, 3))):
        one, other = rng.randrange(len(blocks)), rng.randrange(len(blocks))
        blocks[one] = rng.choice((blocks[other], bytes(len(blocks[one])), rng.randbytes(len(blocks[one])), b""))
    path.write_bytes(b"".join(blocks[: rng.choice((len(blocks), rng.randrange(len(blocks))))]))


def _text(rng: random.Random, path: Path, content: bytes) -> None:
    path.write_bytes(rng.choice((b"", b"\0" * 5000, b"dear diary\n" * 500, content[:16], rng.randbytes(9000))))


def _companion(rng: random.Random, path: Path, content: bytes) -> None:
    name = rng.choice((f"{path.name}.lock", f"{path.name}.damaged-1", f".{path.name}.{'a' * 32}.tmp"))
    path.with_name(name).write_bytes(rng.choice((rng.randbytes(9000), content, b"")))


DAMAGES: list[Callable[[random.Random, Path, bytes], None]] = [
    _bytes, _bytes, _few_bytes, _few_bytes, _blocks, _text, _companion,
]  # fmt: skip
