"""What a prediction says of itself: the tree, tables, a page, JSON and a timeline that add up."""

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from torch import nn  # noqa: E402

from gemm_eval import GEMMEvaluator  # noqa: E402
from gemm_eval.torch import ModulePrediction, predict_module  # noqa: E402
from gemm_eval.torch.render import fold_operations, folded_path  # noqa: E402

EVALUATOR = GEMMEvaluator("h200-sxm", disk_cache=False)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, width: int = 512, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return torch.fft.rfft(self.head(x).float()).real


@pytest.fixture(scope="module")
def prediction() -> ModulePrediction:
    with torch.device("meta"):
        module = Network().bfloat16()
    return predict_module(module, torch.empty(2048, 512, dtype=torch.bfloat16), EVALUATOR)


def test_the_tree_adds_up(prediction: ModulePrediction) -> None:
    nodes = list(prediction.walk())
    assert [node.path for node in nodes][:3] == ["", "layers", "layers.0"]
    for node in nodes:
        inner = sum(child.latency_us for child in node.children)
        own = sum(one.latency_us for one in node.own_operations)
        assert node.latency_us == pytest.approx(inner + own)
        assert node.flop == sum(child.flop for child in node.children) + sum(one.flop for one in node.own_operations)
        assert node.low_us <= node.latency_us <= node.high_us
        assert node.total_us == pytest.approx(prediction.latency_us)
    assert prediction.share_frac == pytest.approx(1.0)
    assert sum(child.share_frac for child in prediction.children) <= 1.0
    assert prediction["layers.1"]["up"].module_class == "Linear"
    assert prediction.module_class == "Network"
    with pytest.raises(KeyError):
        prediction["layers.7"]


def test_operations_run_one_after_the_other(prediction: ModulePrediction) -> None:
    now = 0.0
    for one in prediction.operations:
        assert one.start_us == pytest.approx(now)
        now += one.latency_us
    assert now == pytest.approx(prediction.latency_us)
    assert sum(prediction.us_by_kind.values()) == pytest.approx(now)
    assert sum(prediction.us_by_bound.values()) == pytest.approx(now)
    assert prediction.bound == next(iter(prediction.us_by_bound))


def test_what_has_no_price_is_named_everywhere(prediction: ModulePrediction) -> None:
    (one,) = prediction.unpriced
    assert one.name == "aten._fft_r2c"
    assert "not priced: aten._fft_r2c" in str(prediction)
    assert "aten._fft_r2c" in prediction.to_html()
    assert prediction.to_dict()["num_unpriced"] == 1


def test_the_table_folds_layers(prediction: ModulePrediction) -> None:
    lines = str(prediction).splitlines()
    assert lines[0].startswith("Network on h200-sxm, fused as by inductor: ")
    assert [line.split()[:3] for line in lines if line.strip().startswith("*")] == [["*", "Layer", "3"]]
    assert len([line for line in lines if "Layer " in line]) == 1
    unfolded = prediction.table(fold=False, depth=2).splitlines()
    assert len([line for line in unfolded if " Layer " in line]) == 3
    assert not any("Linear" in line for line in prediction.table(depth=0).splitlines())
    rows = fold_operations(prediction.operations)
    assert sum(row.count for row in rows) == len(prediction.operations)
    assert sum(row.latency_us for row in rows) == pytest.approx(prediction.latency_us)
    assert folded_path("model.layers.10.mlp.experts.3.w1") == "model.layers.*.mlp.experts.*.w1"
    assert folded_path("encoder.encoder_layer_11.mlp") == "encoder.encoder_layer_*.mlp"
    assert folded_path("conv2d.w1") == "conv2d.w1"


def test_json_holds_the_tree(prediction: ModulePrediction) -> None:
    tree = json.loads(prediction.to_json())
    assert tree["arch_name"] == "h200-sxm"

    def operations(node: Any) -> Any:
        return node["operations"] + [one for child in node["children"] for one in operations(child)]

    found = operations(tree)
    assert len(found) == len(prediction.operations)
    assert sum(one["latency_us"] for one in found) == pytest.approx(tree["latency_us"])
    assert not any(key.startswith("_") for one in found for key in one)


def test_the_timeline_has_each_kernel_once_and_modules_around_it(prediction: ModulePrediction) -> None:
    events = [event for event in json.loads(prediction.chrome_trace())["traceEvents"] if event["ph"] == "X"]
    kernels = [event for event in events if event["tid"] == 0]
    assert [event["ts"] for event in kernels] == [one.start_us for one in prediction.operations]
    spans = {event["name"]: event for event in events if event["tid"] == 1}
    assert {"layers", "layers.2.up"} <= set(spans)
    for kernel in kernels:
        path = kernel["args"]["module"]
        if path:
            around = [e for e in events if e["tid"] == 1 and e["name"] == path]
            inside = [e for e in around if e["ts"] <= kernel["ts"] + 1e-6]
            assert any(kernel["ts"] + kernel["dur"] <= e["ts"] + e["dur"] + 1e-6 for e in inside)


def test_the_page_says_what_would_help(prediction: ModulePrediction, tmp_path: Any) -> None:
    levers = prediction.what_would_help()
    assert levers
    assert levers[0].latency_us < prediction.latency_us
    assert levers[0].change in prediction.to_html()
    prediction.write_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == prediction.to_html()
    part = prediction["layers.0.up"].what_would_help()
    assert part[0].latency_us < prediction["layers.0.up"].latency_us


def test_modules_of_different_classes_share_no_row() -> None:
    """In a `Sequential` the names of a Linear and a SiLU differ by a number alone."""
    module = nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 256))
    table = predict_module(module, (torch.empty(64, 256),), arch="h200-sxm").table()
    rows = [line.split() for line in table.splitlines()[2:]]
    assert [(row[0], row[1]) for row in rows] == [("(all)", "Sequential"), ("*", "Linear"), ("1", "SiLU")]
    assert rows[1][2] == "2"


@pytest.mark.parametrize("elements", [1 << 14, 1 << 20, 11 << 20, 1 << 26])
@pytest.mark.parametrize(
    "module", [nn.SiLU(), nn.ReLU(), nn.GELU(), nn.Tanh(), nn.Hardswish(), nn.Sequential(nn.ReLU(), nn.SiLU())]
)
def test_compiling_makes_no_elementwise_module_slower(module: nn.Module, elements: int) -> None:
    """Both move the same bytes: a SiLU of 11 M elements took 3.7 us, and compiled 5.8."""
    inputs = (torch.empty(elements, dtype=torch.bfloat16, device="meta"),)
    eager, compiled = (
        predict_module(module, inputs, arch="h200-sxm", fusion=fusion).latency_us for fusion in ("eager", "inductor")
    )
    assert compiled <= eager
