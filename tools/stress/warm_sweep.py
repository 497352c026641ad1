"""Imports of the server of `tools.stress.sweep` before it forks: kernels are loaded then, children quick."""

from tools.stress.sweep import go

go(None)
