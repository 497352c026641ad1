"""What commands refuse: one line on stderr, or with --json one document, that say what is wrong; and exit codes."""

import json
import re
import shlex

import pytest

from gemm_eval.models.gpu.families import GENERIC
from gemm_eval.models.gpu.w4a16.coefficients import PACKED_SETS
from tests.cli.commands import Ran
from tests.cli.test_cli_words import COMMANDS, ran

DEMO = "--arch demo-8core 1 512 4096 1024"
GROUPS = "grouped --arch demo-8core -k 512 -n 256 --rows 120,3,0,17"
ATTENTION = "attention --arch h200-sxm --kv 4096 --heads 32"
REDUCE = "collective --arch h200-sxm all_reduce"
LAYER = "moe --arch demo-8core --tokens 8 --hidden 256 --inter 128 --experts 16 --topk 4"
LIST = "kernels --arch h200-sxm"
LLAMA = "llama-3-8b --arch demo-8core"
OF_MODELS = [  # of `gemms` and of `prewarm`
    (2, "ModelConfigError", "llama-9 --arch demo-8core", "did you mean"),
    (2, "ModelConfigError", "no-such/config.json --arch demo-8core", "no-such"),
    (2, "ArchNotFoundError", "llama-3-8b --arch demo-8cor", "did you mean demo-8core"),
    (2, "InvalidOptionError", f"{LLAMA} --batch 0", "--batch must be whole numbers >= 1"),
    (2, "InvalidOptionError", f"{LLAMA} --batch 1.5", "got '1.5'"),
    (2, "InvalidOptionError", f"{LLAMA} --seq-len -5", "--seq-len must be"),
    (2, "InvalidProblemError", f"{LLAMA} --dtype w5a16", "dtype must be one of"),
    (2, "UsageError", "llama-3-8b", "--arch"),
    (2, "UsageError", "--arch demo-8core", "Missing argument"),
    (2, "UsageError", f"{LLAMA} --phase forward", "--phase"),
    (2, "UsageError", f"{LLAMA} --layers 1", "--layers"),
]
TYPED = [  # as text, and with --json
    *((code, kind, f"{name} {line}", said) for name in ("gemms", "prewarm") for code, kind, line, said in OF_MODELS),
    (2, "UsageError", "evaluate --arch demo-8core -4 1 1 1", "No such option: -4; a size is an integer >= 1"),
    (2, "UsageError", "evaluate 1 512 4096 1024", "--arch"),
    (2, "UsageError", f"evaluate {DEMO} --dtyp w4a16", "No such option: --dtyp, did you mean --dtype?"),
    (2, "UsageError", f"top {DEMO} -c ten", "-c"),
    (2, "UsageError", f"top {DEMO} --distinct tile", "--distinct"),
    (2, "UsageError", "evlauate", "evlauate"),
    (2, "InvalidProblemError", "top --arch demo-8core 1 0 1 1", "M must be in 1..2**40, got 0"),
    (2, "InvalidProblemError", "evaluate --arch demo-8core 1 1 4096.0 1", "K must be an integer >= 1, got '4096.0'"),
    (2, "InvalidProblemError", "evaluate --arch demo-8core 1 1 1 4q", "N must be an integer >= 1, got '4q'"),
    (2, "InvalidProblemError", f"evaluate --arch demo-8core 1 1 1 {'9' * 30}", "N must be in 1..2**40, got a number"),
    (2, "InvalidProblemError", f"evaluate {DEMO} --dtype fp61", "dtype must be one of"),
    (2, "InvalidMappingError", f"evaluate {DEMO} --mapping 1,4,2/256", "--mapping must be P_G,P_M"),
    (2, "InvalidMappingError", f"evaluate {DEMO} --mapping 9,1,1,1/16,16,16/mnk", "<= num_cores"),
    (2, "InvalidOptionError", f"top {DEMO} -c 0", "k must be an integer in 1..10000, got 0"),
    (2, "InvalidOptionError", "evaluate --arch demo-8core 1 1 1", "sizes are G M K N, or by name -m M -k K"),
    (2, "ArchNotFoundError", "evaluate --arch demo-8cor 1 512 4096 1024", "did you mean demo-8core"),
    (2, "ArchNotFoundError", "arch check nowhere.yaml", "nowhere.yaml"),
    (3, "UnsupportedError", "evaluate --arch tpu-v4 1 512 4096 1024 --dtype fp32", "tpu-v4 cannot multiply fp32"),
    (2, "InvalidOptionError", "moe --arch demo-8core --tokens 8", "give --hidden, --inter, --experts, --topk, or --"),
    (2, "InvalidOptionError", "moe --arch demo-8core --tokens 8 --hidden 256 --inter 9", "give --experts, --topk, or"),
    (2, "InvalidOptionError", LAYER.replace("--tokens 8", "--tokens 8,x"), "got 'x' in '8,x'"),
    (2, "InvalidOptionError", LAYER.replace("--tokens 8", "--tokens 0"), "--tokens must be whole numbers >= 1"),
    (2, "InvalidOptionError", "moe --arch demo-8core --tokens 8 --model llama-3-8b", "has no layers with experts"),
    (2, "UsageError", LAYER.replace("--tokens 8", ""), "--tokens"),
    (2, "UsageError", f"{LAYER} --expert 4", "--experts"),
    (3, "UnsupportedError", f"{LAYER} --l2 warm", "demo-8core"),
]
REFUSED = [  # as text
    # grouped, attention, collective, model
    (2, f"{GROUPS} --top 3 --arch h200-sxm", "--top ranks the mappings of one --arch, got 2"),
    (2, f"{GROUPS} --top 3 --explain", "--top does not go with --explain"),
    (2, f"{GROUPS} --mapping 1,1,1,1/1,1,1/mnk --top 3", "--mapping does not go with --top"),
    (2, f"{GROUPS} -k 3", "-k is given 2 times"),
    (3, f"{GROUPS} --l2 warm", "l2 is for GPUs"),
    *((2, GROUPS.replace(part, ""), part.split()[0]) for part in ("-k 512", "-n 256", "--rows 120,3,0,17")),
    (2, GROUPS.replace("--arch demo-8core", ""), "--arch"),
    (2, "collective --arch h200-sxm gather 1MiB", "did you mean all_gather?"),
    (2, f"{REDUCE} 1MiB --ranks x", "--ranks must be whole numbers >= 1 such as"),
    (2, f"{REDUCE} 1..4096:1 --ranks 2,4,8", "at most 10,000 combinations of SIZE and --ranks at once, got 12,288"),
    (2, "model llama-3-8b --arch h200-sxm --batch 1,x", "--batch must be whole numbers >= 1 such as 16, 1,4,16, "),
    (2, "model llama-3-8b --arch h200-sxm --prompt 0", "--prompt must be whole numbers >= 1"),
    (2, f"model {LLAMA} --ep 2", "expert_parallel is for models with experts"),
    # what has no effect
    (2, f"evaluate {DEMO} --mapping 1,1,1,1/16,16,16/mnk --no-idle-cores", "--mapping does not go with --idle-cores"),
    (2, "evaluate --arch demo-8core 1 1,2 8 8 --mapping 1,1,1,1/16,16,16/mnk",
     "several GEMMs does not go with --mapping"),
    (2, "evaluate --arch demo-8core 1 1,2 8 8 --explain", "several GEMMs does not go with --explain"),
    (2, "evaluate --arch h200-sxm 1 64 64 64 --no-idle-cores", "allow_idle_cores must be True for a GPU"),
    (2, "crossover --all --measured --max-m 64", "--all does not go with --max-m; it goes with --arch, --group-size"),
    (2, "crossover 4096 4096 --all --measured", "--all does not go with K N"),
    (2, "crossover --all", "--all goes with --measured"),
    (2, "crossover 4096", "sizes are K N, or by name -k K -n N; got 1: 4096"),
    (2, "crossover 4096 4096 --measured --l2 warm", "--measured goes with --l2 cold"),
    (2, "crossover 4096 12280 --measured", "the nearest that were: K=4096 N=12288"),
    (2, "crossover 4096 4096 --dense-dtype fp8", "dense_dtype must be one of"),
    (2, "measure --out x --list --kernel w4a16 --random 3", "without --top, does not go with --random"),
    (2, "measure --out x --list --kernel w4a16 --no-trace", "--kernel w4a16 does not go with --trace"),
    (2, "measure --out x --list --set batched --dtype fp8", "--set batched has no GEMMs of --dtype fp8"),
    (2, "measure --out x --list --pool-gib nan", "--pool-gib must be a positive number, got nan"),
    (2, "report FOLDER --tp 1", "FOLDER does not go with --tp; it goes with --out"),
    (2, "pareto FOLDER --explain 1 --limit 2", "--explain does not go with --limit; it goes with FOLDER"),
    (2, "report --gemm 1,2,3 --arch demo-8core --arch sg2260", "--gemm is G,M,K,N, four integers"),
    (2, "report --gemm 1,2,3,4 --arch demo-8core", "two or more archs"),
    (2, "report --gemm 1,2,3,4 --arch demo-8core --arch sg2260 --tp 2", "does not go with --tp"),
    # validate and calibrate
    (2, "validate collective --arch t4", "gpu must be one of"),
    (2, "validate collective --hold-out points", "hold-out must be one of"),
    (2, "validate dense --ablation", "No such option: --ablation, which is one of gemm-eval validate w4a16"),
    (2, "validate dense --data cublas/fp16 --library cublas", "--library and --dtype go with --data FILE"),
    (2, "calibrate collective --arch t4", "no timings of collectives"),
    (2, "calibrate dense --arch h200-sxm --family sm90_wgmma --dtype fp16", "--dtype goes with --data FILE"),
    (2, "calibrate dense --arch h200-sxm --family cublas", "--family must be one of sm90_wgmma, sm80_mma"),
    (2, "validate dense --arch sg2260", "type must be gpu"),
    (2, "validate dense --data nix", "no timings named 'nix'"),
    (2, "validate dense --data none.csv", "cannot read timings from none.csv"),
    (2, "validate dense --arch l4", "no timings of l4 are committed"),
    (2, "calibrate dense --arch h200-sxm --family sm90_wgmma --library gemm-eval",
     "--library must be one of cublas, trtllm, aiter, hipblaslt, got 'gemm-eval'"),
    (2, "calibrate dense --arch h200-sxm --family w4a16_sm90", f"one of {', '.join(GENERIC)}, got 'w4a16_sm90'"),
    (2, "calibrate dense --arch l40s --family sm90_wgmma", "does not run on l40s, which is sm_89"),
    (2, "calibrate dense --arch l4 --family sm80_mma", "no cold burst timings of cublas on"),
    (2, "calibrate dense --arch h200-sxm --family sm90_wgmma --library trtllm --data aiconfigurator/float16",
     "must be timings of trtllm on h200-sxm, got aiconfigurator/float16"),
    (2, "calibrate w4a16 --arch h200-sxm --family sm90_wgmma",
     f"--family must be one of {', '.join(PACKED_SETS)}, got 'sm90_wgmma'"),
    (2, "calibrate w4a16 --arch a100-sxm-80gb --family w4a16_sm90", "which is sm_80"),
    (2, "validate w4a16 --ablation --no-fit", "--ablation fits"),
    (2, "validate w4a16 --arch l4", "no timings of W4A16 kernels on l4"),
    (2, "validate triton --data a.parquet --data b.parquet", "--data is given 2 times"),
    (2, "calibrate w4a16 --arch h200-sxm --family w4a16_sm90 --dtype fp16",
     "No such option: --dtype, which is one of gemm-eval calibrate dense"),
    (2, "calibrate triton --arch h200-sxm --library cublas",
     "No such option: --library, which is one of gemm-eval calibrate dense, correction, attention, memory-bound and "
     "mixers; see gemm-eval calibrate triton"),
    # kernels, beside other engines too, and profile
    (3, "kernels --arch sg2260e", "W4A16 kernels need an NVIDIA GPU, sg2260e is none"),
    (2, f"{LIST} -m 4", "-k and -n must be given, too: sizes by name are -m M -k K -n N"),
    (2, f"{LIST} -m 4 -k 60 -n 64", "K must be a positive multiple of 8"),
    (2, f"{LIST} 4 64", "sizes are M K N, or by name -m M -k K -n N; got 2: 4 64"),
    (2, f"{LIST} 4 64 64 -n 8", "sizes are M K N or have names, never both"),
    (2, f"{LIST} --family cutlass", "--family must be one of w4a16_gemv,"),
    (2, f"{LIST} --measured --compile", "--measured does not go with --compile; it goes with"),
    (2, f"{LIST} --measured --activation bf16", "no timings of our kernels with bf16 activations on"),
    (2, "kernels --mode column", "Missing option '--arch'"),
    (2, "profile 1 4096", "sizes are M K N, or by name -m M -k K -n N; got 2: 1 4096"),
    (2, "profile 1 4096 4096 --k 64", "sizes are M K N or have names, never both: got 1 4096 4096 and -k"),
    (2, "profile 1 4096 4100", "N must be a multiple of 8, at least 8, got 4100"),
    (2, "profile 1 4096 4096 --group-size 16", "--group-size must be 32, 64, 128 or -1, got 16"),
    (2, "profile 1 64 64 --group-size -1 --zero-points", "128 with --zero-points, got -1"),
    # files
    (2, "configs list none.json", "there is no file none.json"),
    (2, "configs merge none.json -o x", "there is no file none.json"),
    (2, "configs build none.parquet -o x", "timings need their meta file"),
    (2, "configs build --arch l4 -o x", "the package has no timings of our kernels on l4"),
    # mistyped words
    (2, "evalute 1 1 1 1", "No such command 'evalute', did you mean evaluate"),
    (2, "validate tritn", "No such command 'tritn', did you mean triton?; see gemm-eval validate --help"),
    (2, "--verson", "No such option: --verson, did you mean --version?"),
    (2, "evaluate --arch demo-8core -- -4 1 1 1", "G must be in 1..2**40, got -4"),
    (2, "zzzz", "No such command 'zzzz'; see gemm-eval --help"),
]  # fmt: skip


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize(("code", "kind", "line", "message"), TYPED, ids=[f"{line[2]}"[:60] for line in TYPED])
def test_an_error_is_one_line_on_stderr_or_one_document(code: int, kind: str, line: str, message: str) -> None:
    text, as_json = Ran(*line.split()), Ran(*line.split(), "--json")

    assert (text.code, text.out, as_json.code, as_json.out) == (code, "", code, "")
    assert re.fullmatch(r"error: [^\n]+\n", text.err)
    assert message in text.err
    error = json.loads(as_json.err)["error"]
    assert error["type"] == kind
    assert message in error["message"]


@pytest.mark.usefixtures("compiled_kernels")
def test_what_is_refused() -> None:
    for code, line, message in REFUSED:
        found = ran(shlex.split(line))
        assert found[:2] == (code, ""), f"{line}: {found}"
        assert message in found[2], f"{line}: {found[2]}"
        assert found[2].count("\n") == 1, line
        assert found[2].startswith("error: "), line


def test_a_mistyped_arch_is_understood_by_every_command() -> None:
    with_arch = [
        path for path, command in COMMANDS.items() if any("--arch" in option.opts for option in command.params)
    ]
    assert len(with_arch) > 20
    for path in with_arch:
        for word in ("--arhc", "-arch", "--arhc=h200-sxm"):
            code, out, err = ran(f"{path} {word} h200-sxm")
            assert (code, out, err.count("\n")) == (2, "", 1), path
            assert f"No such option: {word.partition('=')[0]}, did you mean --arch" in err, (path, err)
