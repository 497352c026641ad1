"""Sets of layers as text, kinds of layers, and pipeline stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import ModelConfigError
from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer import (
    GroupedAttention,
    count_parameters,
    layer_kinds,
    list_models,
    load_model,
    stage_config,
    stage_layers,
)
from gemm_eval.transformer.parts import layers_text, parse_layers


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (range(3, 61), "3-60"), (range(1, 48, 2), "1-47:2"), ([0], "0"), ([0, 5, 6, 7], "0, 5-7"),
        ([0, 1, 2, 3, 4, 6, 7, 8, 9, 10], "0-4, 6-10"), ([0, 7], "0, 7"),
    ],
)  # fmt: skip
def test_layers_as_text(layers: list[int], text: str) -> None:
    assert layers_text(layers) == text
    assert parse_layers(text) == tuple(layers)


@given(st.sets(st.integers(0, 500), min_size=1))
def test_text_is_read_back(layers: set[int]) -> None:
    assert parse_layers(layers_text(layers)) == tuple(sorted(layers))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-9:0", "1,1", "0-3, 2", "65536", "1-99999", "-1", "1:2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="layers"):
        parse_layers(text)
    config = load_model("mixtral-8x7b")
    assert config.moe is not None
    with pytest.raises(ModelConfigError):
        config.with_(moe=config.moe.model_dump() | {"layers": text})


def test_layers_are_as_many_as_is_said_and_there() -> None:
    config = load_model("llama-4-maverick")
    assert config.moe is not None
    for layers, message in (
        ("0-44:2, 48", "moe.layers must be layers of 0..47"),
        ("0-3", "num_layers = 24 layers, got 4"),
    ):
        with pytest.raises(ModelConfigError, match=message):
            config.with_(moe=config.moe.model_dump() | {"layers": layers})
    assert config.moe_layers == tuple(range(1, 48, 2))
    assert config.dense_layers == tuple(range(0, 48, 2))
    assert set(range(48)) - set(config.window_layers) == set(range(3, 48, 4))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama-3-8b", {"full attention, dense": 32}),
        ("gpt-oss-20b", {"window attention, experts": 12, "full attention, experts": 12}),
        ("gemma-3-27b", {"window attention, dense": 52, "full attention, dense": 10}),
        ("deepseek-v3", {"full attention, dense": 3, "full attention, experts": 58}),
        ("llama-4-maverick", {"window attention, dense": 24, "window attention, experts": 12,
                              "full attention without rotary positions, experts": 12}),
        ("gpt-3-175b", {"full attention, dense": 96}),
    ],
)  # fmt: skip
def test_kinds_of_layers(name: str, kinds: dict[str, int]) -> None:
    found = layer_kinds(load_model(name))

    assert {kind.name: len(kind.layers) for kind in found} == kinds
    assert sorted(layer for kind in found for layer in kind.layers) == list(range(load_model(name).num_layers))


@pytest.mark.parametrize(
    ("num", "stages", "sizes"),
    [(32, 4, [8, 8, 8, 8]), (61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]), (5, 2, [3, 2]), (3, 3, [1, 1, 1])],
)
def test_stages_are_even_and_the_last_is_not_the_longest(num: int, stages: int, sizes: list[int]) -> None:
    found = stage_layers(num, stages)

    assert [len(layers) for layers in found] == sizes
    assert [layer for layers in found for layer in layers] == list(range(num))
    with pytest.raises(InvalidOptionError, match=f"at most the number of layers, {num}, got {num + 1}"):
        stage_layers(num, num + 1)


@pytest.mark.parametrize("name", list_models())
def test_parts_of_a_model_are_the_model(name: str) -> None:
    config = load_model(name)
    whole = count_parameters(config)
    for stages in (2, 5):
        parts = [stage_config(config, layers) for layers in stage_layers(config.num_layers, stages)]
        counts = [count_parameters(part) for part in parts]

        assert sum(count.layer_matrices for count in counts) == whole.layer_matrices
        assert sum(count.idle_experts for count in counts) == whole.idle_experts
        assert sum(part.num_window_layers for part in parts) == config.num_window_layers
        assert sum(part.num_moe_layers for part in parts) == config.num_moe_layers
        for part, layers in zip(parts, stage_layers(config.num_layers, stages), strict=True):
            assert [layers[layer] for layer in part.moe_layers] == [i for i in config.moe_layers if i in layers]
            assert [layers[layer] for layer in part.window_layers] == [i for i in config.window_layers if i in layers]
            assert type(part).model_validate(part.model_dump()) == part
            if isinstance(part.attention, GroupedAttention):
                assert (part.attention.window_size is None) == (not part.window_layers)
