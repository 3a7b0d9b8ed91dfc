"""How many files and connections a process may have open.

Each connection takes a descriptor. The soft limit is what most systems give a program (1,024), for the sake of programs that use
`select(2)`; the hard limit is what its owner may have. Event loops use `epoll` and `kqueue`, which know no such bound.
"""

from __future__ import annotations

import contextlib
import resource


def raise_file_limit() -> None:
    """Let this process open as many files as its owner may: the soft limit becomes the hard one (setrlimit(2)).

    For programs that own their process; a broker inside another program leaves this to that program. Where the system refuses the limit
    stays as it is.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS takes no infinite one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
