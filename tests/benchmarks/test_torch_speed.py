"""Predicting a torch module: a model of 32 layers, from its trace to its prediction."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")
pytest.importorskip("transformers", reason="needs transformers: make test-torch")

from gemm_eval import GEMMEvaluator  # noqa: E402
from gemm_eval.torch import predict_module  # noqa: E402
from tests.torch.zoo import ids, llama  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # the vendors' packages warn as they like


@pytest.mark.benchmark(group="predict a torch module of 32 layers")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward and backward"])
def test_predict_llama(benchmark: Any, backward: bool) -> None:
    """Nothing is known before: the evaluator is new in each round."""
    module, inputs = llama(32).module, {"input_ids": ids(1, 2048)}

    def predict() -> Any:
        return predict_module(module, inputs, GEMMEvaluator("h200-sxm", disk_cache=False), backward=backward)

    found = benchmark.pedantic(predict, rounds=3, warmup_rounds=1)
    assert len(found["model.layers.31"].operations) > 10
