"""Model configs: Hugging Face `config.json` files, and models as YAML."""

import json
import os
import random
from pathlib import Path
from typing import Any

from gemm_eval.arch import data_root
from gemm_eval.errors import GemmEvalError
from gemm_eval.transformer import load_model, transformer_gemms
from tests.transformer.hugging_face_samples import SAMPLES
from tools.fuzz.kinds import label_of
from tools.fuzz.mutate import ODD_NUMBERS, mutate_text

_JSON = [json.dumps(dict(sample.config), indent=1) for sample in SAMPLES.values()]
_YAML = [path.read_text("utf-8") for path in sorted((data_root() / "models").glob("*.yaml"))]
_WORDS = ("null", "true", "[]", "{}", '"mixtral"', "NaN", "Infinity", '"x": ', "1e999", "-1")
_VALUES: tuple[Any, ...] = (None, True, [], {}, "", "x" * 300, -1, 0, 1, 1.5, 1 << 24, 1 << 70, [1], {"a": [[]]})


def run_one(rng: random.Random, folder: Path) -> str:
    """Load a model, and list its GEMMs."""
    is_json = rng.random() < 0.6
    file = folder / ("config.json" if is_json else "model.yaml")
    if rng.random() < 0.01:
        os.mkfifo(file)
    elif is_json and rng.random() < 0.4:  # well-formed, with other values
        config = json.loads(rng.choice(_JSON))
        for key in rng.sample(sorted(config), k=min(len(config), rng.choice((1, 2, 5)))):
            config[key] = rng.choice((*_VALUES, rng.choice(ODD_NUMBERS), rng.randrange(1, 200)))
        file.write_text(json.dumps(config), encoding="utf-8")
    else:
        texts = _JSON if is_json else _YAML
        mutated = mutate_text(rng, rng.choice(texts), words=_WORDS, others=texts)
        file.write_bytes(mutated.encode("utf-8", "surrogatepass"))
    try:
        model = load_model(rng.choice((file, str(file), folder)))
        for phase in ("prefill", "decode"):
            transformer_gemms(
                model,
                phase=phase,
                batch_size=rng.choice((1, 1 << 20)),
                seq_len=rng.choice((1, 4096)),
                tensor_parallel=rng.choice((1, 2, 7)),
                expert_parallel=rng.choice((1, 2)),
            )
    except GemmEvalError as error:
        return label_of(error)
    assert len(repr(model)) < 300
    return "ok"
