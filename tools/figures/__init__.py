"""Figures of the documentation as data: what commands print with ``--json``, kept in docs/figures, and rendered."""
