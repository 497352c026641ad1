"""What `import gemm_eval` offers, costs and leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gemm_eval

PUBLIC = [
    "ArchError", "ArchNotFoundError", "ArchValidationError", "AttentionProblem", "AttentionResult", "CollectiveProblem",
    "CollectiveResult", "CostModel", "Crossover", "DType", "Deployments", "GEMMEvaluator", "GEMMResult", "GEMMTable",
    "GemmEvalError", "GemmProblem", "GpuSpec", "InfeasibleError", "InvalidInputError", "InvalidMappingError",
    "InvalidOptionError", "InvalidProblemError", "LoopOrder", "ModelConfig", "ModelConfigError", "ModelEstimate",
    "MoeLayer", "MoeLayerResult", "MoeLayerTable", "MulticoreMapping", "MulticoreSpec", "Partition", "PlanOptions",
    "PrewarmReport", "SearchPlan", "ServingEstimate", "StorageError", "Tile", "TrainingEstimate", "UnsupportedError",
    "__version__", "check_cost_model", "estimate_model", "estimate_models", "estimate_serving", "estimate_training",
    "find_deployments", "find_planned", "find_training_layouts", "list_archs", "list_models", "load_arch", "load_model",
    "moe_layer", "moe_layers", "prewarm", "prewarm_for_transformer", "select_config", "transformer_gemms",
    "w4a16_crossover",
]  # fmt: skip
HEAVY = [
    "numba", "llvmlite", "numpy", "scipy", "pandas", "pydantic", "yaml", "typer", "rich", "click", "platformdirs",
    "cupy",
]  # fmt: skip
EVALUATE = (
    "from gemm_eval import *; r = GEMMEvaluator('demo-8core').evaluate(1, 64, 64, 64); r.explain(); print(r.latency_us)"
)


def python(code: str, folder: Path, **env: str | None) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter in `folder`; a variable given as None is unset."""
    merged = {k: v for k, v in (os.environ | env).items() if v is not None}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=merged, capture_output=True, text=True, check=True
    )


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_all_is_pinned_and_sorted() -> None:
    assert gemm_eval.__all__ == PUBLIC == sorted(PUBLIC)
    assert dir(gemm_eval) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_name_is_importable(name: str) -> None:
    value = getattr(gemm_eval, name)

    assert value is not None
    assert getattr(gemm_eval, name) == value
    if name != "__version__":
        assert value.__doc__


def test_star_import_gives_all_names() -> None:
    names: dict[str, object] = {}
    exec("from gemm_eval import *", names)

    assert set(PUBLIC) <= set(names)


def test_validation_loads_what_it_lists_when_it_is_first_used(tmp_path: Path) -> None:
    code = (
        "import sys, gemm_eval.validation as v; heavy = {'numpy', 'numba', 'pandas', 'scipy'} & set(sys.modules);"
        "assert not heavy, heavy; assert dir(v) == sorted(v.__all__);"
        "assert all(getattr(v, name) is not None for name in v.__all__)"
    )
    python(code, tmp_path)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'gemm_eval' has no attribute 'evaluate_all'"):
        gemm_eval.evaluate_all  # noqa: B018
    with pytest.raises(ImportError):
        exec("from gemm_eval import evaluate_all")


def test_import_is_cheap(tmp_path: Path) -> None:
    code = (
        f"import sys, gemm_eval; from gemm_eval import DType, InfeasibleError; print([m for m in {HEAVY} if m in "
        "sys.modules]); from gemm_eval import load_arch; load_arch('demo-8core'); print('numba' in sys.modules)"
    )

    assert python(code, tmp_path).stdout.split() == ["[]", "False"]


def test_an_evaluation_needs_no_tables_and_no_terminal(tmp_path: Path) -> None:
    """Of scipy only what this package asks for counts: numba loads it by itself where it is installed."""
    code = (
        "import builtins, sys\n"
        "load, asked = builtins.__import__, set()\n"
        "def spy(name, names=None, *rest, **more):\n"
        "    if str((names or {}).get('__name__')).startswith('gemm_eval'): asked.add(name.split('.')[0])\n"
        "    return load(name, names, *rest, **more)\n"
        "builtins.__import__ = spy\n"
        f"{EVALUATE}\n"
        "print('numpy' in asked, 'scipy' in asked, [m for m in ('pandas', 'rich', 'typer') if m in sys.modules])"
    )

    assert python(code, tmp_path).stdout.splitlines()[-1] == "True False []"


def test_import_leaves_the_interpreter_as_it_was(tmp_path: Path) -> None:
    """No logging set-up, no signal handler, nothing printed."""
    code = (
        "import logging, signal; handlers, on_interrupt = logging.root.handlers[:], signal.getsignal(2)\n"
        "import gemm_eval.evaluate\n"
        "print(handlers == logging.root.handlers, on_interrupt is signal.getsignal(2))"
    )

    done = python(code, tmp_path)
    assert done.stdout.split() == ["True", "True"]
    assert done.stderr == ""


def test_nothing_is_written_outside_the_cache_folder(tmp_path: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    no_bytecode = {"HOME": str(home), "XDG_CACHE_HOME": None, "PYTHONDONTWRITEBYTECODE": "1"}

    python("import gemm_eval", here, GEMM_EVAL_CACHE_DIR=None, **no_bytecode)
    assert files_under(tmp_path) == ["here", "home"]
    python(EVALUATE, here, GEMM_EVAL_CACHE_DIR=None, NUMBA_DISABLE_JIT="1", **no_bytecode)
    assert files_under(tmp_path) == ["here", "home"]


@pytest.mark.slow
def test_compiled_kernels_go_to_the_users_cache_folder_only(tmp_path: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    code = "from gemm_eval.sweep import pareto_rank; pareto_rank([[1.0, 2.0, 3.0]])"  # the one that compiles in seconds
    python(code, here, GEMM_EVAL_CACHE_DIR=None, HOME=str(home), XDG_CACHE_HOME=None, PYTHONDONTWRITEBYTECODE="1")

    assert files_under(here) == []
    assert any(name.endswith(".nbi") for name in files_under(home))
    outside = [name for name in files_under(home) if "gemm_eval" not in name and (home / name).is_file()]
    assert outside == []
