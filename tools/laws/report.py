"""Counts and violations of laws in a run over random problems."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """Counts of one run, or of several added up.

    Attributes:
        checked: law -> how often it was checked.
        excepted: named exception of a law (see the module of the law) -> how often it was met.
        worst: the same -> the largest ratio by which the law was missed there.
        violations: what was found, in words, with all that is needed to ask again.
    """

    checked: Counter[str] = field(default_factory=Counter)
    excepted: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Add the counts of another run."""
        self.checked.update(other.checked)
        self.excepted.update(other.excepted)
        for name, ratio in other.worst.items():
            self.worst[name] = max(ratio, self.worst.get(name, 0.0))
        self.violations += other.violations

    def except_(self, name: str, ratio: float) -> None:
        """Count a miss that is explained."""
        self.excepted[name] += 1
        self.worst[name] = max(ratio, self.worst.get(name, 0.0))

    def text(self) -> str:
        """Return lines for people."""
        lines = [f"{sum(self.checked.values()):,} checks, {len(self.violations):,} violations"]
        lines += [f"  {count:>12,}  {law}" for law, count in sorted(self.checked.items())]
        if self.excepted:
            lines.append("explained misses, with the largest ratio:")
            lines += [
                f"  {count:>12,}  {self.worst[name]:.4f}  {name}" for name, count in sorted(self.excepted.items())
            ]
        return "\n".join(lines + [f"VIOLATION {text}" for text in self.violations[:50]])
