"""What a failing test or a notebook prints of a value is short, and says what matters."""

from __future__ import annotations
