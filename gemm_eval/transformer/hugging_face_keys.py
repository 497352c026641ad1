"""Safe reading of `config.json`: typed access to keys, with messages that name key and file, and parts of models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gemm_eval.errors import ModelConfigError
from gemm_eval.storage import read_bounded
from gemm_eval.transformer.parts import layers_text
from gemm_eval.words import one_line, shown

_MAX_FILE_BYTES = 1 << 22
_MAX_DEPTH = 32
_MAX_SIZE = 1 << 24


_REQUIRED: Any = object()  # the default of a key that has none


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON file whose top level is an object."""
    raw = read_bounded(path, _MAX_FILE_BYTES, "config", unreadable=ModelConfigError, too_large=ModelConfigError)
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ModelConfigError(f"{path}: nested deeper than {_MAX_DEPTH} levels") from None
    except ValueError as error:  # JSON and Unicode errors, integers too long to convert, the refusals below
        raise ModelConfigError(f"{path}: not a readable JSON config: {one_line(str(error))}") from error
    if not isinstance(data, dict):
        raise ModelConfigError(f"{path}: the top level must be an object of keys, got {type(data).__name__}")
    _check_depth(data, path)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, value in pairs:
        if name in data:
            raise ValueError(f"{shown(name)} is given twice")
        data[name] = value
    return data


def _finite(text: str) -> float:
    value = float(text)  # "Infinity" and "NaN" too, which are words of Python's JSON
    if not math.isfinite(value) and text != "Infinity":  # which says that there is no limit (time_step_limit)
        raise ValueError(f"{shown(text)} is no number, or too large a one")
    return value


def _check_depth(data: Any, path: Path) -> None:
    level = [data]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ModelConfigError(f"{path}: nested deeper than {_MAX_DEPTH} levels")


class Keys:
    """Typed access to the keys of one config. A key that is null counts as missing, as it does for its writers.

    Every method raises `ModelConfigError`, naming key and file, for a value of the wrong type or range, and for a
    missing key that has no default.
    """

    def __init__(self, data: Mapping[str, Any], origin: str) -> None:
        self._data = data
        self._seen: set[str] = set()
        self.origin = origin

    def size(self, key: str, default: int = _REQUIRED, *, at_least: int = 1, at_most: int = _MAX_SIZE) -> int:
        """Return an integer in a range."""
        value = self._value(key, default)
        if type(value) is not int or not at_least <= value <= at_most:
            self.refuse(key, f"must be an integer in {at_least}..{at_most}")
        return int(value)

    def count(self, key: str, default: int = _REQUIRED) -> int:
        """Return an integer of at least 0."""
        return self.size(key, default, at_least=0)

    def optional_size(self, key: str) -> int | None:
        """Return an integer of at least 1, or None if the key is missing."""
        return None if self._get(key) is None else self.size(key)

    def item(self, key: str) -> Any:
        """Return a value of any type; None: there is none."""
        return self._get(key)

    def names(self) -> tuple[str, ...]:
        """Return all keys that are there."""
        return tuple(self._data)

    def fraction(self, key: str, default: float) -> float:
        """Return a number above 0, of at most 1."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not 0 < value <= 1:
            self.refuse(key, "must be a number above 0, of at most 1")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "must be true or false")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Return a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self.refuse(key, "must be a string")
        return value

    def items(self, key: str, item_type: type) -> list[Any] | None:
        """Return a list whose items are all of `item_type`, or None if the key is missing."""
        value = self._get(key)
        if value is not None and not (isinstance(value, list) and all(type(item) is item_type for item in value)):
            self.refuse(key, f"must be a list of {item_type.__name__}")
        return value

    def part(self, key: str) -> Keys:
        """Return the keys of an object inside."""
        value = self._value(key, _REQUIRED)
        if not isinstance(value, dict):
            self.refuse(key, "must be an object of keys")
        return Keys(value, f"{self.origin}: {key}")

    def over(self, outer: Keys, names: Iterable[str], defaults: Mapping[str, Any]) -> Keys:
        """Return these keys with those of `names` that only `outer` has, and with `defaults` where neither has one."""
        for name in names:
            outer._seen.add(name)
        inherited = {name: outer._data[name] for name in names if outer._data.get(name) is not None}
        own = {name: value for name, value in self._data.items() if value is not None or name not in defaults}
        return Keys({**defaults, **inherited, **own}, self.origin)

    def ignore(self, *names: str) -> None:
        """Take `names` for read: the architecture does not read them, or they follow from others."""
        self._seen.update(names)

    def refuse_rest(self, known: Iterable[str]) -> None:
        """Refuse the first key that was not read and is not `known`, unless it switches nothing on."""
        for name, value in self._data.items():
            if name not in self._seen and name not in known and value:
                rule = "is not a key that is known here: it may change sizes or operations; take it out if it does not"
                self.refuse(name, rule)

    def require(self, *names: str) -> None:
        """Check that all `names` are there, null or not: for keys whose default differs from null."""
        for name in names:
            self._seen.add(name)
            if name not in self._data:
                self._value(name, _REQUIRED)

    def refuse(self, key: str, rule: str) -> NoReturn:
        """Raise the error that the value of `key` breaks `rule`."""
        raise ModelConfigError(f"{key} {rule}, got {shown(self._data.get(key))} ({self.origin}: {key})")

    def __contains__(self, key: str) -> bool:
        return self._get(key) is not None

    def _get(self, key: str) -> Any:
        self._seen.add(key)
        return self._data.get(key)

    def _value(self, key: str, default: Any) -> Any:
        value = self._get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelConfigError(f"{key} must be given ({self.origin}: {key})")
        return default


Fields = dict[str, Any]
"""Fields of a `ModelConfig` or of a part of it, not validated yet."""

_MAX_LAYERS = 1 << 16


def num_layers(keys: Keys) -> int:
    """`num_hidden_layers`."""
    return keys.size("num_hidden_layers", at_most=_MAX_LAYERS)


def sizes(keys: Keys, *, tied: bool = False) -> Fields:
    """Return the fields whose keys most architectures share; `tied`: the default of `tie_word_embeddings`."""
    return {
        "hidden_size": keys.size("hidden_size"), "num_layers": num_layers(keys), "vocab_size": keys.size("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=tied),
    }  # fmt: skip


def head_dim(keys: Keys, hidden_key: str = "hidden_size", heads_key: str = "num_attention_heads") -> int:
    """Return the size of a head where the architecture derives it: hidden size over heads."""
    hidden, heads = keys.size(hidden_key), keys.size(heads_key)
    if hidden % heads:
        keys.refuse(heads_key, f"must divide {hidden_key} = {hidden}, as no head_dim is given")
    return hidden // heads


def some(layers: Iterable[int], num: int) -> str | None:
    """Return some of `num` layers as text; None: all or none, which needs no saying."""
    result = sorted(layers)
    return layers_text(result) if 0 < len(result) < num else None


def kv_heads(keys: Keys, default: int | None = None) -> int:
    """`num_key_value_heads`, which divide the query heads."""
    heads = keys.size("num_attention_heads")
    result = keys.size("num_key_value_heads") if default is None else keys.size("num_key_value_heads", default)
    if heads % result:
        keys.refuse("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    return result


def rotary_dim(keys: Keys, size: int) -> int | None:
    """Elements of a head of `size` that turn, where the file says that not all do."""
    factor = keys.fraction("partial_rotary_factor", 1.0)
    if "rope_parameters" in keys:
        factor = keys.part("rope_parameters").fraction("partial_rotary_factor", factor)
    return None if factor == 1 else int(size * factor)


def layers_of_type(keys: Keys, kind: str) -> list[int] | None:
    """Layers that `layer_types` says are of a kind, not full attention; None: it is not given."""
    types = keys.items("layer_types", str)
    if types is None:
        return None
    if len(types) != num_layers(keys) or not set(types) <= {"full_attention", kind}:
        keys.refuse("layer_types", f"must be {num_layers(keys)} times full_attention or {kind}")
    return [layer for layer, word in enumerate(types) if word == kind]


def _window_layers(keys: Keys, rule: str) -> Iterable[int]:
    """Return the layers with a window where one is given but no layer_types, by an architecture's own rule."""
    layers = num_layers(keys)
    if rule == "all":
        return range(layers)
    if rule == "even":  # every other layer, from the first on; the window must be given
        keys.size("sliding_window")
        return range(0, layers, 2)
    if rule == "qwen":  # the upper layers, from max_window_layers on, and only if use_sliding_window says so
        is_used = keys.flag("use_sliding_window", default=False)
        return range(keys.count("max_window_layers"), layers) if is_used else ()
    if rule == "gemma3":  # all but each sliding_window_pattern-th
        keys.size("sliding_window")
        keys.ignore("_sliding_window_pattern", "sliding_window_pattern")
        if "layer_types" not in keys:
            name = "_sliding_window_pattern" if "_sliding_window_pattern" in keys else "sliding_window_pattern"
            period = keys.size(name)
            return [layer for layer in range(layers) if (layer + 1) % period]
    return ()


def attention(
    keys: Keys, *, windows: str = "", biases: Sequence[str] = (), derives_kv_heads: bool = False, **options: Any
) -> Fields:
    """Return grouped attention from the usual keys.

    `windows` is a rule of `_window_layers`, `biases` are those that `attention_bias` switches on; `derives_kv_heads`:
    none given means one a head. `options` are other fields.
    """
    heads = keys.size("num_attention_heads")
    num_kv_heads = kv_heads(keys, heads if derives_kv_heads else None)
    layers, usual = num_layers(keys), tuple(_window_layers(keys, windows))
    listed = layers_of_type(keys, "sliding_attention")
    with_window = tuple(listed) if listed is not None else usual if "sliding_window" in keys else ()
    size = keys.size("head_dim") if "head_dim" in keys else head_dim(keys)
    return {
        "kind": "gqa", "num_heads": heads, "num_kv_heads": num_kv_heads, "head_dim": size,
        "window_size": keys.size("sliding_window") if with_window else None, "num_window_layers": len(with_window),
        "window_layers": some(with_window, layers), "rotary_dim": rotary_dim(keys, size), **biases_of(keys, biases),
        **options,
    }  # fmt: skip


QKV_BIAS = ("qkv_bias",)
ALL_BIASES = ("qkv_bias", "output_bias")
"""Biases that `attention_bias` switches on: of most architectures these; of GLM those of queries, keys and values."""


def biases_of(keys: Keys, names: Sequence[str]) -> Fields:
    """Return fields of biases as `attention_bias` says."""
    return dict.fromkeys(names, keys.flag("attention_bias", default=False)) if names else {}


def experts_of(
    keys: Keys, layers: Iterable[int], num_key: str, width_key: str, chosen_key: str = "num_experts_per_tok", *,
    shared_key: str = "", **more: Any,
) -> Fields | None:  # fmt: skip
    """Return the experts of some layers, shared ones as many as `shared_key` says; None: no layers."""
    result = tuple(layers)
    if not result:
        keys.ignore(num_key, chosen_key, width_key)
        return None
    if shared_key:
        more["num_shared_experts"] = keys.count(shared_key, 0)
    return {
        "num_layers": len(result), "layers": some(result, num_layers(keys)), "num_experts": keys.size(num_key),
        "experts_per_token": keys.size(chosen_key), "intermediate_size": keys.size(width_key), **more,
    }  # fmt: skip


def groups_of(keys: Keys) -> Fields:
    """Return the groups among which a token chooses before experts, and how many it takes; by default all."""
    groups = keys.size("n_group", 1)
    return {"num_groups": groups, "groups_per_token": min(groups, keys.size("topk_group", groups))}


def dense_ffn(keys: Keys, moe: Fields | None, key: str = "intermediate_size") -> Fields | None:
    """Return the gated network of the layers without experts; None: all have them."""
    if moe is not None and moe["num_layers"] == num_layers(keys):
        keys.ignore(key)
        return None
    return {"intermediate_size": keys.size(key), "has_bias": False}


def qwen_experts(keys: Keys, *, has_shared: bool = False) -> Fields:
    """Return experts in every `decoder_sparse_step`-th layer, with a shared one or not, and the other layers' FFN."""
    width = keys.size("shared_expert_intermediate_size") if has_shared else None
    shared: Fields = {"num_shared_experts": 1, "shared_intermediate_size": width, "shared_gate": True}
    step = keys.size("decoder_sparse_step", 1)
    dense = set(keys.items("mlp_only_layers", int) or ())
    layers = [layer for layer in range(num_layers(keys)) if (layer + 1) % step == 0 and layer not in dense]
    moe = experts_of(keys, layers, "num_experts", "moe_intermediate_size", **(shared if has_shared else {}))
    return {"moe": moe, "ffn": dense_ffn(keys, moe)}


def latent_attention(keys: Keys) -> Fields:
    """Return latent attention."""
    keys.require("q_lora_rank")
    keys.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    dims = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {
        "kind": "mla", "num_heads": keys.size("num_attention_heads"), "q_lora_rank": keys.optional_size("q_lora_rank"),
        **{key: keys.size(key) for key in dims},
    }  # fmt: skip
