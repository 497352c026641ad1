"""Architectures as their libraries build them: every operation priced, FLOP as torch counts them, nothing allocated."""

import resource
import sys
from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")
pytest.importorskip("torchvision", reason="needs torchvision: make test-torch-cuda")
pytest.importorskip("transformers", reason="needs transformers: make test-torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gemm_eval import GEMMEvaluator  # noqa: E402
from gemm_eval.torch import ModulePrediction, predict_module  # noqa: E402
from gemm_eval.torch.graph import ConvolutionWork  # noqa: E402
from gemm_eval.transformer import AttentionWork  # noqa: E402
from tests.torch.zoo import MODELS, Model, llama  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # the vendors' packages warn as they like
EVALUATOR = GEMMEvaluator("h200-sxm", disk_cache=False)
TRAINED = ["bert", "gpt2", "llama", "resnet50", "vit", "t5", "unet", "lstm", "vit-b16-torchvision"]


def counted_flop(model: Model, *, backward: bool = False) -> int:
    """What torch counts of the module on the device "meta"; attention comes apart into products there."""
    inputs = {name: tensor.to("meta") for name, tensor in model.inputs.items()}
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.set_grad_enabled(backward):
        out = model.module(**inputs)
        if backward:
            leaves = tree_leaves(dict(out) if isinstance(out, Mapping) else out)
            ends = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            seeds = [torch.empty_like(end) for end in ends]
            torch.autograd.grad(ends, list(model.module.parameters()), seeds, allow_unused=True)
    return int(counter.get_total_flops())


def grouped_flop(prediction: ModulePrediction) -> int:
    """Of grouped products, which torch does not count."""
    return sum(one.flop for one in prediction.operations if "grouped_mm" in one.name)


@pytest.mark.parametrize("name", MODELS)
def test_every_operation_has_a_price_and_flop_are_those_that_torch_counts(name: str) -> None:
    model = MODELS[name]()
    prediction = predict_module(model.module, model.inputs, EVALUATOR)
    assert {one.name for one in prediction.unpriced} == set(model.unpriced)
    assert prediction.unmasked_flop - grouped_flop(prediction) == counted_flop(model)
    assert all(one.latency_us > 0 for one in prediction.operations if one.kind != "unpriced")
    assert prediction.latency_us == pytest.approx(sum(one.latency_us for one in prediction.operations))
    assert (grouped_flop(prediction) > 0) == (name in ("mixtral", "qwen3-moe"))


@pytest.mark.parametrize("name", TRAINED)
def test_flop_of_training_are_those_that_torch_counts(name: str) -> None:
    """But for fused attention, whose backward pass has five products: torch's takes four, of scores that it kept."""
    model = MODELS[name]()
    prediction = predict_module(model.module, model.inputs, EVALUATOR, backward=True)
    works = [one._work for one in prediction.operations if one.kind == "attention"]
    again = sum(
        one.unmasked_flop // 5
        for one in prediction.operations
        if isinstance(one._work, AttentionWork) and one._work.problem.backward
    )
    assert prediction.unmasked_flop - again == counted_flop(model, backward=True)
    assert (again > 0) == bool(works)
    assert prediction.unpriced == ()


def test_gradients_of_grouped_convolutions_are_as_many_as_those_of_the_forward_pass_twice() -> None:
    """torch's counter takes them for convolutions without groups."""
    model = MODELS["convnext"]()
    prediction = predict_module(model.module, model.inputs, EVALUATOR, backward=True)
    phases = {"forward": 0, "backward": 0}
    for one in prediction.operations:
        if isinstance(one._work, ConvolutionWork):
            phases[one.phase] += one.flop
    stem = predict_module(model.module, model.inputs, EVALUATOR)["features.0.0"].flop
    assert phases["backward"] == 2 * phases["forward"] - stem  # nobody asks for the gradient of the image


def max_rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def test_a_model_of_seventy_billion_parameters_takes_no_memory() -> None:
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=80, hidden_size=8192, intermediate_size=28672, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    predict_module(llama().module, llama().inputs, EVALUATOR)  # what is loaded at first use is
    before = max_rss_mib()
    prediction = predict_module(module, {"input_ids": torch.zeros(1, 4096, dtype=torch.long)}, EVALUATOR)
    assert max_rss_mib() - before < 200  # the weights have 141,000, the activations of a layer 1,000
    assert sum(parameter.numel() for parameter in module.parameters()) > 70e9
    assert len({one.path for one in prediction.operations if ".layers." in one.path}) > 80 * 5


def test_a_module_with_weights_and_one_without_are_predicted_alike() -> None:
    import torchvision

    real = torchvision.models.mobilenet_v3_small().eval()
    with torch.device("meta"):
        empty = torchvision.models.mobilenet_v3_small().eval()
    x = torch.zeros(1, 3, 64, 64)
    first, second = (predict_module(module, x, EVALUATOR).to_dict() for module in (real, empty))
    assert first == second


def test_experts_of_values_that_nobody_knows_are_an_error_that_says_what_to_do() -> None:
    model: Any = MODELS["mixtral"]()
    model.module.set_experts_implementation("eager")
    with pytest.raises(Exception, match=r"model.layers.0.mlp\S* asks for values .*grouped_mm"):
        predict_module(model.module, model.inputs, EVALUATOR)
