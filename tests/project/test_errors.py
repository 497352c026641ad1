"""The exception tree: as drawn in `gemm_eval.errors`, complete, and picklable."""

from __future__ import annotations

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


def classes() -> dict[str, type[Exception]]:
    return {name: getattr(errors, name) for name in errors.__all__}


def infeasible() -> errors.InfeasibleError:
    return errors.InfeasibleError(
        "too big",
        resource="sram",
        demand=3000,
        limit=1000,
        unit="bytes",
        levers=("sram_bytes >= 3000", "a smaller tile"),
    )


def test_the_drawing_holds_every_class() -> None:
    assert sorted(drawn_tree()) == sorted(errors.__all__) == errors.__all__


@pytest.mark.parametrize("name", errors.__all__)
def test_class_is_where_it_is_drawn(name: str) -> None:
    parent, text = drawn_tree()[name]
    bases = [base.__name__ for base in classes()[name].__bases__]

    assert bases[0] == (parent or "Exception")
    also = re.search(r"also a (\w+)", text)
    assert bases[1:] == ([also[1]] if also else [])


@pytest.mark.parametrize("name", errors.__all__)
def test_class_is_public_documented_and_caught_by_the_root(name: str) -> None:
    cls = classes()[name]

    assert getattr(gemm_eval, name) is cls
    assert issubclass(cls, gemm_eval.GemmEvalError)
    assert cls.__doc__


def test_module_defines_no_other_exception() -> None:
    own = {n for n, c in vars(errors).items() if inspect.isclass(c) and c.__module__ == errors.__name__}

    assert own == set(errors.__all__)


def test_infeasible_error_says_demand_limit_gap_unit_and_levers() -> None:
    error = infeasible()

    assert (error.resource, error.demand, error.limit, error.gap, error.unit) == ("sram", 3000, 1000, 2000, "bytes")
    assert error.levers == ("sram_bytes >= 3000", "a smaller tile")
    for part in ("too big", "3,000 bytes", "1,000 bytes", "2,000 bytes", "sram_bytes >= 3000; a smaller tile"):
        assert part in str(error)


def test_infeasible_error_without_levers_mentions_none() -> None:
    error = errors.InfeasibleError("no", resource="x", demand=2, limit=1, unit="cores", levers=())

    assert "levers" not in str(error)


def test_mapping_error_carries_its_rule() -> None:
    error = errors.InvalidMappingError("too big", rule="sram")

    assert error.rule == "sram"
    assert str(error) == "too big"


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidProblemError("no"),
        errors.ArchNotFoundError("no"),
        errors.InvalidMappingError("no", rule="sram"),
        infeasible(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_process_borders(error: Exception) -> None:
    """Sweeps run in worker processes: an error that cannot be pickled breaks the whole pool."""
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
