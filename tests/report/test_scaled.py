"""Numbers with a unit of their own size, and what the unit of a column is."""

from __future__ import annotations

import math

import pytest

from gemm_eval.report.parts import Column, say_bytes, say_capacity, say_energy, say_flop


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (say_bytes(101_580_800), "102 MB"), (say_bytes(999.6e6), "1.00 GB"), (say_bytes(12), "12.0 B"),
        (say_bytes(0), "0 B"),
        (say_capacity(262_144), "256 KiB"), (say_capacity(1.5 * 2**20), "1.5 MiB"), (say_capacity(100), "100 B"),
        (say_capacity(math.inf), "inf B"), (say_energy(3.2e9), "3.20 mJ"), (say_energy(0.5), "0.500 pJ"),
        (say_flop(1.1073e9), "1.11 GFLOP"),
    ],
)  # fmt: skip
def test_units_suit_the_size(text: str, wanted: str) -> None:
    assert text == wanted


@pytest.mark.parametrize(
    ("column", "heading", "unit"),
    [
        (Column("latency_us", kind="time"), "latency", "us"), (Column("latency", kind="time"), "latency", "us"),
        (Column("sram_bytes", kind="capacity"), "sram", "B"), (Column("dram_gb_per_s"), "dram_gb_per_s", "GB/s"),
        (Column("area_mm2"), "area_mm2", "mm2"), (Column("tflop_per_s_per_w"), "tflop_per_s_per_w", ""),
        (Column("energy_delay_pj_us"), "energy_delay_pj_us", ""), (Column("share", "%"), "share", "%"),
        (Column("power_w", kind="text"), "power_w", ""),
    ],
)  # fmt: skip
def test_names_tell_their_units(column: Column, heading: str, unit: str) -> None:
    assert (column.heading, column.base_unit) == (heading, unit)
