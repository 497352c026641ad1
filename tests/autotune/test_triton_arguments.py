"""A Triton kernel's arguments become a GEMM and a config; what does not fit is an error that says what there is."""

from types import SimpleNamespace
from typing import Any

import pytest

from gemm_eval import GemmProblem
from gemm_eval.autotune.triton import KernelArguments, TensorArgument
from gemm_eval.autotune.triton.arguments import dtype_of
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.models.gpu.triton import TritonConfig
from tests.autotune.fake_triton import tensors

CONFIG = {
    "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8, "SPLIT_K": 2,
    "num_warps": 8, "num_stages": 4, "num_ctas": 1,
}  # fmt: skip


def values(dtype: str = "fp16", **more: Any) -> dict[str, Any]:
    return {**tensors(dtype), "M": 16, "N": 4096, "K": 8192, **CONFIG, **more}


def test_defaults_are_those_of_the_example() -> None:
    arguments = KernelArguments()

    assert arguments.problem(values()) == GemmProblem(1, 16, 8192, 4096, input_dtype="fp16", output_dtype="fp16")
    assert arguments.config(values()) == TritonConfig(64, 128, 32, 8, 4, group_m=8, split_k=2)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("torch.float16", "fp16"), ("torch.bfloat16", "bf16"), ("torch.float8_e4m3fn", "fp8"), ("fp8e5", "fp8"),
        ("torch.int8", "int8"), ("float16", "fp16"), ("torch.float32", "tf32"),
    ],
)  # fmt: skip
def test_types_of_torch_and_triton(name: str, dtype: str) -> None:
    problem = KernelArguments(c=None).problem(values(name))

    assert (problem.input_dtype, problem.weight_dtype) == (dtype, dtype)
    assert dtype_of(SimpleNamespace(base=SimpleNamespace(dtype=name))) == dtype  # a TensorDescriptor
    assert dtype_of(name) == dtype


def test_w4a16_from_packed_weights() -> None:
    arguments = KernelArguments(b="w_ptr", weight_dtype="int4", group_size="GROUP_SIZE", zero_dtype="int4")
    call = values("bf16", GROUP_SIZE=64)
    del call["b_ptr"]

    assert arguments.problem(call) == GemmProblem(
        1, 16, 8192, 4096, input_dtype="bf16", weight_dtype="int4", output_dtype="bf16", group_size=64,
        zero_dtype="int4",
    )  # fmt: skip
    assert arguments.problem({**call, "GROUP_SIZE": -1}).group_size is None


def test_packed_weights_need_their_type() -> None:
    call = values() | {"b_ptr": TensorArgument("uint8")}

    with pytest.raises(InvalidOptionError, match=r"b \('b_ptr'\) is of type uint8.*give weight_dtype, one of .*int4"):
        KernelArguments().problem(call)


def test_numbers_and_functions_instead_of_names() -> None:
    arguments = KernelArguments(
        M=lambda v: v["rows"] * 2, N=512, G="batch", block_k=64, group_m=None, split_k=None,
        num_stages="DEPTH", input_dtype="fp16", c=None,
    )  # fmt: skip
    call = values(rows=8, batch=3, DEPTH=5)
    del call["a_ptr"], call["GROUP_M"], call["SPLIT_K"], call["num_stages"]

    assert arguments.problem(call).sizes == (3, 16, 8192, 512)
    assert arguments.config(call) == TritonConfig(64, 128, 64, 8, 5)


def test_names_of_the_tutorial_and_what_a_kernel_has_not() -> None:
    call = tensors("fp16") | {"M": 16, "N": 4096, "K": 8192, "num_warps": 8, "num_stages": 4}
    call |= {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    KernelArguments().check(call)
    assert KernelArguments().config(call) == TritonConfig(64, 128, 32, 8, 4, group_m=8, split_k=1)
    del call["GROUP_SIZE_M"]
    assert KernelArguments().config(call).group_m == 1
    assert KernelArguments().config(call | {"BLOCK_M": 16}).block_m == 16  # a name of ours goes first
    with pytest.raises(InvalidOptionError, match="block_m is 'BLOCK_M'"):
        KernelArguments().check(dict.fromkeys(set(call) - {"BLOCK_SIZE_M"}))


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (KernelArguments(M="m"), r"M is 'm', but the kernel and its configs have BLOCK_K, .*K, M, N.*M=\.\.\."),
        (KernelArguments(block_m="BLOCK_SIZE_M"), r"block_m is 'BLOCK_SIZE_M', but .*BLOCK_M"),
        (KernelArguments(split_k="PARTS"), r"split_k is 'PARTS'.*or None if the kernel has none"),
        (KernelArguments(a="x"), r"a is 'x'"),
    ],
)
def test_unknown_names_say_which_there_are(arguments: KernelArguments, pattern: str) -> None:
    with pytest.raises(InvalidOptionError, match=pattern):
        arguments.check(values())
    with pytest.raises(InvalidOptionError, match=pattern):
        _ = arguments.config(values()), arguments.problem(values())


def test_no_type_of_a() -> None:
    with pytest.raises(InvalidOptionError, match="input_dtype"):
        KernelArguments(a=None).problem(values())
    with pytest.raises(InvalidProblemError, match="input_dtype must be one of"):
        KernelArguments(input_dtype="fp7").problem(values())


def test_tensor_argument_speaks_triton() -> None:
    from gemm_eval.dtypes import DType

    assert TensorArgument("fp8").dtype == "fp8e4nv"
    assert type(TensorArgument(DType.FP16).dtype) is str
    assert TensorArgument("uint8").data_ptr() % 16 == 0
