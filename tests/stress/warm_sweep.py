"""What the server of `tests.stress.sweep` imports before it forks: kernels are loaded then, and a child is quick."""

from tests.stress.sweep import go

go(None)
