"""Design spaces: fields of every kind, grids of any size, fields that follow from others, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from gemm_eval import load_arch
from gemm_eval.errors import ArchValidationError, InvalidOptionError
from gemm_eval.sweep import Adaptive, Choices, Dependent, LatinHypercube, LogRange, Random, Range, Space
from gemm_eval.sweep.fields import as_field

DEMO = "demo-8core"


def grid(space: Space) -> list[dict[str, Any]]:
    return [space.values(row)[0] for row in space.grid_rows(0, space.grid_size)]


def column(space: Space, name: str) -> list[Any]:
    return [values[name] for values in grid(space)]


def test_a_grid_is_all_combinations_with_the_last_field_fastest() -> None:
    space = Space(DEMO, num_cores=[8, 16], sram_bytes=[1 << 19, 1 << 20, 1 << 21])
    assert space.grid_size == 6
    assert [(v["num_cores"], v["sram_bytes"]) for v in grid(space)] == [
        (cores, sram) for cores in (8, 16) for sram in (1 << 19, 1 << 20, 1 << 21)
    ]
    assert space.grid_rows(2, 5) == space.grid_rows(0, 6)[2:5]
    assert space.names == ("arch", "num_cores", "sram_bytes")
    alone = Space(DEMO)
    assert (alone.grid_size, alone.grid_rows(0, 1)) == (1, [()])
    assert alone.arch(alone.values(())[0]) == load_arch(DEMO)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (Range(8, 64, num=3), (8, 36, 64)), (Range(1, 4, num=10), (1, 2, 3, 4)),
        (Range(5, 64, step=16), (16, 32, 48, 64)), (Range(8, 64, num=3, step=16), (16, 32, 64)),
        (Range(1.0, 2.0, num=3), (1.0, 1.5, 2.0)), (Range(0.1, 0.3, step=0.1), (0.1, 0.2, 0.3)),
        (LogRange(1, 1000, num=4), (1, 10, 100, 1000)), (LogRange(0.5, 2.0, num=3), (0.5, 1.0, 2.0)),
        (LogRange(16, 64, num=3, step=16), (16, 32, 64)), (LogRange(16, 48, step=16), (16, 32, 48)),
        (Choices((3, None)), (3, None)),
    ],
)  # fmt: skip
def test_grid_values(field: Any, values: tuple[Any, ...]) -> None:
    assert field.grid() == pytest.approx(values) if None not in values else field.grid() == values
    assert [type(value) for value in field.grid()] == [type(value) for value in values]


def test_sampled_whole_numbers_are_equally_likely() -> None:
    unit = (np.arange(4000) + 0.5) / 4000
    assert np.bincount(Range(1, 4).take(unit)).tolist() == [0, 1000, 1000, 1000, 1000]
    assert np.bincount(np.array(Range(16, 48, step=16).take(unit)) // 16)[1:].tolist() == pytest.approx(
        [1333] * 3, abs=1
    )
    assert np.bincount(Choices((0, 1)).take(unit)).tolist() == [2000, 2000]
    logs = np.bincount(LogRange(1, 4).take(unit))
    assert logs[1] > logs[2] > logs[3] > logs[4] > 0


@pytest.mark.parametrize(
    ("value", "values"),
    [
        ([8, 16], [8, 16]), (8, [8]), ("private", ["private"]), (np.array([8, 16]), [8, 16]), (np.float64(2.0), [2.0]),
        (range(8, 24, 8), [8, 16]), ((n for n in (1, 2)), [1, 2]), ([None, 100.0], [None, 100.0]),
        ({"fp16": 1, "int8": 2}, [{"fp16": 1, "int8": 2}]), ([{"fp16": 1}, {"fp16": 2}], [{"fp16": 1}, {"fp16": 2}]),
        ([True, False], [True, False]),
    ],
)  # fmt: skip
def test_what_a_user_may_write(value: Any, values: list[Any]) -> None:
    field = as_field("x", value)
    assert list(field.grid()) == values  # type: ignore[union-attr]
    assert all(not isinstance(one, np.generic) for one in field.grid())  # type: ignore[union-attr]


def test_fields_of_every_type_make_chips() -> None:
    steps = [{"fp16": 1.0}, {"fp16": 2.0, "int8": 4.0}]
    space = Space(
        DEMO, noc_gb_per_s=[None, 100.0], load_sharing=["private", "multicast"], vector_is_concurrent=[True, False],
        cube_steps_per_cycle=steps, cube_k_by_dtype={}, mac_pj={"fp16": 1}, reduction="dram",
    )  # fmt: skip
    points = grid(space)
    assert len(points) == 16
    for values in points:
        if values["load_sharing"] == "multicast" and values["noc_gb_per_s"] is None:
            with pytest.raises(ArchValidationError, match="multicast needs noc_gb_per_s"):
                space.arch(values)
            continue
        arch: Any = space.arch(values)
        assert (arch.noc_gb_per_s, arch.load_sharing) == (values["noc_gb_per_s"], values["load_sharing"])
        assert dict(arch.cube_steps_per_cycle) == values["cube_steps_per_cycle"]
        assert arch.name == DEMO


def test_an_entry_of_a_table_varies_alone() -> None:
    base: Any = load_arch(DEMO)
    space = Space(
        base, {"mac_pj.fp16": [0.5, 0.25], "mac_pj.int8": "= mac_pj.fp16 / 2", "static_w": "= mac_pj.int8 * 8"}
    )
    archs: list[Any] = [space.arch(values) for values in grid(space)]
    assert [dict(arch.mac_pj) for arch in archs] == [
        {**base.mac_pj, "fp16": pj, "int8": pj / 2} for pj in (0.5, 0.25)
    ]  # fmt: skip
    assert [arch.static_w for arch in archs] == [2.0, 1.0]
    other = base.with_(mac_pj=archs[1].mac_pj, static_w=1.0)
    words = {"provenance", "sources", "notes", "title", "published"}
    assert archs[1].model_dump(exclude=words) == other.model_dump(exclude=words)


@pytest.mark.parametrize(
    "of", [lambda a: 0.5 * a.num_cores + a.sram_bytes / 2**20, "= 0.5 * num_cores + sram_bytes / 2**20"]
)
def test_dependent_fields(of: Any) -> None:
    space = Space(DEMO, area_mm2=of, num_cores=[8, 16], sram_bytes=[1 << 20])  # the order does not matter
    assert column(space, "area_mm2") == [5.0, 9.0]
    assert space.grid_size == 2
    whole = Space(DEMO, num_cores=lambda a: np.float64(a.cube_m) / 2, sram_bytes="= 2.0 ** 20")
    assert (type(column(whole, "num_cores")[0]), column(whole, "sram_bytes")) == (int, [1 << 20])


def test_dependents_of_dependents_and_of_variables() -> None:
    space = Space(
        DEMO,
        num_cores="= rows * columns",
        area_mm2=lambda a: a.num_cores * a.per_core,
        static_w="= area_mm2 / 10 if num_cores > 8 else sqrt(4)",
        variables={"rows": [2, 4], "columns": "= rows", "per_core": 2.0},
    )
    assert [(v["num_cores"], v["area_mm2"], v["static_w"]) for v in grid(space)] == [(4, 8.0, 2.0), (16, 32.0, 3.2)]
    assert space.names == ("arch", "rows", "columns", "per_core", "num_cores", "area_mm2", "static_w")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_coers": [8]}, "num_coers is not a field of demo-8core .multicore., did you mean num_cores"),
        ({"name": ["x"]}, "name is not a field"),
        ({"type": ["gpu"]}, "type is not a field"),
        ({"num_cores": []}, "num_cores: a field needs at least one value"),
        ({"num_cores": {8, 16}}, "num_cores: a set has no order"),
        ({"num_cores": np.ones((2, 2))}, "num_cores: a value is None, a truth, a number"),
        ({"num_cores": Range(0.5, 8.0)}, "num_cores takes whole numbers only"),
        ({"load_sharing": Range(0, 1)}, "load_sharing takes no numbers"),
        ({"num_cores.fp16": [8]}, "num_cores is no table, so it has no entry 'fp16'"),
        ({"mac_pj.fp61": [8]}, "'fp61' is no data type; there are"),
        ({"mac_pj.fp16": [8], "mac_pj": [{}]}, "as a whole or by its entries, got both of mac_pj"),
        ({"area_mm2": "= num_coers * 2"}, "area_mm2: 'num_coers . 2' names 'num_coers', which does not exist"),
        ({"area_mm2": "= maxi(num_cores)"}, "names 'maxi', which does not exist; functions are min, max"),
        ({"area_mm2": "= num_cores *"}, "is no expression"),
        ({"area_mm2": "= [n for n in (1,)]"}, "has ListComp in it, and expressions are of numbers"),
        ({"area_mm2": "= (lambda: 1)()"}, "has Call in it"),
    ],
)
def test_spaces_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        Space(DEMO, fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"area_mm2": lambda a: a.num_coers}, "area_mm2: no field or variable of the name 'num_coers'"),
        ({"area_mm2": lambda a: undefined}, "area_mm2: NameError"),  # type: ignore[name-defined]  # noqa: F821
        ({"area_mm2": "= static_w", "static_w": lambda a: a.area_mm2}, "in a circle: area_mm2 <- static_w <- area_mm2"),
    ],
)
def test_mistakes_in_functions_are_no_matter_of_the_point(fields: dict[str, Any], message: str) -> None:
    space = Space(DEMO, fields)
    with pytest.raises(InvalidOptionError, match=message):
        space.values(())
    assert column(Space(DEMO, area_mm2=lambda a: getattr(a, "nothing", 2.0)), "area_mm2") == [2.0]  # it may ask


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Range(2, 2), "low < high, got 2 and 2"),
        (lambda: LogRange(0, 2), "1e-100 <= low < high"),
        (lambda: Range(0, float("inf")), "high of a range must be a finite number"),
        (lambda: Range(False, 8), "low of a range must be a finite number, 1e.100 at most, got False"),
        (lambda: Range(1, 8, num=1), "num of a range must be an integer in 2..1000000, got 1"),
        (lambda: Range(1, 8, step=0), "step of a range must be a number >= 1e-100"),
        (lambda: Range(1, 8, step="2"), "step of a range must be a number >= 1e-100"),  # type: ignore[arg-type]
        (lambda: Range(1, 5, step=10), "must hold a multiple of its step"),
        (lambda: Range(1, 8).grid(), "a full grid needs num"),
        (lambda: Range(0, 10**400), "high of a range must be a finite number, 1e.100 at most, got <int of 1,329 bits>"),
        (lambda: Range(0, 1, step=5e-324), "step of a range must be a number >= 1e-100"),
        (lambda: Range(0, 1, num=10**12), "num of a range must be an integer in 2..1000000"),
        (lambda: Range(0, 10**12, step=1).grid(), "takes 1,000,000 values of a range at most"),
        (lambda: Choices(("\x1b[31mred",)), "none of them a control character, got '.x1b"),
        (lambda: Choices(({"a\nb": 1},)), "none of them a control character"),
        (lambda: Choices(({1: 2},)), "the keys of a table are texts, got 1"),
        (lambda: Choices(({"a": {"a": {"a": {"a": {"a": 1}}}}},)), "a value is None, a truth"),
        (lambda: Choices((float("nan"),)), "a number must be finite"),
        (lambda: Choices((10**5000,)), "a number must be finite"),
        (lambda: Space({"\x1b[31mred": DEMO}), "none of them a control character"),
        (lambda: Space(DEMO, variables={f"v{n}": 1 for n in range(300)}), "at most 256 fields and variables, got 300"),
        (lambda: Random(5, seed=-1), r"seed must be an integer in 0..2\*\*62, got -1"),
        (lambda: Random(5, seed=0.5), "seed must be an integer"),  # type: ignore[arg-type]
        (lambda: Random(1 << 63), r"num_points must be an integer in 1..2\*\*62"),
        (lambda: Adaptive(5, seed=1 << 32), r"seed must be an integer in 0..2\*\*31"),
        (lambda: LatinHypercube(10**10).rows(Space(DEMO, num_cores=[1]), 0, 1), "draws all its points at once"),
        (lambda: Space(DEMO, variables={"num_cores": [1]}), "names that nothing else has, got num_cores"),
        (lambda: Space(DEMO, variables={"point": [1]}), "names that nothing else has, got point"),
        (lambda: Space(DEMO, variables={"a b": [1]}), "a variable's name is of letters"),
        (lambda: Space(DEMO, {"num_cores": 8}, num_cores=8), "a field is given once, got num_cores twice"),
        (lambda: Space([DEMO, DEMO]), "need names of their own, got demo-8core, demo-8core: give a mapping"),
        (lambda: Space([]), "base must be an arch"),
        (lambda: Space(7), "base must be an arch"),  # type: ignore[arg-type]
        (lambda: Space(DEMO, variables={f"v{n}": range(1000) for n in range(8)}).grid_size, "cannot be numbered"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        make()


def test_several_bases() -> None:
    demo = load_arch(DEMO)
    space = Space([demo, "sg2260e", demo.with_(name="wide", cube_n=64)], launch_us=[0.0, 1.0])
    assert space.grid_size == 6
    assert column(space, "arch") == [DEMO, DEMO, "sg2260e", "sg2260e", "wide", "wide"]
    assert [space.arch(values).name for values in grid(space)[::2]] == [DEMO, "sg2260e", "wide"]
    named = Space({"as it is": demo, "more": demo.with_(num_cores=16)}, area_mm2="= num_cores")
    assert [(v["arch"], v["area_mm2"]) for v in grid(named)] == [("as it is", 8), ("more", 16)]
    assert {space.arch(values).name for values in grid(named) for space in [named]} == {DEMO}
    both = Space([DEMO, "h200-sxm"], dram_gb_per_s=[1000.0])
    assert [space.type for space in map(both.arch, grid(both))] == ["multicore", "gpu"]
    with pytest.raises(InvalidOptionError, match="num_cores is not a field of h200-sxm"):
        Space([DEMO, "h200-sxm"], num_cores=[8])


def test_a_huge_grid_costs_nothing() -> None:
    space = Space(DEMO, {"launch_us": Range(0, 1, num=1000)}, variables={f"v{n}": range(1000) for n in range(5)})
    assert space.grid_size == 10**18
    (last,) = space.grid_rows(10**18 - 1, 10**18)
    assert last == (999, 999, 999, 999, 999, 1.0)
    assert space.grid_rows(10**15 + 7, 10**15 + 8)[0] == (1, 0, 0, 0, 0, 7 / 999)


def test_a_space_with_expressions_can_be_sent() -> None:
    space = Space([DEMO, "sg2260e"], num_cores=[8, 16], area_mm2="= num_cores", variables={"x": LogRange(1, 9, 3)})
    again = pickle.loads(pickle.dumps(space))
    assert grid(again) == grid(space)
    assert [again.arch(values) for values in grid(again)] == [space.arch(values) for values in grid(space)]
    rows = Random(10).rows(space, 0, 10)
    assert rows == Random(10).rows(again, 0, 10)


def test_representations_say_what_there_is() -> None:
    assert repr(Space(DEMO, num_cores=[8])) == "Space(demo-8core, num_cores=Choices((8,)))"
    assert Dependent("2 * num_cores").of == "2 * num_cores"
