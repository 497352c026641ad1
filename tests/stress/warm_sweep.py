"""What the server of `tests.stress.sweep` imports before it forks: then all kernels are loaded, and a child is quick."""

from tests.stress.sweep import go

go(None)
