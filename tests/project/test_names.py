"""Names of variables say what they hold: words that could be anything stand for fewer of them, never for more."""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.project.sources import PACKAGE, trees

BANNED = {"found", "told", "place", "what", "said", "mine"}
MOST: dict[str, int] = {
    "validation": 3, "models": 63, "evaluate": 30, "report": 29, "kernels": 19, "sweep": 10, "torch": 14,
    "search": 13, "transformer": 12, "moe": 6, "device": 7, "figures": 4, "autotune": 4, "workload": 3,
    "storage": 3, "measure": 3, "dtypes": 1, "estimate": 1,
}  # fmt: skip
"""How often a package has one of these names today; all others have none."""


def banned_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in BANNED:
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BANNED:
            yield node.id


def test_names_say_what_they_hold() -> None:
    counts = Counter(
        path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for path, tree in trees().items()
        for _ in banned_names(tree)
    )
    risen = {name: num for name, num in counts.items() if num > MOST.get(name, 0)}
    assert risen == {}, f"give variables other names than {', '.join(sorted(BANNED))}"
