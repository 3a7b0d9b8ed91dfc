"""The log of a server process: lines of key=value on stderr, with times in UTC."""

from __future__ import annotations

import logging
import sys
import time

from ..base.log_limit import LogLimit
from ..base.quoting import one_line

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Lines(logging.Formatter):
    """Writes each event as one line, whatever peers put into it, then its traceback. Records of libraries have the event `note`."""

    converter = staticmethod(time.gmtime)

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = one_line(record.message)
        record.message = text if text.startswith("event=") else f"event=note text={text}"
        return super().formatMessage(record)


def start_logging(name: str, level: str = "info", kind: str = "broker") -> None:
    """Send log records to stderr. kind, name: stand in each line as `kind=name`. level: one of LEVELS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Lines(f"%(asctime)s.%(msecs)03dZ level=%(levelname)s {kind}={name} logger=%(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    )
    handler.addFilter(LogLimit())
    for word, number in LEVELS.items():
        logging.addLevelName(number, word)
    logging.basicConfig(level=LEVELS[level], handlers=[handler])
