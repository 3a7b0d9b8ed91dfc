"""The files and connections that a process has open: how many it may have, and the first three.

Each connection takes a descriptor. The soft limit is what most systems give a program (1,024), for the sake of programs that use
`select(2)`; the hard limit is what its owner may have. Event loops use `epoll` and `kqueue`, which know no such bound.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys

STANDARD = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # descriptors 0, 1 and 2


def raise_file_limit() -> None:
    """Let this process open as many files as its owner may: the soft limit becomes the hard one (setrlimit(2)).

    For programs that own their process; a broker inside another program leaves this to that program. Where the system refuses the limit
    stays as it is.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS takes no infinite one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_standard_files() -> None:
    """Give this process a standard input, output and error where whoever started it has closed them (`mqmesh broker <&-`): /dev/null.

    Otherwise the next file or connection gets their number: what a library says on standard error is written into a store then, and
    libuv ends the process when a connection with such a number is closed. To be called before anything is opened.
    """
    for number, (name, mode) in enumerate(STANDARD):
        try:
            os.fstat(number)
        except OSError:
            file = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            os.set_inheritable(file, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 # for as long as the process lasts
