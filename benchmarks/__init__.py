"""Comparisons with other makers' kernels and simulators, and campaigns that wrote measured tables; not in the wheel.

Run from a checkout, such as `python -m benchmarks.compare`, `python -m benchmarks.simulators`, or a campaign:
`python -m benchmarks.measure_attention --out FOLDER`.
"""
