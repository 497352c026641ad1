"""What a failing test or a notebook prints of a value is short, and says what matters."""

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from gemm_eval import (
    GEMMEvaluator,
    GemmProblem,
    GpuSpec,
    PlanOptions,
    list_archs,
    list_models,
    load_arch,
    load_model,
    select_config,
    transformer_gemms,
)
from gemm_eval.kernels import limits_of_spec, list_kernels, pack_w4, quantize_w4
from gemm_eval.kernels.config_cache import ConfigCache, shipped_path
from gemm_eval.mapping import KernelConfig
from gemm_eval.sweep import Space, Workload
from gemm_eval.units import time_text

MAX_CHARS = 300
PROBLEM = GemmProblem(1, 16, 4096, 4096, "fp16", "int4", group_size=64, zero_dtype="int4", scale_dtype="fp32")  # type: ignore[arg-type]


def test_values_print_short() -> None:
    chips = [load_arch(name) for name in list_archs()]
    models = [load_model(name) for name in list_models()]
    weights = np.eye(64, dtype=np.float32)
    ev = GEMMEvaluator("demo-8core", disk_cache=False)
    config = select_config(PROBLEM, "h100-sxm", library="trtllm")[0]
    values = [
        *chips, *(chip.published for chip in chips), *(entry for chip in chips for entry in chip.provenance.values()),
        *models, *(model.attention for model in models), *(model.moe for model in models),
        chips[0].with_(**{name: getattr(chips[0], name) for name in type(chips[0]).model_fields if name != "name"}),
        PROBLEM, config,
        ev, ev.evaluate(1, 64, 64, 64), ev.evaluate(1, 64, 64, 64).mapping, ev.evaluate_many([(1, 64, 64, 64)] * 1000),
        *transformer_gemms(models[0], phase="decode", batch_size=1, seq_len=8), PlanOptions.heuristic(3, 4),
        *ConfigCache.load(shipped_path("h200-sxm"), is_read_only=True).records[:3],
        *list_kernels(limits_of_spec(load_arch("h100-sxm", GpuSpec)))[:3], pack_w4(weights), quantize_w4(weights),
        Space("demo-8core", {"num_cores": list(range(1, 1000)), "sram_bytes": list(range(1000, 2000))}),
        Workload("many", tuple((GemmProblem(1, m, 64, 64), 1) for m in range(1, 100))),
    ]  # fmt: skip
    for value in values:
        for text in (repr(value), str(value)):
            assert len(text) <= MAX_CHARS, (len(text), text)
    garbage = KernelConfig(*([10**5000] * 13))  # type: ignore[arg-type]
    assert repr(garbage).startswith("KernelConfig(<int of 16,610 bits>, ")


def test_a_repr_says_what_matters() -> None:
    chip = load_arch("demo-8core")

    assert repr(chip).startswith("MulticoreSpec('demo-8core', num_cores=8, ")
    assert repr(chip.with_(num_cores=4, launch_us=1.5)).endswith(", launch_us=1.5)")  # what was changed, too
    assert eval(repr(PROBLEM)) == PROBLEM
    assert eval(repr(GemmProblem(1, 2, 3, 4))) == GemmProblem(1, 2, 3, 4)


class Page(HTMLParser):
    """The text of each cell by its row, and all that an element may bring along."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def check_plain(page: Page) -> None:
    """Nothing from elsewhere, and no colour that a dark page would hide."""
    assert {name for name, _ in page.attributes} == {"style"}
    for _, style in page.attributes:
        assert not re.search(r"#|rgb|hsl|black|white|background|url|(?<!-)color:(?!inherit)", style or ""), style


@pytest.mark.parametrize("arch", ["h200-sxm", "demo-8core"])
def test_a_notebook_shows_a_result(arch: str) -> None:
    result = GEMMEvaluator(arch, disk_cache=False).evaluate(1, 512, 4096, 4096)
    page = Page(result._repr_html_())
    cells = dict(page.rows)

    check_plain(page)
    assert cells["latency"] == time_text(result.latency_us)
    assert cells["of peak"] == f"{result.utilization_frac:.1%}"
    assert (cells["bound"], cells["source"]) == (result.bound, result.source)
    assert cells["kernel" if arch == "h200-sxm" else "mapping"] == str(result.mapping)
    interval = "-" if result.low_us is None else f"{time_text(result.low_us)} to {time_text(result.high_us or 0)}"
    assert cells["80% interval"] == interval


def test_a_notebook_shows_a_table_and_what_does_not_fit() -> None:
    small = load_arch("demo-8core").with_(sram_bytes=1 << 14)
    table = GEMMEvaluator(small, disk_cache=False).evaluate_many(
        [GemmProblem(1, 64, 64, 64), (1, 64, 64, 64)] * 15, "w4a16", errors="mark"
    )
    page = Page(table._repr_html_())

    assert table.is_feasible[:2].tolist() == [True, False]
    check_plain(page)
    assert "30 GEMMs on demo-8core, the first 20 of them" in table._repr_html_()
    assert len(page.rows) == 1 + 20
    assert page.rows[1][0] == str(table.problem(0))
    assert [row[1] for row in page.rows[1:3]] == [time_text(table["latency_us"][0]), "does not fit"]
    assert "first" not in GEMMEvaluator("demo-8core").evaluate_many([(1, 64, 64, 64)])._repr_html_()
    assert len(Page(GEMMEvaluator("demo-8core").evaluate_many([])._repr_html_()).rows) == 1


def test_names_are_escaped_in_a_notebook() -> None:
    chip = load_arch("demo-8core")
    name = "<script>alert('&')</script>\x1b"
    result = dataclasses.replace(GEMMEvaluator(chip, disk_cache=False).evaluate(1, 64, 64, 64), arch_name=name)

    assert "<script" not in result._repr_html_()
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;\\x1b" in result._repr_html_()
