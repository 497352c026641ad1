"""Choosing Triton configs by model: what their machine code says, which to leave out, which to try first."""
