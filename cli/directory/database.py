"""The database of a directory, for commands that work on it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...base.extras import install
from ..output import FAILED, WRONG_USE, fail


@contextmanager
def opened_store(database: str) -> Iterator[Any]:
    """The directory's `Store`, closed at the end. The command ends with a line where the database does not do what it should."""
    try:
        from sqlalchemy.exc import SQLAlchemyError

        from ...directory.storage.errors import DirectoryError
        from ...directory.storage.store import Store
    except ImportError as error:
        raise fail(f"the directory needs its extra: {install('directory')} ({error})", WRONG_USE) from error
    try:
        store = Store(database)
    except (SQLAlchemyError, DirectoryError, ImportError) as error:
        raise fail(f"cannot open the database: {_line(error)}", FAILED) from error
    try:
        yield store
    except (SQLAlchemyError, DirectoryError) as error:
        raise fail(f"the database: {_line(error)}", FAILED) from error
    finally:
        store.close()


def _line(error: Exception) -> str:
    """What a database or the directory says, without what SQLAlchemy adds."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
