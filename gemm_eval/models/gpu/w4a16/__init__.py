"""The W4A16 families: our own kernels, from a table of their machine code. The terms stand in MODEL.md beside this."""
