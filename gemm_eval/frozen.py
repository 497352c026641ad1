"""`FrozenDict`: a dict that cannot be changed, for values that are shared: specs, and results in a cache."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict without the methods that change it. Hashable when its values are; ``dict(it)`` is a copy to change."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this dict is frozen because it is shared; dict(...) makes a copy to change")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def copy(self) -> FrozenDict[K, V]:
        """Return itself."""
        return self

    def __copy__(self) -> FrozenDict[K, V]:
        return self

    def __deepcopy__(self, _: Any) -> FrozenDict[K, V]:
        return self
