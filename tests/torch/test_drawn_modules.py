"""Modules that are drawn: the same again, within bounds, of all kinds of operators; and how a draw's times are kept."""

import csv
import gzip
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tools.draw_modules import SEEDS, _attempt, drawn, estimate, order  # noqa: E402
from tools.time_modules import Marks, _append, _median_kernels, written  # noqa: E402

CLASSES = {
    "convolution": "convolution", "attention": "scaled_dot_product_attention", "products": "bmm mm addmm baddbmm",
    "norms": "native_layer_norm native_batch_norm _native_batch_norm_legit native_group_norm cudnn_batch_norm",
    "gathers": "embedding index gather index_select", "scatters": "scatter index_add index_add_ scatter_reduce",
    "cats": "cat", "stacks": "stack", "pooling": "max_pool2d_with_indices avg_pool2d",
    "interpolation": "upsample_bilinear2d upsample_nearest2d", "scans": "cumsum logcumsumexp", "sorts": "sort topk",
    "masks": "masked_fill masked_fill_ where", "softmax": "_softmax", "losses": "nll_loss_forward",
}  # fmt: skip


def test_a_draw_is_the_same_again_with_the_attempt_that_was_noted() -> None:
    for seed, number in ((1, 3), (2, 5)):
        first = drawn(seed, number)
        again = drawn(seed, number, attempt=first.attempt)
        assert again.facts() == first.facts()
        assert again.inputs == first.inputs
        shapes = {name: x.shape for name, x in first.module.state_dict().items()}
        assert {name: x.shape for name, x in again.module.state_dict().items()} == shapes
        assert estimate(again) == estimate(first)
        assert drawn(seed, number + 1).text != first.text


def test_splits_are_drawn_from_seeds_of_their_own() -> None:
    cases = order(200)
    assert len(set(cases)) == 200
    later = [case for split in [*SEEDS][3:] for case in order(1, split)]
    assert [(split, SEEDS[split]) for split in SEEDS] == [*dict.fromkeys(case[:2] for case in cases + later)]
    assert [sum(split == name for split, _, _ in cases) for name in SEEDS] == [100, 50, 50] + [0] * (len(SEEDS) - 3)


def test_draws_have_operators_of_every_class() -> None:
    seen = set[str]()
    for number in range(100):
        seen |= set(estimate(_attempt(SEEDS["fit"], number, 0, "meta")).calls)
        if all(seen & set(names.split()) for names in CLASSES.values()):
            break
    assert [name for name, names in CLASSES.items() if not seen & set(names.split())] == []


def test_operators_are_noted_with_layouts_and_kernels_with_medians(tmp_path: Path) -> None:
    x = torch.zeros(4, 6, dtype=torch.bfloat16)
    marks = Marks("mark")
    with marks:
        torch.add(x.t()[1:], 1)
    assert marks.calls[-1] == ("aten.add.Tensor", "bf16[5,4]{1,6}+1, 1", "bf16[5,4]{1,5}")
    assert written([x, None, torch.float16]) == "(bf16[4,6], None, float16)"

    runs = [[("a", us, "1x1x1", "32x1x1"), ("b", 2.0, "", "")] for us in (1.0, 3.0, 2.0)]
    assert _median_kernels(runs) == [("a", 2.0, "1x1x1", "32x1x1"), ("b", 2.0, "", "")]
    assert _median_kernels([[("a", 1.0, "", "")], [("b", 2.0, "", "")]]) == [("b", 2.0, "", "")]

    path = tmp_path / "rows.csv.gz"
    for number in range(2):
        _append(path, ("number", "text"), [{"number": number, "text": "a,b"}])
    with gzip.open(path, "rt", newline="") as file:
        assert list(csv.DictReader(file)) == [{"number": "0", "text": "a,b"}, {"number": "1", "text": "a,b"}]
