"""Imports go one way, wherever in a file they stand: from a layer to layers before it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.cases import case

PACKAGE = Path(__file__).resolve().parents[2] / "gemm_eval"
# "" is the facade itself, gemm_eval/__init__.py: what a user of all layers may import.
LAYERS = [
    "errors", "units", "frozen", "lazy", "words", "storage", "checks", "extras", "dtypes", "jit",
    "arch", "device", "workload", "mapping", "models", "search", "evaluate", "figures", "transformer", "sweep",
    "kernels", "measure", "validation", "autotune", "report", "", "cli",
]  # fmt: skip
BELOW_EVALUATE = LAYERS[: LAYERS.index("evaluate")]
IMPORTERS = ("import_module", "importlib.import_module", "__import__")
FILES = sorted(PACKAGE.rglob("*.py"))
OF_LAYERS = [path for path in FILES if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in LAYERS]
GPU_LAYERS = ("device", "kernels", "measure", "autotune")
# What these packages offer is what their `__init__` lists; others import nothing past it.
SEALED = ("storage", "device", "kernels", "measure")
# Public modules and packages in them, as README.md and CHANGELOG.md name them or as their `__init__` says.
OPEN = {
    "gemm_eval.storage.cache", "gemm_eval.kernels.config_cache", "gemm_eval.kernels.configs",
    "gemm_eval.kernels.families", "gemm_eval.measure.runners",
}  # fmt: skip
SEALED_NAMES = {f"gemm_eval.{name}" for name in SEALED}
# Modules that others take as such: its functions read better with its name, or their text is what is asked for.
AS_MODULES = {f"gemm_eval.device.{name}" for name in ("runtime", "sass", "control_flow")}
CACHE_PACKAGES = {"diskcache", "joblib", "shelve", "dbm", "sqlite3"}
RESULT_CACHE = {f"gemm_eval.storage.{name}" for name in ("DiskCache", "default_path", "cache")}
ALLOWED_OUTSIDE = {"numpy", "numba", "pydantic", "yaml", "platformdirs", "pandas", "typer", "rich", "click"}
OUTSIDE_OF = {
    "validation": {"scipy", "matplotlib", "nvMatmulHeuristics"},
    "sweep": {"scipy", "pyarrow", "optuna", "SALib", "distributed"},
    "figures": {"matplotlib"},
}


def layer_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, dotted module) of every import: at the top, in functions, under TYPE_CHECKING, and by name."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in IMPORTERS
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def own_imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, layer) of every import of this package; a name of the facade counts as the facade."""
    for line, module in imports(path):
        top, _, rest = module.partition(".")
        if top == "gemm_eval":
            layer = rest.split(".")[0]
            yield line, layer if layer in LAYERS else ""


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_every_file_belongs_to_a_layer() -> None:
    assert {layer_of(path) for path in FILES} - {"__init__", "__main__"} <= set(LAYERS)


def test_imports_go_down_only() -> None:
    upward = [
        f"{relative(path)}:{line}: {layer_of(path)} imports {layer or 'the facade'}"
        for path in OF_LAYERS
        for line, layer in own_imports(path)
        if LAYERS.index(layer) > LAYERS.index(layer_of(path))
    ]
    assert upward == []


def test_first_layers_import_nothing_of_ours() -> None:
    found = {
        name: {layer for _, layer in own_imports(PACKAGE / f"{name}.py")}
        for name in ("errors", "units", "frozen", "lazy", "jit")
    }
    assert found.pop("jit") == {"storage"}
    assert not set().union(*found.values())


def test_storage_and_device_know_nothing_of_what_uses_them() -> None:
    known = {
        name: {layer for path in OF_LAYERS if layer_of(path) == name for _, layer in own_imports(path)}
        for name in ("storage", "device")
    }
    assert known["storage"] <= {"errors", "lazy", "words", "storage"}
    assert known["device"] <= {"errors", "lazy", "words", "extras", "dtypes", "storage", "arch", "device"}


def test_nobody_imports_past_an_init() -> None:
    past = [
        f"{relative(path)}:{line}: {module}"
        for path in FILES
        for line, module in imports(path)
        if module.startswith("gemm_eval.")
        if (layer := module.split(".")[1]) in SEALED and layer != layer_of(path)
        if module not in OPEN | AS_MODULES and not _is_listed(*module.rpartition(".")[::2])
    ]
    assert past == []


def _is_listed(package: str, name: str) -> bool:
    return package == "gemm_eval" or (package in OPEN | SEALED_NAMES and name in import_module(package).__all__)


def test_what_a_package_lists_is_there() -> None:
    for name in ("storage", "device", "kernels", "kernels.configs", "measure", "measure.runners"):
        package = import_module(f"gemm_eval.{name}")
        with case(name):
            assert sorted(package.__all__) == dir(package)
            assert all(getattr(package, public) is not None for public in package.__all__)


def test_modules_of_sealed_packages_have_plain_names() -> None:
    """What is public is what an `__init__` lists, so that an underscore would say nothing."""
    named = [relative(path) for path in FILES if layer_of(path) in (*SEALED, "autotune")]
    assert [
        name for name in named if name.rpartition("/")[2].startswith("_") and not name.endswith("__init__.py")
    ] == []


def test_machine_code_depends_on_kernels_and_coefficients_only() -> None:
    """The cache of compiled kernels is stamped with the text of these; a constant from elsewhere would go stale."""
    for path in (path for path in PACKAGE.rglob("*_kernels.py") if layer_of(path) != "cli"):
        own = {module.rsplit(".", 1)[0] for _, module in imports(path) if module.startswith("gemm_eval.")}
        assert all(name.endswith((".jit", "_kernels", ".coefficients", ".terms")) for name in own), (
            relative(path),
            own,
        )


def test_validation_has_one_door_and_one_room_that_knows_the_models() -> None:
    for path in FILES:
        with case(relative(path)):
            is_inside = relative(path).startswith("validation/")
            past_the_door = [name for _, name in imports(path) if name.startswith("gemm_eval.validation.")]
            assert is_inside or not any(name.count(".") > 2 for name in past_the_door)
            of_models = [name for _, name in imports(path) if name.startswith(("gemm_eval.models", "gemm_eval.search"))]
            assert not of_models or not is_inside or relative(path).startswith("validation/predictors/")


def tops(path: Path) -> set[str]:
    return {module.split(".")[0] for _, module in imports(path)}


def test_outside_packages_stay_where_they_belong() -> None:
    for path in FILES:
        layer = layer_of(path)
        outside = tops(path) - {"gemm_eval"} - set(sys.stdlib_module_names)
        with case(relative(path)):
            if layer not in (*GPU_LAYERS, "report"):
                assert outside <= ALLOWED_OUTSIDE | OUTSIDE_OF.get(layer, set())
            assert "numba" not in outside or relative(path) == "jit.py"
            assert not outside & {"typer", "click"} or layer == "cli"
            assert not outside & {"rich", "pandas"} or layer not in BELOW_EVALUATE
            assert not tops(path) & CACHE_PACKAGES or layer == "storage"
            assert "pickle" not in tops(path)


def test_nothing_below_evaluate_caches_or_plots() -> None:
    for path in (path for path in OF_LAYERS if layer_of(path) in BELOW_EVALUATE):
        with case(relative(path)):
            layer = layer_of(path)
            assert not tops(path) & {"triton", "matplotlib"}
            assert "cupy" not in tops(path) or layer == "device"
            assert layer == "device" or "device" not in {of for _, of in own_imports(path)}
            assert layer == "storage" or not {module for _, module in imports(path)} & RESULT_CACHE


def test_the_facade_loads_rooms_only() -> None:
    """`gemm_eval/__init__.py` imports nothing at run time but `importlib` and `typing`."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]

    assert {getattr(node, "module", None) for node in top} == {"importlib", "typing"}
