"""The short scripts in examples/ run as they are, in a process of their own, and print what they promise."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 300  # they take seconds; a first run on a machine compiles
PRINTS = {
    "llama3_8b_layer.py": ["gate_up_proj", "all 32 layers", "Why?"],
    "sweep_chip.py": ["500 chips", "on the front", "num_cores", "as it is"],
    "gpu_latency.py": ["h100-sxm", "calibrated", "int4"],
    "best_kernel.py": ["w4a16_", "2048", "The first five for M = 64"],
    "predict_resnet_and_llama.py": ["ResNet-50 x 32", "h200-sxm", "model.layers.0.mlp"],
    "serve_deepseek_v3.py": ["deepseek-v3, fp8_block", "qwen3-235b-a22b", "b200", "Left out: attention"],
}
MAX_COLUMNS = {"llama3_8b_layer.py": 120, "serve_deepseek_v3.py": 112}  # 80 for all others


def run(script: str, *arguments: str, work: Path) -> str:
    """Return what a script prints; it runs in an empty folder, and leaves it empty."""
    path = os.pathsep.join(filter(None, [str(EXAMPLES.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        cwd=work,
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "COLUMNS": "80"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(work.iterdir()) == []
    return done.stdout


@pytest.mark.parametrize("script", PRINTS)
def test_example(script: str, tmp_path: Path) -> None:
    if script == "sweep_chip.py":
        for package in ("pandas", "pyarrow", "scipy"):
            pytest.importorskip(package, reason="sweeps need pip install 'gemm_eval[sweep]'")
    if script == "predict_resnet_and_llama.py" and not all(map(find_spec, ("torch", "torchvision", "transformers"))):
        pytest.skip("predictions of torch modules need torch and torchvision: make test-torch-cuda")
    printed = run(script, work=tmp_path)
    for words in PRINTS[script]:
        assert words in printed
    assert max(map(len, printed.splitlines())) <= MAX_COLUMNS.get(script, 80)


def test_examples_take_other_gpus(tmp_path: Path) -> None:
    assert "l40s" in run("gpu_latency.py", "l40s", work=tmp_path)
    assert "h100-sxm, K = 8,192, N = 8,192" in run("best_kernel.py", "8192", "8192", "h100-sxm", work=tmp_path)
