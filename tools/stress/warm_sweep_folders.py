"""What the server of `tools.stress.sweep_folders` imports before it forks: kernels are loaded then, children quick."""

from tools.stress.sweep_folders import go

go(None)
