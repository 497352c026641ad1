"""Opens cache files, and sorts the errors of SQLite. The only room, with `store`, that knows SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from gemm_eval.storage.atomic import place_new
from gemm_eval.storage.cache.files import APPLICATION_ID, remove_leftovers, staging_path
from gemm_eval.storage.cache.trouble import Kind, Trouble, from_os_error

__all__ = ["SCHEMA_VERSION", "build", "open_existing", "translated"]

SCHEMA_VERSION = 1

CACHE_KIB = 8192  # pages in memory, per connection
WAL_KEPT_BYTES = 4 << 20  # a longer -wal file is cut to this after a checkpoint

_SCHEMA = (
    # Rows lie in the order of arrival, not of their digests: a batch of new entries touches few pages.
    "CREATE TABLE entries (id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, key BLOB NOT NULL, value TEXT NOT NULL,"
    " checksum INTEGER NOT NULL, last_used_s INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX entries_by_key ON entries (namespace, key)",
    "CREATE INDEX entries_by_age ON entries (last_used_s)",
)
_URI_OPTIONS = ""  # tests choose a virtual file system without shared memory

_KIND_OF_CODE = {
    sqlite3.SQLITE_READONLY_DBMOVED: Kind.MOVED,
    sqlite3.SQLITE_CORRUPT: Kind.DAMAGED,
    sqlite3.SQLITE_NOTADB: Kind.DAMAGED,
    sqlite3.SQLITE_FORMAT: Kind.DAMAGED,
    sqlite3.SQLITE_ERROR: Kind.DAMAGED,  # no such table or column: not our schema
    sqlite3.SQLITE_CONSTRAINT: Kind.DAMAGED,
    sqlite3.SQLITE_MISMATCH: Kind.DAMAGED,
    sqlite3.SQLITE_BUSY: Kind.BUSY,
    sqlite3.SQLITE_LOCKED: Kind.BUSY,
    sqlite3.SQLITE_PROTOCOL: Kind.BUSY,
    sqlite3.SQLITE_READONLY: Kind.READ_ONLY,
    sqlite3.SQLITE_PERM: Kind.READ_ONLY,
    sqlite3.SQLITE_AUTH: Kind.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: Kind.CANNOT_OPEN,
    sqlite3.SQLITE_FULL: Kind.NO_SPACE,
    sqlite3.SQLITE_IOERR_WRITE: Kind.NO_SPACE,
    sqlite3.SQLITE_IOERR_TRUNCATE: Kind.NO_SPACE,
    sqlite3.SQLITE_IOERR_SHMSIZE: Kind.NO_SPACE,
    sqlite3.SQLITE_TOOBIG: Kind.NO_SPACE,
    sqlite3.SQLITE_IOERR_CORRUPTFS: Kind.DAMAGED,
}
# What SQLite says where WAL cannot work: no shared memory, no locks on it, or locks that make no sense.
_NO_WAL_CODES = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL})


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn errors of SQLite and of the operating system into `Trouble`; wrong use of sqlite3 stays what it is."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            raise
        kind = _KIND_OF_CODE.get(code) or _KIND_OF_CODE.get(code & 0xFF, Kind.FAILED)
        raise Trouble(kind, str(error)) from error
    except UnicodeDecodeError as error:  # sqlite3 reads SQLite's messages as UTF-8, and they quote what the file says
        raise Trouble(Kind.DAMAGED, f"it holds text that is no UTF-8 ({error.reason})") from error
    except OSError as error:
        raise from_os_error(error) from error


def build(path: Path, *, use_wal: bool) -> None:
    """Put a new, empty cache file at `path`, complete at first sight. Only under the exclusive guard.

    Raises:
        Trouble: it cannot be written.
    """
    with translated():
        remove_leftovers(path)
        staging = staging_path(path)
        try:
            with contextlib.closing(_connect(staging, "rwc", timeout_s=0.0)) as connection:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only before the first table
                connection.execute("BEGIN")
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute("COMMIT")
                if use_wal:
                    connection.execute("PRAGMA journal_mode = WAL")
            place_new(staging, path)  # should the guard not work here, another file is not replaced
        finally:
            with contextlib.suppress(OSError):
                staging.unlink(missing_ok=True)


def open_existing(path: Path, *, timeout_s: float, use_wal: bool, is_read_only: bool) -> sqlite3.Connection:
    """Open and check the file at `path`, so far that its companions are open too.

    Raises:
        Trouble: of any kind; FOREIGN for a file of another program, DAMAGED also for a newer schema. Both stay as they
            are.
    """
    with translated():
        # without locks, so that nothing of another program's file changes; what others are writing may look damaged
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(_connect(path, "ro", timeout_s, "&immutable=1")) as connection,
        ):
            _check_owner(connection)
        if is_read_only:
            # Without shared memory SQLite reads a WAL file only if told that nobody writes; checksums guard the rest.
            wal = path.with_name(path.name + "-wal")
            is_quiet = not wal.exists() or wal.stat().st_size == 0
            return _prepared(_connect(path, "ro", timeout_s, "&immutable=1" if is_quiet else ""))
        try:
            return _prepared(_connect(path, "rw", timeout_s), journal_mode="WAL" if use_wal else "DELETE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _NO_WAL_CODES:
                raise
        # A single user needs no shared memory, so it can take the file out of WAL mode.
        return _prepared(_connect(path, "rw", timeout_s), journal_mode="DELETE", takes_over=True)


def _prepared(
    connection: sqlite3.Connection, *, journal_mode: str | None = None, takes_over: bool = False
) -> sqlite3.Connection:
    try:
        if takes_over:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # first: the others already read the file
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        connection.text_factory = bytes  # what a file says may be no text
        _check_format(connection)
        if journal_mode is not None:
            actual = _set_journal_mode(connection, journal_mode)
            # why NORMAL goes with WAL and FULL with a rollback journal: see `store`
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if actual == b'wal' else 'FULL'}")
        if takes_over:
            connection.execute("PRAGMA locking_mode = NORMAL")
        connection.execute("SELECT 1 FROM entries LIMIT 1").fetchall()  # opens the companions; drops an exclusive lock
    except BaseException:
        connection.close()
        raise
    return connection


def _set_journal_mode(connection: sqlite3.Connection, mode: str) -> bytes:
    try:
        return bytes(connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0])
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return bytes(connection.execute("PRAGMA journal_mode").fetchone()[0])  # others use it as it is: so can we


def _check_owner(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise Trouble(Kind.DAMAGED, "another program wrote it")


def _check_format(connection: sqlite3.Connection) -> None:
    _check_owner(connection)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an older"
        raise Trouble(Kind.DAMAGED, f"{age} gemm_eval wrote it (schema {version}, this one is {SCHEMA_VERSION})")
    # exactly: a view or a trigger in the place of a table could do anything, or never end
    found = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master")]
    if found != [sql.encode() for sql in _SCHEMA]:
        raise Trouble(Kind.DAMAGED, "its tables are not those of a cache")


def _connect(path: Path, mode: str, timeout_s: float, options: str = "") -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}{options}{_URI_OPTIONS}"
    return sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)
