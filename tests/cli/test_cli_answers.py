"""With --json commands print what the library answers, as their schema says; in words its text."""

from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from gemm_eval import GEMMEvaluator, GEMMResult, MoeLayer, estimate_model, moe_layers
from tests.cli.commands import Ran, plain

# ---- cli answers -----------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("compiled_kernels")

Answer = Callable[[], Any]


def gemm(**options: Any) -> Answer:
    return lambda: GEMMEvaluator("demo-8core").evaluate(1, 512, 4096, 1024, **options)


def grouped(arch: str, **options: Any) -> Answer:
    return lambda: GEMMEvaluator(arch).evaluate_grouped((120, 3, 0, 17), 512, 256, **options)


def top(first: Answer, count: int, **options: Any) -> Answer:
    return lambda: GEMMEvaluator("demo-8core").top(first().problem, count, **options)


def small(*, allow_idle_cores: bool) -> Answer:
    return lambda: GEMMEvaluator("demo-8core", allow_idle_cores=allow_idle_cores).evaluate(1, 16, 16, 16)


def attention(arch: str, **options: Any) -> Answer:
    sizes: dict[str, Any] = {"batch": 1, "q_len": 1, "kv_len": 4096, "num_heads": 32}
    return lambda: GEMMEvaluator(arch).evaluate_attention(**sizes | options)


def layers(arch: str, **options: Any) -> Answer:
    sizes: dict[str, Any] = {"hidden": 256, "inter": 128, "num_experts": 16, "topk": 4}

    def answer() -> Any:
        table = moe_layers(arch, [MoeLayer(num, **sizes, **options) for num in (8, 64, 512)])
        return {"arch": arch, "model": None, "layers": [result.to_dict() for result in table]}

    return answer


def estimate(**options: Any) -> Answer:
    return lambda: estimate_model("llama-3-8b", "h200-sxm", **options)


def compared(*archs: str) -> Answer:
    return lambda: [GEMMEvaluator(arch).evaluate(1, 512, 4096, 1024) for arch in archs]


GEMM = "evaluate --arch demo-8core 1 512 4096 1024"
GROUPS = "-k 512 -n 256 --rows 120,3,0,17"
ATTENTION, MOE = "--kv 4096 --heads 32", "--tokens 8,64,512 --hidden 256 --inter 128 --experts 16 --topk 4"
MODEL = "model llama-3-8b --arch h200-sxm"
ANSWERS: list[tuple[str, Answer]] = [
    (GEMM, gemm()),
    (f"{GEMM} --dtype w4a16", gemm(dtype="w4a16")),
    (f"{GEMM} --input-dtype bf16", gemm(input_dtype="bf16")),
    (f"{GEMM} --weight-dtype int8", gemm(weight_dtype="int8")),
    (f"{GEMM} --output-dtype fp32", gemm(output_dtype="fp32")),
    (f"{GEMM} --dtype w4a16 --group-size 64", gemm(dtype="w4a16", group_size=64)),
    (f"{GEMM} --dtype w4a16 --group-size -1", gemm(dtype="w4a16", group_size=-1)),
    (f"{GEMM} --dtype w4a16 --zero-dtype fp16", gemm(dtype="w4a16", zero_dtype="fp16")),
    (f"{GEMM} --dtype W4A16_MXFP4", gemm(dtype="w4a16_mxfp4")),
    (f"{GEMM} --dtype w4a16 --scale-dtype float32", gemm(dtype="w4a16", scale_dtype="fp32")),
    (f"{GEMM} --dtype w4a16 --group-n 1", gemm(dtype="w4a16", group_n=1)),
    ("evaluate -n 1024 -k 4096 -m 512 -g 1 --arch demo-8core", gemm()),
    ("evaluate --m 512 --k 4096 --n 1024 --arch demo-8core", gemm()),
    (f"{GEMM} --arch sg2260e --arch ascend-910", compared("demo-8core", "sg2260e", "ascend-910")),
    ("evaluate --arch demo-8core 1 16 16 16", small(allow_idle_cores=True)),
    ("evaluate --arch demo-8core 1 16 16 16 --no-idle-cores", small(allow_idle_cores=False)),
    ("top --arch demo-8core 1 16 16 16 -c 1 --no-idle-cores", small(allow_idle_cores=False)),
    ("top --arch demo-8core 1 512 4096 1024 -c 7", top(gemm(), 7)),
    ("top --arch demo-8core -m 512 -k 4096 -n 1024 --count 7 --distinct partition",
     top(gemm(), 7, distinct="partition")),
    ("top --arch demo-8core 1 512 4096 1024 -c 2 --dtype w4a16 --group-size 64",
     top(gemm(dtype="w4a16", group_size=64), 2)),
    (f"grouped --arch demo-8core {GROUPS}", grouped("demo-8core")),
    ("grouped --arch demo-8core 512 256 --rows 120,3,0,17", grouped("demo-8core")),
    (f"grouped --arch demo-8core {GROUPS} --top 3", top(grouped("demo-8core"), 3)),
    (f"grouped --arch h200-sxm {GROUPS} --dtype w4a16 --group-size 64 --zero-dtype fp16",
     grouped("h200-sxm", dtype="w4a16", group_size=64, zero_dtype="fp16")),
    (f"grouped --arch h200-sxm {GROUPS} --input-dtype bf16 --weight-dtype int8 --output-dtype fp32 --scale-dtype fp32",
     grouped("h200-sxm", input_dtype="bf16", weight_dtype="int8", output_dtype="fp32", scale_dtype="fp32")),
    (f"grouped --arch h200-sxm {GROUPS} --library trtllm --l2 warm --clock sustained --dtype w4a16 --no-correction",
     grouped("h200-sxm", library="trtllm", l2="warm", clock="sustained", dtype="w4a16", correction=False)),
    (f"grouped --arch h200-sxm {GROUPS} --dtype fp8_block --quantize-from bf16",
     grouped("h200-sxm", dtype="fp8_block", quantize_from="bf16")),
    (f"moe --arch h200-sxm {MOE}", layers("h200-sxm")),
    (f"moe --arch demo-8core {MOE} --ep 4 --tp 2 --rank mean", layers("demo-8core", ep=4, tp=2, rank="mean")),
    (f"moe --arch h200-sxm {MOE} --ep 2 --rank 1 --distribution power_law_1.2 --draws 3 --seed 7",
     layers("h200-sxm", ep=2, rank=1, distribution="power_law_1.2", num_draws=3, seed=7)),
    (f"moe --arch h200-sxm {MOE} --dtype fp8_block --no-gate --shared 2 --shared-inter 256",
     layers("h200-sxm", dtype="fp8_block", gated=False, num_shared_experts=2, shared_inter=256)),
]  # fmt: skip
EXPLAINED: list[tuple[str, Answer]] = [
    (f"attention --arch h200-sxm {ATTENTION} --kv-heads 8 --kv-dtype fp8 --dtype bf16 --batch 16",
     attention("h200-sxm", num_kv_heads=8, kv_dtype="fp8", dtype="bf16", batch=16)),
    (f"attention --arch b200 {ATTENTION} --q 4096 --window 128 --head-dim 64",
     attention("b200", q_len=4096, window=128, head_dim=64)),
    (f"attention --arch h200-sxm {ATTENTION} --full --unfused --q 7",
     attention("h200-sxm", causal=False, fused=False, q_len=7)),
    (f"attention --arch a100-sxm-80gb {ATTENTION} --latent --head-dim 576 --v-head-dim 512",
     attention("a100-sxm-80gb", is_latent=True, num_kv_heads=1, head_dim=576, v_head_dim=512)),
    (f"attention --arch demo-8core {ATTENTION}", attention("demo-8core")),
    (f"attention --arch h100-sxm {ATTENTION} --q 4096 --backward", attention("h100-sxm", q_len=4096, backward=True)),
    ("collective --arch h200-sxm all_reduce 1MiB",
     lambda: GEMMEvaluator("h200-sxm").evaluate_collective("all_reduce", 1 << 20, 8)),
    (MODEL, estimate()),
    (f"{MODEL} --batch 8 --prompt 500 --output 32 --dtype w4a16 --kv-dtype fp8",
     estimate(batch=8, prompt_len=500, output_len=32, dtype="w4a16", kv_dtype="fp8")),
    (f"{MODEL} --tp 2 --pp 2 --chunk 256 --speculate 2 --acceptance 0.5",
     estimate(tensor_parallel=2, pipeline_parallel=2, chunk_tokens=256, speculative_tokens=2, acceptance=0.5)),
    (f"{MODEL} --unfused", estimate(fused=False)),
]  # fmt: skip


def document(answer: Any) -> Any:
    if isinstance(answer, GEMMResult):
        answer = [answer]
    if isinstance(answer, list):
        return {"results": [result.to_dict() for result in answer]}
    return answer if isinstance(answer, dict) else answer.to_dict()


@pytest.mark.parametrize(("line", "answer"), ANSWERS + EXPLAINED, ids=[line for line, _ in ANSWERS + EXPLAINED])
def test_json_is_what_the_library_says(line: str, answer: Answer) -> None:
    assert Ran(*line.split(), "--json").json() == plain(document(answer()))


def test_options_change_the_answer() -> None:
    answers = [str(document(answer())) for line, answer in ANSWERS if line.startswith(GEMM)]
    assert len({*answers}) == len(answers) - 1  # group_n 1 is the default of w4a16


@pytest.mark.parametrize(("line", "answer"), EXPLAINED, ids=[line for line, _ in EXPLAINED])
def test_text_is_the_explanation(line: str, answer: Answer) -> None:
    for columns in (80, 200):
        ran = Ran(*line.split(), columns=columns)
        assert (ran.code, ran.err) == (0, "")
        assert max(map(len, ran.out.splitlines())) <= columns
        assert " ".join(ran.out.split()) == " ".join(answer().explain().split())


# ---- cli schema ------------------------------------------------------------------------------------------------------


_MODEL = ("--arch", "h200-sxm", "--prompt", "256")
_SERVE = ("serve", "llama-3-8b", "--arch", "h200-sxm", "--isl", "256", "--osl", "64", "--tp", "1", "--concurrency", "4")


def _schema(*command: str) -> dict[str, Any]:
    schema: dict[str, Any] = Ran("schema", *command).json()
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--arch", "h200-sxm", "1", "16", "4096", "4096"),
        ("evaluate", "--arch", "h200-sxm", "--arch", "demo-8core", "1", "16,64", "4096", "4096"),
        ("attention", "--arch", "h200-sxm", "--kv", "1024", "--heads", "8"),
        ("attention", "--arch", "h200-sxm", "--kv", "1024,2048", "--heads", "8"),
        ("collective", "--arch", "h200-sxm", "all_reduce", "1MiB", "--ranks", "8"),
        ("model", "llama-3-8b", *_MODEL), ("model", "qwen3-30b-a3b", *_MODEL, "--batch", "1,4", "--engine", "vllm"),
        ("model", "llama-3-8b", "--arch", "demo-8core", "--prompt", "64", "--output", "8"),
        _SERVE, (*_SERVE, "--engine", "vllm", "--engine", "sglang"),
        (*_SERVE[:8], "--gpus", "2", "--tpot-ms", "50", "--tp", "1,2"),
        ("train", "llama-3-8b", "--arch", "h100-sxm", "--gpus", "8", "--batch", "8", "--seq-len", "1024"),
        ("moe", "--arch", "h200-sxm", "--tokens", "64", "--model", "qwen3-30b-a3b"),
        ("gemms", "llama-3-8b", "--arch", "h200-sxm"), ("prewarm", "llama-3-8b", "--arch", "h200-sxm"),
        ("kernels", "--arch", "h200-sxm", "64", "4096", "4096"), ("crossover", "4096", "4096", "--arch", "h200-sxm"),
        ("arch", "list"), ("arch", "show", "h200-sxm"), ("arch", "check", "demo-8core"),
    ],
    ids=lambda words: f"{words[0]} {len(words)}",
)  # fmt: skip
def test_documents_of_commands_are_as_their_schema_says(words: tuple[str, ...]) -> None:
    ran = Ran(*words, "--json")
    document, schema = ran.json(), _schema(*words[: 1 + (words[0] == "arch")])
    jsonschema.validate(document, schema)
    first = document["results"] if words[0] == "evaluate" else document
    first = first[0] if isinstance(first, list) else first
    del first[next(name for name in ("arch_name", "model_name", "arch", "archs", "model") if name in first)]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_a_command_without_a_schema_is_refused() -> None:
    assert "command must be one of arch check, arch list" in Ran("schema", "validate", "dense").err
