"""How the points of a sweep are cut into chunks, each of which is evaluated, and kept, as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Chunks"]


@dataclass(frozen=True)
class Chunks:
    """The chunks of a sweep, by the number of their first point.

    Attributes:
        num_points: of the sweep.
        size: points of a chunk; fewer at the end of a batch.
        batch_size: points that are chosen together, all of them unless the sampling is adaptive.
    """

    num_points: int
    size: int
    batch_size: int

    def num_at(self, first: int) -> int:
        """Return how many points the chunk has that begins at a point, 0 if none does."""
        inside = first % self.batch_size
        if not 0 <= first < self.num_points or inside % self.size:
            return 0
        return min(self.size, self.batch_size - inside, self.num_points - first)

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (first point, number of points) of the chunks from `start`, where one begins, to `stop`."""
        while start < stop:
            num = self.num_at(start)
            yield start, num
            start += num
