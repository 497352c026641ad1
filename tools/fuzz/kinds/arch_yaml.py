"""Architecture specs as YAML files, alone and as bases of each other."""

import os
import random
from pathlib import Path

from gemm_eval.arch import check_arch, data_root, list_archs, load_arch
from gemm_eval.errors import GemmEvalError
from tests.arch.hostile_yaml import HOSTILE
from tools.fuzz.kinds import label_of
from tools.fuzz.mutate import mutate_text

_TEXTS = [path.read_text("utf-8") for kind in ("gpu", "multicore") for path in sorted((data_root() / kind).glob("*"))]
_WORDS = (
    "base: h100-sxm\n",
    "base: other.yaml\n",
    "type: gpu\n",
    "&a ",
    "*a",
    "!!int ",
    "- ",
    "{a: ",
    "<<: ",
    "? ",
    "|\n",
)


def prepare() -> None:
    """Read every preset once: pydantic builds its validators at the first."""
    for name in list_archs():
        load_arch(name)


def run_one(rng: random.Random, folder: Path) -> str:
    """Load and check a spec."""
    file = folder / "chip.yaml"
    for path in (file, folder / "other.yaml"):
        if rng.random() < 0.05:
            text = rng.choice(list(HOSTILE.values()))
            path.write_bytes(text if isinstance(text, bytes) else str(text).encode())
        elif rng.random() < 0.02:
            os.mkfifo(path)
        else:
            mutated = mutate_text(rng, rng.choice(_TEXTS), words=_WORDS, others=_TEXTS)
            path.write_bytes(mutated.encode("utf-8", "surrogatepass"))
    try:
        arch = load_arch(file)
        check_arch(arch)
        arch.with_(notes="")
    except GemmEvalError as error:
        return label_of(error)
    assert len(repr(arch)) < 300
    return "ok"
