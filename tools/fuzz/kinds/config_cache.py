"""Files of best kernel configs, the user's own and those to merge."""

import json
import os
import random
import warnings
from pathlib import Path
from typing import Any

from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import config_cache
from gemm_eval.kernels.config_cache import ConfigCache
from tools.fuzz.kinds import label_of
from tools.fuzz.mutate import ODD_NUMBERS, mutate_bytes, mutate_text

_SHIPPED = config_cache.shipped_path("h200-sxm")
_RECORDS = ConfigCache.load(_SHIPPED, is_read_only=True).records[:40]
_LINES = [record.to_line() for record in _RECORDS]
_HEAD = '{"format": "gemm-eval w4a16 configs", "version": 1, "records": [\n'
_WORDS = ("null", "[]", "{}", "1e999", "NaN", '"version": 2', '"records": []', "-1", '"all"')
_VALUES: tuple[Any, ...] = (None, True, [], {}, "", "x" * 300, -1, 0, 1.5, 10**400, -(10**400), 1 << 70, [1], "128")


def run_one(rng: random.Random, folder: Path) -> str:
    """Load a file, look a GEMM up in it, and merge what was read into another."""
    file, other = folder / "configs.json", folder / "other.json"
    lines = rng.sample(_LINES, k=rng.choice((1, 3, 10)))
    if rng.random() < 0.5:
        fields = json.loads(lines[0])
        where = rng.choice((fields, fields["config"]))
        where[rng.choice((*where, "more"))] = rng.choice((*_VALUES, rng.choice(ODD_NUMBERS)))
        lines[0] = json.dumps(fields)
    text = _HEAD + ",\n".join(lines) + "\n]}\n"
    if rng.random() < 0.5:
        text = mutate_text(rng, text, words=_WORDS, others=[_HEAD, *_LINES])
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        content = mutate_bytes(rng, content)
    if rng.random() < 0.01:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    key = rng.choice(_RECORDS).key
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = ConfigCache.load(file, is_read_only=rng.random() < 0.2)
            found.find(key)
            config_cache.change_file(other, found.merge)
    except GemmEvalError as error:
        return label_of(error)
    assert all(len(str(warning.message)) < 2000 for warning in warned)
    assert ConfigCache.load(other, is_read_only=True) == found  # what was kept can be read again
    return "damaged" if warned else "ok"
