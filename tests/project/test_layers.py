"""Imports go one way, wherever in a file they stand: from a layer to layers before it."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from gemm_eval.errors import GemmEvalError
from tests.cases import case
from tests.project.sources import PACKAGE, dotted, tree_of, trees

# "" is the facade itself, gemm_eval/__init__.py: what a user of all layers may import.
LAYERS = [
    "errors", "units", "frozen", "lazy", "version", "words", "storage", "progress",
    "dtypes", "jit", "arch", "device", "workload", "mapping", "models", "search", "evaluate", "figures", "moe",
    "transformer", "estimate", "training", "sweep", "serving",
    "kernels", "measure", "validation", "autotune", "report", "torch", "compiled", "", "cli",
]  # fmt: skip
BELOW_EVALUATE = LAYERS[: LAYERS.index("evaluate")]
IMPORTERS = ("import_module", "importlib.import_module", "__import__")
FILES = list(trees())
OF_LAYERS = [path for path in FILES if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in LAYERS]
GPU_LAYERS = ("device", "kernels", "measure", "autotune")
# What a package offers is what its `__init__` lists; other rooms import nothing past it but these modules: what a user
# imports by the module's name, functions that read better with it, modules whose text is asked for, and the modules of
# a subject: its model, and its exam.
PAST = {
    "gemm_eval.device.runtime", "gemm_eval.device.sass",
    "gemm_eval.kernels.config_cache", "gemm_eval.kernels.config_records", "gemm_eval.transformer.prewarm",
    "gemm_eval.models.gpu.collective", "gemm_eval.models.gpu.memory_bound", "gemm_eval.models.gpu.network",
    "gemm_eval.models.gpu.mixers",
    "gemm_eval.validation.subjects",
}  # fmt: skip
MAX_PAST = 10
CACHE_PACKAGES = {"diskcache", "joblib", "shelve", "dbm", "sqlite3"}
RESULT_CACHE = {f"gemm_eval.storage.{name}" for name in ("ResultFile", "arrays")}
ALLOWED_OUTSIDE = {"numpy", "numba", "pydantic", "yaml", "platformdirs", "pandas", "typer", "rich", "click"}
OUTSIDE_OF = {
    "validation": {"scipy", "sklearn", "matplotlib", "nvMatmulHeuristics"},
    "sweep": {"scipy", "pyarrow", "optuna", "SALib", "distributed"},
    "cli": {"pyarrow"},  # tables of shapes and answers in parquet
    "figures": {"matplotlib"},
    "progress": {"IPython"},  # of the notebook that runs it
    "torch": {"torch", "triton"},  # what Inductor asks Triton's driver is answered without one
}


def layer_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, dotted module) of every import: at the top, in functions, under TYPE_CHECKING, and by name."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func) in IMPORTERS and isinstance(node.args[0], ast.Constant):
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
        for name in ("errors", "units", "frozen", "lazy", "version", "jit")
    }
    assert found.pop("jit") == {"storage"}
    assert not set().union(*found.values())


def test_storage_and_device_know_nothing_of_what_uses_them() -> None:
    known = {
        name: {layer for path in OF_LAYERS if layer_of(path) == name for _, layer in own_imports(path)}
        for name in ("storage", "device")
    }
    assert known["storage"] <= {"errors", "lazy", "words", "storage"}
    assert known["device"] <= {"errors", "lazy", "words", "dtypes", "storage", "arch", "device"}


@cache
def home_of(package: str) -> dict[str, str]:
    """Name -> module, of what a package lists."""
    tree = tree_of(PACKAGE.parent / package.replace(".", "/") / "__init__.py")
    froms = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    homes = {alias.name: f"{node.module}" for node in froms for alias in node.names}
    listed = getattr(import_module(package), "__all__", ())
    return {name: homes.get(name, package) for name in listed}


def split(module: str) -> tuple[str, str]:
    """The innermost package of an imported name, and what is asked of it."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (PACKAGE.parent.joinpath(*parts[:length]) / "__init__.py").is_file():
            return ".".join(parts[:length]), ".".join(parts[length:])
    raise AssertionError(module)


def is_numba(module: str) -> bool:
    """Whether a name is of a module of numba kernels, which import each other past the doors: see the cache's stamp."""
    return any(part.endswith("_kernels") or part == "terms" for part in module.split("."))


def test_nobody_imports_past_an_init() -> None:
    past = []
    for path in (path for path in FILES if path.name != "__init__.py"):
        for line, module in imports(path):
            if not module.startswith("gemm_eval.") or module.split(".")[1] == layer_of(path):
                continue
            package, name = split(module)
            is_listed = package == "gemm_eval" or not name or name in home_of(package)
            if is_listed or any(f"{module}.".startswith(f"{known}.") for known in PAST):
                continue
            if not (path.name.endswith("_kernels.py") and is_numba(module)):
                past.append(f"{relative(path)}:{line}: {module}")
    assert past == []
    assert len(PAST) <= MAX_PAST


def imports_at_once(path: Path) -> Iterator[str]:
    """Modules that a module imports when it is imported, whichever door it takes."""
    for node in tree_of(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gemm_eval"):
            for alias in node.names:
                package, name = split(f"{node.module}.{alias.name}")
                first = name.split(".")[0]
                yield home_of(package).get(first, f"{package}.{first}" if first else package)


def test_no_circle_between_modules() -> None:
    of = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    graph = {name: sorted(set(imports_at_once(path)) & of.keys()) for name, path in of.items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for other in graph[name]:
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    assert sum(map(len, graph.values())) > len(graph), "hardly an import was seen"


def test_what_a_package_lists_is_there() -> None:
    packages = sorted({split(".".join(path.relative_to(PACKAGE.parent).parent.parts))[0] for path in FILES})
    for name in packages:
        package = import_module(name)
        with case(name):
            listed = list(getattr(package, "__all__", ()))
            assert len(set(listed)) == len(listed)
            if name != "gemm_eval.torch" or find_spec("torch") is not None:
                assert all(getattr(package, public) is not None for public in listed)
            assert not {public for public in listed if public.startswith("_")} - {"__version__"}


def test_what_needs_torch_says_so_without_it() -> None:
    if find_spec("torch") is not None:
        pytest.skip("torch is installed: make test-torch")
    package = import_module("gemm_eval.torch")
    for name in ("predict", "compare"):
        with pytest.raises(GemmEvalError, match=r"needs torch: pip install 'gemm_eval\[torch\]'"):
            getattr(package, name)
    with pytest.raises(GemmEvalError, match=r"^predict_module needs torch: pip install 'gemm_eval\[torch\]'$"):
        package.predict_module(None, None, "h200-sxm")


def test_machine_code_depends_on_kernels_and_terms_only() -> None:
    """The cache of compiled kernels is stamped with the text of these; a constant from elsewhere would go stale."""
    for path in PACKAGE.rglob("*_kernels.py"):
        own = {name for _, name in imports(path) if name.startswith("gemm_eval.")}  # modules, or names in modules
        modules = {name if name.endswith("_kernels") else name.rsplit(".", 1)[0] for name in own}
        assert all(name.endswith((".jit", "_kernels", ".terms")) for name in modules), (relative(path), modules)


def test_one_room_of_validation_knows_the_models() -> None:
    for path in (path for path in FILES if layer_of(path) == "validation"):
        with case(relative(path)):
            of_models = [name for _, name in imports(path) if name.startswith(("gemm_eval.models", "gemm_eval.search"))]
            if relative(path) in (
                "validation/exam.py",
                "validation/learned.py",
                "validation/metrics.py",
                "validation/tables.py",
            ):  # errors, intervals and trees as files have them
                assert all(f"{name}.".startswith("gemm_eval.models.gpu.") for name in of_models)
                continue
            assert not of_models or relative(path).startswith("validation/subjects/")


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
            assert not outside & {"rich", "pandas"} or layer not in BELOW_EVALUATE or layer == "progress"
            assert not tops(path) & CACHE_PACKAGES
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
    """`gemm_eval/__init__.py` imports nothing at run time but what loads names when they are used."""
    tree = tree_of(PACKAGE / "__init__.py")
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]

    assert {getattr(node, "module", None) for node in top} == {"gemm_eval.lazy", "typing"}
