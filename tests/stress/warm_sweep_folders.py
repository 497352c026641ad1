"""What the server of `tests.stress.sweep_folders` imports before it forks: kernels are loaded then, children quick."""

from tests.stress.sweep_folders import go

go(None)
