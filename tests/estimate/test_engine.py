"""Engines as values: what is refused, what wins over what, and what an estimate says of its engine."""

import json

import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.errors import ArchError, GemmEvalError, InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.estimate import (
    IDEAL,
    IN_ATTENTION,
    Engine,
    ModelEstimate,
    default_engine,
    estimate_model,
    list_engines,
    load_engine,
)

H200 = GEMMEvaluator("h200-sxm")


def estimate(engine: Engine | str = IDEAL, *, arch: GEMMEvaluator = H200, **options: object) -> ModelEstimate:
    return estimate_model("llama-3-8b", arch, 8, dtype="fp8", engine=engine, **options)  # type: ignore[arg-type]


def test_engines_load_by_name_and_path_and_keep_their_sources(tmp_path) -> None:
    assert set(list_engines()) == {"ideal", "vllm", "sglang", "trtllm"}
    for name in list_engines():
        engine = load_engine(name)
        assert load_engine(engine) is engine
        assert str(engine).split()[0] == name
    assert load_engine("vllm").provenance["step_us"].kind == "fitted"
    path = tmp_path / "mine.yaml"
    path.write_text("step_us: {value: 250, kind: measured, source: a profile}\nchunk_tokens: 2048\n")
    engine = load_engine(path)
    assert (engine.name, engine.step_us, engine.chunk_tokens) == ("mine", 250.0, 2048)
    assert engine.provenance["step_us"].source == "a profile"


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ({"step": 1}, "step is not a field, did you mean step_us"),
        ({"step_us": -1.0}, "step_us must be >= 0.0, got -1.0"),
        ({"seq_us": "fast"}, "seq_us must"),
        ({"fusions": {"everything": True}}, "fusions must be one of residual_norm"),
        ({"gemm_library": "blas"}, "library must be one of cublas"),
        ({"expert_libraries": {"sm_90": ["tritn"]}}, "did you mean triton"),
        ({"attention_library": "flash3"}, "attention_library must be one of trtllm"),
        ({"gemm_frac": {"sm_100": {"fp5": 0.5}}}, "gemm_frac must be one of"),
        ({"chunk_tokens": 0}, "chunk_tokens must be >= 1, got 0"),
    ],
)
def test_bad_values_are_refused_with_the_file_and_what_is_allowed(field, text, tmp_path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(json.dumps(field))
    with pytest.raises(ArchError, match=r"bad\.yaml") as caught:
        load_engine(path)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "kind", "text"),
    [
        ("vlm", InvalidOptionError, "did you mean vllm"),
        (3, InvalidInputError, "engine must be an Engine, its name or path, got 3"),
        ("there/is/none.yaml", ArchError, "none.yaml"),
    ],
)
def test_what_is_no_engine_is_refused(engine, kind: type[GemmEvalError], text) -> None:
    with pytest.raises(kind, match=text):
        estimate_model("llama-3-8b", H200, engine=engine)


def test_engines_are_of_gpus() -> None:
    for engine, arch, makers in (
        ("trtllm", "mi300x", "NVIDIA GPUs"),
        ("vllm", "demo-8core", "NVIDIA and AMD GPUs"),
    ):
        with pytest.raises(UnsupportedError, match=f"engine {engine} is known on {makers} alone"):
            estimate_model("llama-3-8b", arch, engine=engine)
    assert default_engine(H200.arch) == "trtllm"
    assert default_engine(GEMMEvaluator("demo-8core").arch) == "ideal"


def test_host_times_add_to_kernels() -> None:
    host = Engine(name="host", step_us=700.0, seq_us=11.0, request_us=5000.0)
    plain, hosted = estimate(prompt_len=5000, chunk_tokens=2048), estimate(host, prompt_len=5000, chunk_tokens=2048)
    assert hosted.tpot_us - plain.tpot_us == pytest.approx(700.0 + 8 * 11.0)
    assert hosted.ttft_us - plain.ttft_us == pytest.approx(5000.0 + 3 * 711.0)
    assert hosted.decode.latency_us - sum(hosted.decode.stage_us) == hosted.decode.host_us == pytest.approx(788.0)
    low_us, high_us = hosted.decode.interval_us
    assert low_us < hosted.decode.latency_us < high_us
    assert plain == estimate("ideal", prompt_len=5000, chunk_tokens=2048)


def test_an_engine_chooses_kernels_and_options_win_over_it() -> None:
    of_experts = Engine(name="x", expert_libraries={"sm_90": ("cutlass",)})

    def experts(**options: object) -> str:
        result = estimate_model("qwen3-30b-a3b", H200, **options)  # type: ignore[arg-type]
        return next(cost.how for cost in result.decode.costs if cost.operation.kind == "moe")

    assert experts(engine=of_experts) == "cutlass"
    assert experts(engine=of_experts, expert_library="triton") == "triton"
    assert estimate(Engine(name="x", chunk_tokens=512)).options["chunk_tokens"] == 512
    assert estimate(Engine(name="x", chunk_tokens=512), chunk_tokens=256).options["chunk_tokens"] == 256
    slow, fast = (estimate(arch=H200.preferring(clock=clock), prompt_len=8192) for clock in ("sustained", "burst"))
    sustained = Engine(name="x", clock="sustained")
    assert estimate(sustained, prompt_len=8192).ttft_us == slow.ttft_us > fast.ttft_us
    assert estimate(sustained, arch=H200.preferring(clock="burst"), prompt_len=8192).ttft_us == fast.ttft_us


def test_other_tactics_and_kernels_of_their_own_change_their_operations_alone() -> None:
    base = {cost.operation.name: cost for cost in estimate().decode.costs}
    faster = {c.operation.name: c for c in estimate(Engine(name="x", gemm_frac={"sm_90": {"fp8": 0.5}})).decode.costs}
    other = {c.operation.name: c for c in estimate(Engine(name="x", gemm_frac={"sm_100": {"fp8": 0.5}})).decode.costs}
    apart = {cost.operation.name: cost for cost in estimate(Engine(name="x", writes_cache=False)).decode.costs}
    switch_us = H200.switch_us(8)
    assert faster["o_proj"].latency_us - switch_us == pytest.approx(0.5 * (base["o_proj"].latency_us - switch_us))
    assert {name for name in base if base[name] != faster[name]} == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert other == base
    assert base["rotary_kv_write"].bound == IN_ATTENTION
    assert apart["rotary_kv_write"].latency_us > 0.0
    assert {name for name in base if base[name] != apart[name]} == {"rotary_kv_write"}


def test_estimates_say_their_engine() -> None:
    result = estimate("vllm")
    assert "Engine: vllm" in result.explain()
    assert "host" in result.explain()
    assert "Engine" not in estimate().explain()
    data = result.to_dict()
    assert data["options"]["engine"] == str(load_engine("vllm"))
    assert data["engine"]["provenance"]["step_us"]["kind"] == "fitted"
    assert data["decode"]["host_us"] == result.decode.host_us > 0.0
    json.dumps(data)
