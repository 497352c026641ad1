"""Sources of the package as trees, each parsed once for all tests that read them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gemm_eval"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def trees(folder: Path = PACKAGE) -> dict[Path, ast.Module]:
    """Every module below a folder."""
    return {path: tree_of(path) for path in sorted(folder.rglob("*.py"))}


def dotted(node: ast.AST) -> str:
    """The name that an expression is, such as `a.b`; empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
