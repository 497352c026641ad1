"""The places where a module can be mutated, and the text of the module after one mutation."""

import ast
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path("gemm_eval")
FOLDERS = ("models", "search")

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div, ast.Add), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Div), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
}  # fmt: skip
_OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
_OTHER_NAMES |= {"minimum": "maximum", "maximum": "minimum"}
# what decides no answer: messages, declarations, checks
_SKIPPED = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)


class Mutant(NamedTuple):
    """A mutation of a file.

    Attributes:
        path: of the file, from the root of the repository.
        line, column: where it is mutated.
        before, after: what stood there, and what stands there now.
        text: of the whole file, mutated.
    """

    path: str
    line: int
    column: int
    before: str
    after: str
    text: str

    @property
    def name(self) -> str:
        """Return the name of the mutant in the lines of a run."""
        return " ".join(f"{self.path}:{self.line}:{self.column}: {self.before} -> {self.after}".split())


def draw_mutants(root: Path, count: int, seed: int, only: str = "") -> list[Mutant]:
    """Draw `count` of all mutants of the modules whose path contains `only`, every one equally likely."""
    found = [mutant for path in _modules(root) if only in str(path) for mutant in mutants_of(root, path)]
    return random.Random(seed).sample(found, min(count, len(found)))


def _modules(root: Path) -> list[Path]:
    paths = (path for folder in FOLDERS for path in (root / PACKAGE / folder).rglob("*.py"))
    return sorted(path.relative_to(root) for path in paths if path.name != "__init__.py")


def mutants_of(root: Path, path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file that is still Python."""
    text = (root / path).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()
    for node, after in _changes(ast.parse(text)):
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        mutated = raw[:start] + after.encode() + raw[stop:]
        yield Mutant(str(path), node.lineno, node.col_offset + 1, raw[start:stop].decode(), after, mutated.decode())


def _changes(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield nodes, and the text that may stand in their places."""
    for node in _computing(tree):
        for change in (_of_expression, _of_statement):
            for after in change(node):
                yield node, after


def _computing(node: ast.AST) -> Iterator[ast.AST]:
    """Walk all that computes: no messages, annotations, decorators, defaults or lists of names."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, _SKIPPED):
                yield child
                yield from _computing(child)


def _of_expression(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            for opposite in _COMPARISONS[type(op)]:
                ops = [*node.ops[:place], opposite(), *node.ops[place + 1 :]]
                yield _source(ast.Compare(node.left, ops, node.comparators))
    elif isinstance(node, ast.BinOp):
        for swapped in _OPERATORS.get(type(node.op), ()):
            yield _source(ast.BinOp(node.left, swapped(), node.right))
    elif isinstance(node, ast.BoolOp):
        yield _source(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield _source(node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield from (_source(ast.Constant(node.value + step)) for step in (1, -1))  # type: ignore[operator]
    elif isinstance(node, ast.IfExp):
        yield _source(ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse))
    elif isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in _OTHER_NAMES:
            func = ast.Name(_OTHER_NAMES[name])
            if isinstance(node.func, ast.Attribute):
                yield _source(ast.Call(ast.Attribute(node.func.value, func.id), node.args, node.keywords))
            else:
                yield _source(ast.Call(func, node.args, node.keywords))
        if name == "range":
            for place, bound in enumerate(node.args[:2]):
                for sign in (ast.Add(), ast.Sub()):
                    moved = ast.BinOp(bound, sign, ast.Constant(1))
                    yield _source(ast.Call(node.func, [*node.args[:place], moved, *node.args[place + 1 :]], []))


def _of_statement(node: ast.AST) -> Iterator[str]:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    fills = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
    if is_call or fills or isinstance(node, ast.AugAssign | ast.Continue | ast.Break):
        yield "pass"


def _source(node: ast.expr) -> str:
    make: Callable[[ast.AST], str] = ast.unparse
    return f"({make(ast.fix_missing_locations(node))})"
