"""The filter of tables: expressions over columns with units, plain words, and what it says of what it does not know."""

from typing import Any

import pytest

from gemm_eval.report import Column, Page, Section, Table
from tests.browser.conftest import Open

COLUMNS = [
    Column("name", kind="text"), Column("bound", kind="text"), Column("num_cores"),
    Column("sram_bytes", kind="capacity"),
    Column("latency_us", kind="time"), Column("dram_gb_per_s"), Column("area_mm2"), Column("of peak", "%"),
    Column("dram_bytes", kind="bytes"), Column("limit_us", kind="time"),
    Column("power_w"), Column("power_frac"),
]  # fmt: skip
ROWS: list[list[Any]] = [
    [
        f"chip {n} or so", "dram" if n % 3 else "the tensor cores", 2 ** (n % 7), 2 ** (18 + n % 5), 450.0 * 1.7**n,
        100.0 * (1 + n % 4), None if n == 5 else 10.0 + 7.5 * n, 2.5 * n, 1e6 * (n + 1), 2000.0,
        250.0, 0.5,
    ]
    for n in range(24)
]  # fmt: skip
NAMES = [row[0] for row in ROWS]


def those(holds: Any) -> list[str]:
    return [row[0] for row in ROWS if holds(dict(zip([column.name for column in COLUMNS], row, strict=True)))]


CASES = {
    "num_cores = 64": lambda r: r["num_cores"] == 64,
    "num_cores == 64": lambda r: r["num_cores"] == 64,
    "NUM CORES != 64": lambda r: r["num_cores"] != 64,
    "latency < 5 ms": lambda r: r["latency_us"] < 5000,
    "latency<5ms": lambda r: r["latency_us"] < 5000,
    "latency_us < 5,000": lambda r: r["latency_us"] < 5000,
    "latency >= 0.005 s": lambda r: r["latency_us"] >= 5000,
    "latency = 450 us": lambda r: r["latency_us"] == 450,
    "latency = 18.3 s": lambda r: 18.25e6 <= r["latency_us"] < 18.35e6,
    "1 ms < latency <= 5e3 us": lambda r: 1000 < r["latency_us"] <= 5000,
    "5 ms > latency": lambda r: r["latency_us"] < 5000,
    "area_mm2 <= 40 and sram >= 2 MiB": lambda r: (r["area_mm2"] or 99) <= 40 and r["sram_bytes"] >= 2**21,
    "area <= 40 mm2 sram_bytes>=2097152": lambda r: (r["area_mm2"] or 99) <= 40 and r["sram_bytes"] >= 2**21,
    "area > 0": lambda r: r["area_mm2"] is not None,
    "of peak > 30 % or num_cores = 1": lambda r: r["of peak"] > 30 or r["num_cores"] == 1,
    "not (of_peak > 30 or num_cores = 1)": lambda r: not (r["of peak"] > 30 or r["num_cores"] == 1),
    "dram_gb_per_s = 0.2 TB/s": lambda r: r["dram_gb_per_s"] == 200,
    "dram_bytes > 10 MB": lambda r: r["dram_bytes"] > 10e6,
    "bound = dram": lambda r: r["bound"] == "dram",
    'bound != "DRAM"': lambda r: r["bound"] != "dram",
    'bound = "the tensor cores" num_cores >= 8': lambda r: r["bound"] == "the tensor cores" and r["num_cores"] >= 8,
    "latency > limit": lambda r: r["latency_us"] > 2000,
    "tensor num_cores = 4": lambda r: "tensor" in r["bound"] and r["num_cores"] == 4,
    'CHIP "7 or so"': lambda r: "7 or so" in r["name"],
    "num_cores ≥ 8 && num_cores ≤ 16": lambda r: 8 <= r["num_cores"] <= 16,
}


@pytest.fixture(scope="module")
def page() -> Page:
    return Page("filter", sections=[Section("all", [Table(COLUMNS, ROWS, caption="chips")])])


def test_expressions_keep_the_rows_for_which_they_hold(open_page: Open, page: Page) -> None:
    opened = open_page(page)
    box, output = opened.page.get_by_role("searchbox"), opened.page.locator("output")
    for text, holds in CASES.items():
        box.fill(text)
        found = opened.page.locator("tbody tr:visible th").all_inner_texts()
        assert found == those(holds), (text, output.inner_text())
        assert 0 < len(found) < len(NAMES), text
        assert output.inner_text() == f"{len(found)} of {len(NAMES)} rows", text
        assert box.get_attribute("aria-invalid") == "false"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_core = 64", "no column num_core; did you mean num_cores?"),
        (
            "speed < 5",
            "no column speed; columns are name, bound, num_cores, sram, latency, dram_gb_per_s, area_mm2, of peak",
        ),
        ("latency < 5", "latency is a time: write latency < 5 ms"),
        ("latency < 5 MB", "latency is a time, 5 MB is a number of bytes"),
        ("num_cores < 5 ms", "num_cores has no unit, 5 ms is a time"),
        ("latency < soon", "soon is no number; latency is a time: write latency < 5 ms"),
        ("latency <", "a value is missing after <"),
        ("latency < and num_cores = 4", "a value is missing before and"),
        ("num_cores = 4 and", "a word or a comparison is missing at the end"),
        ("(num_cores = 4", "a ) is missing"),
        ("num_cores = 4)", ") is not understood here"),
        ("bound < dram", "bound holds words: use = or !="),
        ("latency > num_cores", "latency and num_cores are not the same kind of thing"),
        ("dram > 3 GB/s", "dram is a number of bytes, 3 GB/s is a bandwidth"),
        ("power > 3", "power may be power_w or power_frac: write one of them"),
        ("or dram", "or stands between two conditions"),
    ],
)
def test_what_is_not_understood_is_said_and_filters_nothing(
    open_page: Open, page: Page, text: str, message: str
) -> None:
    opened = open_page(page)
    box = opened.page.get_by_role("searchbox")
    box.fill("num_cores = 64")
    before = opened.page.locator("tbody tr:visible th").all_inner_texts()
    box.fill(text)

    assert opened.page.locator("output").inner_text().startswith(message)
    assert box.get_attribute("aria-invalid") == "true"
    assert opened.page.locator("tbody tr:visible th").all_inner_texts() == before
    box.fill("")
    assert opened.page.locator("tbody tr:visible").count() == len(NAMES)


def test_the_field_shows_an_expression_that_holds_for_some_rows(open_page: Open, page: Page) -> None:
    opened = open_page(page)
    box = opened.page.get_by_role("searchbox")
    example = box.get_attribute("placeholder") or ""
    box.fill(example)

    assert " and " in example
    assert box.get_attribute("aria-invalid") == "false"
    assert "latency < 5 ms" in (opened.page.locator(".filter").get_attribute("title") or "")
    assert opened.page.locator("tbody tr:visible").count() > 0
