"""The file of a score card in the cache folder."""

import hashlib
import os
import random
from pathlib import Path

from gemm_eval.autotune.asm import score_ptx
from tests.autotune.test_asm_texts import GEMM
from tools.fuzz.mutate import mutate_bytes


def run_one(rng: random.Random, folder: Path) -> str:
    """Score twice, with the damage in between; half of it with a checksum that is right."""
    first = score_ptx(GEMM)
    (file,) = Path(os.environ["GEMM_EVAL_CACHE_DIR"]).rglob("*.json")
    if rng.random() < 0.5:
        file.write_bytes(mutate_bytes(rng, file.read_bytes()))
    else:
        content = mutate_bytes(rng, file.read_bytes().partition(b"\n")[2])
        file.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    again = score_ptx(GEMM)
    again.to_dict()
    return "ok" if again == first else "believed"
