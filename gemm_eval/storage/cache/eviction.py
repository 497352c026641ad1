"""Keeps a cache file inside its bound: which entries go, and how their room is used again.

Room is made before entries are written, so that they go to the pages of those that went, and the file neither grows
nor has to be cut: cutting moves the pages at its end to free places, one by one.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3

from gemm_eval.storage.cache.trouble import Kind, Trouble

__all__ = ["give_back_all", "keep_bound", "make_room"]

LOW_WATER_FRAC = 0.9  # of the bound: eviction makes this much room at once, so that it is rare
LEAST_EVICTED_FRAC = 0.01  # of the entries, per round: rows scattered over pages may free none at first


def make_room(connection: sqlite3.Connection, *, max_bytes: int, new_bytes: int) -> None:
    """Drop the least recently used entries, of all namespaces, where `new_bytes` more would pass the bound.

    Inside a transaction.

    Raises:
        Trouble: DAMAGED, the file's counts of pages cannot be.
    """
    page_bytes = pragma(connection, "page_size")
    max_pages = max_bytes // page_bytes
    allowed_pages = max(0, max_pages - math.ceil(new_bytes / page_bytes))
    if _num_used_pages(connection) <= allowed_pages:
        return
    low_pages = min(allowed_pages, int(max_pages * LOW_WATER_FRAC))
    while (num_used := _num_used_pages(connection)) > low_pages:
        num_entries = connection.execute("SELECT count(*) FROM entries").fetchone()[0]
        if num_entries == 0:
            break
        share = max((num_used - low_pages) / num_used, LEAST_EVICTED_FRAC)
        connection.execute(
            "DELETE FROM entries WHERE id IN (SELECT id FROM entries ORDER BY last_used_s, id LIMIT ?)",
            (math.ceil(num_entries * share),),
        )


def keep_bound(connection: sqlite3.Connection, *, max_bytes: int) -> None:
    """Make sure of the bound after a write: what was misjudged goes, and free pages above the bound are cut off.

    Inside a transaction.
    """
    make_room(connection, max_bytes=max_bytes, new_bytes=0)
    num_above = pragma(connection, "page_count") - max_bytes // pragma(connection, "page_size")
    for _ in range(num_above):  # a page for each call: sqlite3 stops at the first row, and these rows are empty
        connection.execute("PRAGMA incremental_vacuum(1)")


def give_back_all(connection: sqlite3.Connection) -> None:
    """Cut all free pages off. If others are busy with the file, some stay until the next write."""
    with contextlib.suppress(sqlite3.Error):
        connection.executescript("PRAGMA incremental_vacuum")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """The value of a setting that is a number."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _num_used_pages(connection: sqlite3.Connection) -> int:
    num, num_free = pragma(connection, "page_count"), pragma(connection, "freelist_count")
    if not 0 <= num_free < num:  # SQLite believes the header, and all entries would have to go, each time
        raise Trouble(Kind.DAMAGED, f"{num_free} of its {num} pages are free, it says")
    return num - num_free
