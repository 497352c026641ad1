"""The mutation command: its mutants are other programs, its tests exist, and a finished run says what was caught."""

from __future__ import annotations

import ast
from pathlib import Path

from tools.mutation import __main__ as command
from tools.mutation.areas import area_of
from tools.mutation.mutants import mutants_of

ROOT = command.ROOT
MODULE = Path("gemm_eval/models/multicore/pipeline_kernels.py")


def test_every_mutant_is_another_program() -> None:
    text = (ROOT / MODULE).read_text(encoding="utf-8")
    mutants = list(mutants_of(ROOT, MODULE))
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 100
    assert (
        len({ast.dump(ast.parse(mutant.text)) for mutant in mutants} | {ast.dump(ast.parse(text))}) > len(mutants) / 2
    )
    befores = {(mutant.before, mutant.after) for mutant in mutants}
    assert ("(a + b - 1) // b", "((a + b - 1) * b)") in befores
    assert ("T_k > 1", "(T_k >= 1)") in befores
    assert ("order == 0", "(order != 0)") in befores


def test_every_module_has_tests_that_exist() -> None:
    for path in (ROOT / "gemm_eval").glob("[ms]*/**/*.py"):
        area = area_of(path.relative_to(ROOT).as_posix())
        for file in area.plain + area.compiled:
            assert (ROOT / "tests" / file).is_file(), file
