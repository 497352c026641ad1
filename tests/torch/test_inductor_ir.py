"""Kernels that Inductor itself makes of a module, without a GPU: `fusion="inductor-ir"`."""

from collections import Counter

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-torch")
pytest.importorskip("triton", reason="triton is not installed: make test-torch")
import torch
from torch import nn
from torch.nn import functional

from gemm_eval import UnsupportedError
from gemm_eval.torch import ModulePrediction, predict_module

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own
SIZES = 2, 128, 512


class Block(nn.Module):
    """Attention and a feed-forward part, with norms before."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last_norm = nn.LayerNorm(512), nn.LayerNorm(512)
        self.qkv, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (8, 64)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.last_norm(x))))


def predicted(module: nn.Module, *sizes: int, fusion: str = "inductor-ir") -> ModulePrediction:
    x = torch.empty(sizes, dtype=torch.bfloat16, device="meta")
    return predict_module(module.to("meta", torch.bfloat16), x, "h200-sxm", fusion=fusion)


@pytest.fixture(scope="module")
def block() -> ModulePrediction:
    return predicted(nn.Sequential(Block()), *SIZES)


def test_a_block_is_the_kernels_that_inductor_makes(block: ModulePrediction) -> None:
    assert [operation.kind for operation in block.operations] == [
        "memory", "gemm", "attention", "gemm", "memory", "gemm", "memory", "gemm", "memory"
    ]  # fmt: skip
    norm = next(operation for operation in block.operations if operation.path == "0.last_norm")
    assert "aten.native_layer_norm" in norm.name
    rows = 2 * 128 * 512 * 2
    assert norm.num_bytes == pytest.approx(3 * rows, rel=0.1) or norm.num_bytes == pytest.approx(4 * rows, rel=0.1)


def test_gemms_and_attention_are_those_of_the_rules(block: ModulePrediction) -> None:
    rules = predicted(nn.Sequential(Block()), *SIZES, fusion="inductor")
    details = [
        Counter(each.detail for each in of.operations if each.kind in ("gemm", "attention")) for of in (block, rules)
    ]
    assert details[0] == details[1]
    assert block.flop == rules.flop
    assert {node.path: node.module_class for node in block.walk()}["0"] == "Block"


def test_nothing_of_the_gpu_stays() -> None:
    module = nn.Linear(64, 64)
    weight, attention = module.weight, functional.scaled_dot_product_attention
    answers = torch.cuda.is_available, torch.cuda.get_device_properties
    result = predict_module(module, torch.empty(8, 64), "h200-sxm", fusion="inductor-ir")
    assert result.us_by_kind.keys() == {"gemm"}
    assert module.weight is weight
    assert functional.scaled_dot_product_attention is attention
    assert (torch.cuda.is_available, torch.cuda.get_device_properties) == answers


def test_images_have_channels_last_as_inductor_changes_them() -> None:
    module = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)).eval()
    kinds = Counter(operation.kind for operation in predicted(module, 4, 64, 32, 32).operations)
    assert kinds == {"convolution": 2, "memory": 5}  # an image and two weights change layout, two biases are added


def test_gradients_have_the_gemms_of_the_rules_and_kernels_of_their_own() -> None:
    module, x = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)), torch.empty(512, 64)
    by_ir, by_rules = (
        predict_module(module, x, "h200-sxm", fusion=fusion, backward=True, optimizer="adamw")
        for fusion in ("inductor-ir", "inductor")
    )
    gemms = [Counter(each.detail for each in of.operations if each.kind == "gemm") for of in (by_ir, by_rules)]
    assert gemms[0] == gemms[1]
    assert {each.phase for each in by_ir.operations} == {"forward", "backward", "optimizer"}
    assert any("gelu_backward" in each.name and each.path == "1" for each in by_ir.operations)


def test_gradients_under_autocast_and_chips_that_are_no_gpus_are_refused() -> None:
    class Cast(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return super().forward(x)

    x = torch.empty(8, 64)
    with pytest.raises(UnsupportedError, match="casts tensors of a GPU alone"):
        predict_module(Cast(64, 64), x, "h200-sxm", fusion="inductor-ir", backward=True)
    with pytest.raises(UnsupportedError, match="no GPU"):
        predict_module(nn.Linear(64, 64), x, "tpu-v5e", fusion="inductor-ir")


def test_what_dynamo_refuses_is_an_error_that_says_so() -> None:
    class Depends(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(UnsupportedError, match="refuses this module"):
        predict_module(Depends(), torch.ones(8, 64), "h200-sxm", fusion="inductor-ir")
