"""The exception tree: as drawn in `gemm_eval.errors`, complete, and picklable."""

import inspect
import pickle
import re

import pytest

import gemm_eval
from gemm_eval import errors

LINE = re.compile(r"^    (?P<lead>[│ ├└─]*)(?P<name>[A-Z]\w+)(?P<rest>.*)$", re.MULTILINE)


def drawn_tree() -> dict[str, tuple[str | None, str]]:
    """Name -> (parent, the text behind it) of every class in the drawing."""
    path: list[str] = []
    tree = {}
    for match in LINE.finditer(inspect.cleandoc(errors.__doc__ or "")):
        depth = len(match["lead"]) // 4
        path[depth:] = [match["name"]]
        tree[match["name"]] = (path[depth - 1] if depth else None, match["rest"])
    return tree


def infeasible(levers: tuple[str, ...] = ("sram_bytes >= 3000", "a smaller tile")) -> errors.InfeasibleError:
    return errors.InfeasibleError("too big", resource="sram", demand=3000, limit=1000, unit="bytes", levers=levers)


def test_every_class_is_drawn_where_it_is_and_is_public() -> None:
    tree = drawn_tree()
    own = [name for name, cls in vars(errors).items() if inspect.isclass(cls) and cls.__module__ == errors.__name__]

    assert sorted(tree) == sorted(own) == errors.__all__
    for name, (parent, text) in tree.items():
        cls = getattr(gemm_eval, name)
        also = re.search(r"also a (\w+)", text)
        assert cls is getattr(errors, name)
        assert [base.__name__ for base in cls.__bases__] == [parent or "Exception", *([also[1]] if also else [])]
        assert issubclass(cls, gemm_eval.GemmEvalError)
        assert cls.__doc__


def test_infeasible_error_says_demand_limit_gap_unit_and_levers() -> None:
    error = infeasible()

    assert (error.resource, error.demand, error.limit, error.gap, error.unit) == ("sram", 3000, 1000, 2000, "bytes")
    assert error.levers == ("sram_bytes >= 3000", "a smaller tile")
    for part in ("too big", "3,000 bytes", "1,000 bytes", "2,000 bytes", "sram_bytes >= 3000; a smaller tile"):
        assert part in str(error)


def test_what_is_not_given_is_not_mentioned() -> None:
    assert "levers" not in str(infeasible(()))
    error = errors.InvalidMappingError("too big", rule="sram")
    assert (error.rule, str(error)) == ("sram", "too big")


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidProblemError("no"), errors.ArchNotFoundError("no"),
        errors.InvalidMappingError("no", rule="sram"), infeasible(),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_errors_cross_process_borders(error: Exception) -> None:
    """Sweeps run in worker processes: an error that cannot be pickled breaks the whole pool."""
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
