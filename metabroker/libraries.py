"""Which protocols of remotes need a library that is not part of every installation."""

from __future__ import annotations

import importlib

from ..base.extras import install

LIBRARIES = {"amqp": "aio_pika", "nats": "nats"}  # by an address's kind; the extra has its name


def missing_library(kind: str) -> str | None:
    """What to do before remotes of this kind can be reached; None: nothing."""
    try:
        if kind in LIBRARIES:
            importlib.import_module(LIBRARIES[kind])
    except ImportError as error:
        return f"needs a library that is not installed: {install(kind)} ({error})"
    return None
