"""Our W4A16 kernels beside other engines on this machine's GPU: `python -m benchmarks.compare --help`.

`operands` makes GEMMs and weights that all engines share, `engines` and `humming` run them, `side_by_side` times them.
"""
