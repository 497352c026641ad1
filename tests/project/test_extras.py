"""Optional packages: every import of one stands under `needs_extra`, and every command says what to install."""

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.config_cache import ConfigCache
from gemm_eval.words import check_extra, install_command, needs_extra
from tests.kernels.checkpoint_samples import AWQ, make_layer, write_checkpoint
from tests.project.sources import PACKAGE, ROOT, dotted, trees
from tools.lowest import lower_bounds, requirements

IMPORT_NAMES = {
    "PyYAML": {"yaml"}, "dask": {"dask", "distributed"}, "cupy-cuda12x": {"cupy", "cupy_backends"},
    "cupy-cuda13x": {"cupy", "cupy_backends"}, "humming-kernels": {"humming"}, "py-cpuinfo2": {"cpuinfo"},
    "nvidia-matmul-heuristics": {"nvMatmulHeuristics"}, "scikit-learn": {"sklearn"}, "zigzag-dse": {"zigzag"},
}  # fmt: skip


def import_names(extra: str) -> frozenset[str]:
    """What the packages of an extra are imported as, with those of the project's other extras that it names."""
    found: frozenset[str] = frozenset()
    for required in map(Requirement, requirements()[extra]):
        if required.name == "gemm_eval":
            found = found.union(*map(import_names, required.extras))
        else:
            found |= IMPORT_NAMES.get(required.name, {required.name})
    return found


EXTRAS = {extra: import_names(extra) for extra in requirements()}
NO_EXTRA = {"torch", "IPython"}  # builds of a machine's own, the notebook that runs: imported where they are there
ALTERNATIVES = {"gpu": ["gpu-cuda12"]}  # named after the extra
HELPERS = ("needs_extra", "check_extra")
OF_PIP = trees() | trees(ROOT / "benchmarks")


def promises(call: ast.expr) -> list[str]:
    """The literal arguments of a call of a helper: what for, the extra, and packages; none for any other call."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in HELPERS):
        return []
    return [argument.value if isinstance(argument, ast.Constant) else "" for argument in call.args]


def outside_imports(node: ast.AST, installed: frozenset[str]) -> Iterator[tuple[int, str]]:
    """(line, package) of imports at run time, below `node`, of packages that are not known to be installed there."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and dotted(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Expr | ast.Assign) and dotted(getattr(child.value, "func", child)) == "import_triton":
            installed |= EXTRAS["triton"]  # it has `needs_extra`
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            names = [child.module or ""]
        elif isinstance(child, ast.Call) and dotted(child.func).split(".")[-1] in ("import_module", "__import__"):
            names = [str(child.args[0].value)] if isinstance(child.args[0], ast.Constant) else []
        tops = {name.split(".")[0] for name in names}
        yield from ((child.lineno, top) for top in tops - installed - set(sys.stdlib_module_names))  # type: ignore[attr-defined]
        inner = installed
        if isinstance(child, ast.With):
            for item in child.items:
                if found := promises(item.context_expr):
                    inner |= EXTRAS[found[1]]
        yield from outside_imports(child, inner)


def installed_for(path: Path) -> frozenset[str]:
    """What the packages around a file have checked when they were imported, which Python does first."""
    found = EXTRAS[""] | NO_EXTRA | {"gemm_eval"}
    for folder in path.relative_to(PACKAGE).parents:
        for statement in trees()[PACKAGE / folder / "__init__.py"].body:
            if isinstance(statement, ast.Expr) and (said := promises(statement.value)):
                found |= set(said[2:])
    return frozenset(found)


def test_every_optional_import_names_an_extra_that_has_it() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {package}"
        for path, tree in trees().items()
        for line, package in outside_imports(tree, installed_for(path))
    ]

    assert found == []


def test_every_check_names_packages_of_its_extra() -> None:
    calls = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", promises(node))
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and promises(node)
    ]

    assert len(calls) > 20
    assert [where for where, (_, extra, *packages) in calls if extra == "" or not EXTRAS[extra] >= set(packages)] == []


def said_by(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings of a module, less docstrings; what an f-string fills in is written {}."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    pieces = {id(piece) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            filled = (piece.value if isinstance(piece, ast.Constant) else "{}" for piece in node.values)
            yield node.lineno, "".join(map(str, filled))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | pieces:
            yield node.lineno, node.value


def test_every_pip_command_names_extras() -> None:
    """Whatever an error or a help says to install, is an extra: these have the lower bounds, and are tested."""
    said = [
        (f"{path.relative_to(ROOT)}:{line}", command)
        for path, tree in OF_PIP.items()
        if path.name != "words.py"
        for line, text in said_by(tree)
        for command in re.findall(r"pip install .{,40}", text.replace("\\", ""))
    ]
    wrong = [
        (where, command)
        for where, command in said
        if not (found := re.match(r"pip install 'gemm_eval\[([\w,-]+)\]'", command))
        or not EXTRAS.keys() >= set(found[1].split(","))
    ]

    assert said
    assert wrong == []


def test_install_commands_name_extras_that_exist() -> None:
    asked = {
        node.args[0].value
        for tree in OF_PIP.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and dotted(node.func) == "install_command"
        and isinstance(node.args[0], ast.Constant)
    }

    assert {"asm", "compare", "gpu", "gpu-cuda12", "torch"} <= asked <= EXTRAS.keys()
    for extra in EXTRAS.keys() - {""}:
        named = re.findall(r"'gemm_eval\[([\w-]+)\]'", install_command(extra))
        assert named == [extra, *ALTERNATIVES.get(extra, [])]
        assert set(named) <= EXTRAS.keys()


def test_gpu_extras_differ_in_cuda_only() -> None:
    thirteen, twelve = requirements()["gpu"], requirements()["gpu-cuda12"]

    assert thirteen != twelve
    assert [line.replace("cuda13x", "cuda12x") for line in thirteen] == twelve


def test_a_package_has_one_lower_bound() -> None:
    assert {name: versions for name, versions in lower_bounds().items() if len(versions) > 1} == {}
    unbounded = [line for line in requirements()[""] if ">=" not in line]
    assert unbounded == []


def test_one_line_names_package_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(GemmEvalError, match=r"^a sweep needs no_such_package: pip install 'gemm_eval\[sweep\]'$"),
        needs_extra("a sweep", "sweep"),
    ):
        import no_such_package  # noqa: F401
    with (
        pytest.raises(GemmEvalError, match=r"^a sweep needs a package that does not load: pip .* \(cannot import name"),
        needs_extra("a sweep", "sweep"),
    ):
        from json import no_such_name  # noqa: F401
    with pytest.raises(GemmEvalError, match=r"^plotting needs no_such_package: pip install 'gemm_eval\[plot\]'$"):
        check_extra("plotting", "plot", "json", "no_such_package")


# Commands as a user begins, and the extra that each needs; "": it works with the core alone.
COMMANDS = [
    ("evaluate --arch demo-8core 1 64 64 64", ""),
    ("evaluate --arch h200-sxm 1 64 64 64 --explain", ""),
    ("evaluate --arch demo-8core -m 1..64 -k 64 -n 64 --out out.csv", ""),
    ("evaluate --arch demo-8core --shapes shapes.csv --out out.csv", ""),
    ("evaluate --arch demo-8core --shapes shapes.csv --out out.parquet", "table"),
    ("evaluate --arch demo-8core --shapes shapes.parquet", "table"),
    ("top --arch demo-8core 1 64 64 64", ""),
    ("gemms llama-3-8b --arch demo-8core --seq-len 16 --out gemms.csv", ""),
    ("model llama-3-8b --arch h200-sxm --batch 1..4 --out model.parquet", "table"),
    ("grouped --arch demo-8core -k 64 -n 64 --rows 64,3,0,17", ""),
    ("grouped --arch h200-sxm -k 64 -n 64 --rows 64,3,0,17 --dtype bf16", ""),
    ("moe --arch h200-sxm --tokens 8,64 --model mixtral-8x7b --ep 2 --distribution power_law_1.2", ""),
    ("model llama-3-8b --arch h200-sxm --batch 4", ""),
    ("attention --arch h200-sxm --kv 4096 --heads 32 --kv-heads 8 --dtype bf16", ""),
    ("attention --arch demo-8core --kv 64 --heads 4", ""),
    ("collective --arch h200-sxm all_reduce 1KiB..1MiB --ranks 2,8", ""),
    ("moe --arch demo-8core --tokens 8 --hidden 64 --inter 64 --experts 8 --topk 2", ""),
    ("gemms llama-3-8b --arch demo-8core --seq-len 16", ""),
    ("prewarm llama-3-8b --arch demo-8core --seq-len 16", ""),
    ("train llama-3-8b --arch h200-sxm", ""),
    ("serve llama-3-8b --arch h200-sxm", ""),
    ("schema evaluate", ""),
    ("kernels --arch h200-sxm -m 16 -n 4096 -k 4096", ""),
    ("kernels --arch h200-sxm --compile", "gpu"),
    ("kernels --arch h200-sxm --measured", "calibrate"),
    ("asm kernel.ptx", ""),
    ("measure gpu --out measured", "gpu"),
    ("measure gpu --out measured --list", ""),
    ("measure host --out measured", "host"),
    ("profile 16 4096 4096", "gpu"),
    ("validate dense", "calibrate"),
    ("validate gpu h100-sxm", "calibrate"),
    ("validate w4a16", "calibrate"),
    ("validate triton", "calibrate"),
    ("validate moe h200-sxm", "calibrate"),
    ("validate attention h200-sxm", "calibrate"),
    ("validate collective --arch h200-sxm", "calibrate"),
    ("validate memory-bound", "calibrate"),
    ("validate stacks", "calibrate"),
    ("validate mixers", "calibrate"),
    ("validate served", "calibrate"),
    ("validate training", "calibrate"),
    ("validate multicore ipu-gc200 --no-fit", "calibrate"),
    ("calibrate multicore --arch ipu-gc200", "calibrate"),
    ("calibrate dense --arch h200-sxm --family sm90_wgmma", "calibrate"),
    ("calibrate quantization --arch h200-sxm", "calibrate"),
    ("calibrate correction --arch h200-sxm --family sm90_wgmma", "calibrate"),
    ("calibrate intervals --arch h200-sxm --family sm90_wgmma", "calibrate"),
    ("calibrate w4a16 --arch h200-sxm --family w4a16_sm90", "calibrate"),
    ("calibrate triton --arch h200-sxm", "calibrate"),
    ("calibrate attention --arch h200-sxm", "calibrate"),
    ("calibrate collective --arch h200-sxm", "calibrate"),
    ("calibrate memory-bound --arch h200-sxm", "calibrate"),
    ("calibrate mixers --arch h200-sxm", "calibrate"),
    ("calibrate served", "calibrate"),
    ("calibrate moe --arch h200-sxm --data triton-bf16", "calibrate"),
    ("crossover 4096 4096 --max-m 64", ""),
    ("crossover 4096 4096 --max-m 64 --measured", "calibrate"),
    ("crossover 4096 4096 --max-m 64 --plot plot.png", "calibrate"),
    ("sweep {root}/examples/chip_space.yaml --out points", "sweep"),
    ("pareto points", "sweep"),
    ("report points", "sweep"),
    ("report --model llama-3-8b --arch demo-8core --prompt 16 --output 1", "plot"),
    ("arch list", ""),
    ("arch show h200-sxm", ""),
    ("arch check demo-8core", ""),
    ("configs build {root}/arch/measured/h200-sxm/w4a16/fp16.parquet --out configs.json", "calibrate"),
    ("configs list", ""),
    ("configs merge empty.json --out configs.json", ""),
    ("checkpoint convert checkpoint --out packed --replace", ""),
    ("checkpoint show packed", ""),
]


def core_packages() -> set[str]:
    """Distributions that an installation without extras has: what the core needs, and what that needs."""
    found: set[str] = set()
    todo = [Requirement(line) for line in requirements()[""]]
    while todo:
        needed = todo.pop()
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        if name in found or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        todo += [Requirement(line) for line in importlib.metadata.requires(name) or ()]
    return found


def optional_packages() -> set[str]:
    """Import names of what is installed here and would not be without extras."""
    core = core_packages()
    return {
        package
        for package, names in importlib.metadata.packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", name).lower() for name in names} & (core | {"gemm-eval"})
    }


@pytest.mark.usefixtures("own_cache")
def test_every_command_without_extras(tmp_path: Path) -> None:
    """Success, or one line on stderr with the command that installs what is missing, and no line on stdout."""
    (tmp_path / "kernel.ptx").write_text(".version 8.0\n.target sm_80\n.visible .entry first() { ret; }\n")
    (tmp_path / "shapes.csv").write_text("M,K,N,name\n1,64,64,one\n16,64,64,sixteen\n")
    ConfigCache().save(tmp_path / "empty.json")
    write_checkpoint(tmp_path / "checkpoint", {"layer": make_layer("awq", 128, 64, 64, 0)}, AWQ)
    extra_of = {tuple(word.format(root=ROOT) for word in words.split()): extra for words, extra in COMMANDS}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.core_only_cli"],
        input=json.dumps([list(extra_of), sorted(optional_packages())]),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ran, commands = json.loads(done.stdout)

    assert {tuple(command) for command in commands} == {tuple(command) for command, *_ in ran}
    wrong = []
    for _, words, code, out, err in ran:
        extra = extra_of[tuple(word for word in words if word != "--json")]
        if not extra:
            is_right = code == 0 and bool(out)
        else:
            line = json.loads(err)["error"]["message"] if "--json" in words and code else err
            named = re.findall(r"'gemm_eval\[([\w-]+)\]'", line)
            is_right = (code, out, err.count("\n"), named) == (2, "", 1, [extra, *ALTERNATIVES.get(extra, [])])
            is_right &= f"pip install 'gemm_eval[{extra}]'" in line
        if not is_right:
            wrong.append((words, code, out[:200], err[-400:]))
    assert not wrong, "\n".join(map(str, wrong))
