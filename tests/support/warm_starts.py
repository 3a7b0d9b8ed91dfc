"""Processes of `mqmesh` that tests start, without the time for their imports and their end.

Tests start `python -m mqmesh.cli.main ...` some thousand times; some of them `python -c PROGRAM ...`, where PROGRAM changes something and
runs the same. A broker that starts and ends takes 0.20 s of processor time. Nearly all of it goes into the start of Python, into imports,
and into freeing objects at the end. So each process of pytest keeps one helper, which has done the imports and waits. `install` puts a
function in the place of the one by which `subprocess.Popen` forks. It asks the helper to clone itself, and the clone runs the command:
0.02 s. What PROGRAM changes has to be an attribute that is looked up when it is used: modules that import it by name have it already.

The clone is a process like another: it is a child of pytest (CLONE_PARENT), so that `Popen.wait` and signals work as ever. It has a process
identifier, a session or group if that is asked for, the folder, environment, files, limits and command line of its own. What is asked for
beyond this has a true start: other programs, options of the interpreter, `preexec_fn`, another user, variables that Python or the C library
reads at its start (`AT_START`). So has all in tests marked `cold`, and everything with MQMESH_COLD_STARTS=1.

What a test loses by it
- More modules are loaded than the command imports by itself: a forgotten import is not noticed, nor a slow one.
- Figures of memory and processor time are not those of a true start.
- Python does not free what is left at the end, and so says nothing about it.
- /proc/PID/environ is that of the helper; NULs follow the command line in /proc/PID/cmdline; tracebacks begin with frames of this file.
Processes that `mqmesh` itself starts have true starts.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import io
import json
import os
import resource
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

MODULE = "mqmesh.cli.main"  # loaded by runpy in each clone, as its __main__
LOADED = (  # what the commands that tests start most import, and import when they run
    "uvloop sqlite3 lmdb ssl websockets.frames psutil msgpack lxml.etree argon2",
    "mqmesh.cli.broker mqmesh.broker.program mqmesh.broker.server mqmesh.cli.fleet.command mqmesh.cli.messages.pub mqmesh.cli.messages.sub",
    "mqmesh.cli.status.command mqmesh.cli.management.command mqmesh.cli.queue.command mqmesh.cli.recipients.command",
    "mqmesh.cli.topology.command mqmesh.cli.directory.command mqmesh.cli.metabroker mqmesh.cli.interchange.command",
    "mqmesh.cli.journal.command mqmesh.cli.trace mqmesh.cli.sessions mqmesh.cli.billing.command",
    "mqmesh.cli.demo.command mqmesh.cli.passwd mqmesh.cli.cert",
)
AT_START = (
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "MALLOC_",
    "GLIBC_",
    "OPENSSL_",
    "TYPER_",
    "_TYPER_",
    "FORCE_COLOR",
    "NO_COLOR",
)  # beginnings of names of variables
ROOM = 16_384  # bytes for the command line of a clone
FILES = 64  # most files that a clone gets
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]

enabled = True  # false: only true starts


def install() -> None:
    """Let `subprocess` clone what it can, in this process: on Linux x86-64 with Python 3.11 or 3.12. Elsewhere all starts are true ones."""
    known = sys.platform == "linux" and os.uname().machine == "x86_64" and sys.version_info < (3, 13)  # later ones spawn where they can
    if known and os.environ.get("MQMESH_COLD_STARTS") != "1":
        subprocess._fork_exec = starter = _Starter(subprocess._fork_exec)  # type: ignore[attr-defined]
        atexit.register(starter.end)


class _Starter:
    """In the place of `subprocess._fork_exec`."""

    def __init__(self, true_start: Any) -> None:
        self._true_start = true_start
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._helper: socket.socket | None = None
        self._environment = dict(os.environ)

    def __call__(self, *asked: Any) -> int:
        if enabled and (order := self._order(*asked)) is not None:
            with self._lock:
                return self._clone(*order)
        return self._true_start(*asked)  # type: ignore[no-any-return]

    def _order(self, *asked: Any) -> tuple[dict[str, Any], list[int]] | None:
        """What the helper has to know, and the files of the clone; None: this wants a true start."""
        if len(asked) != 23 or os.getpid() != self._owner:
            return None
        args, programs, close_fds, keep, cwd, env, stdin, _, _, stdout, _, stderr, *rest = asked
        _, told, _, session, group, gid, gids, uid, umask, preexec, _ = rest
        words = [os.fsencode(word) for word in args]
        if not _ours(words[1:3]) or words[0] != os.fsencode(sys.executable) or programs != (words[0],):
            return None
        if not close_fds or preexec is not None or gid is not None or gids is not None or uid is not None or umask >= 0:
            return None
        environment = dict(one.split(b"=", 1) for one in env) if env is not None else dict(os.environb)
        if _at_start({os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()}) != _at_start(self._environment):
            return None
        line = b"\0".join(words) + b"\0"
        others = [one for one in keep if one != told]
        if len(line) >= ROOM or len(others) > FILES - 6 or min(others, default=9) < 3:
            return None
        try:
            folder = os.open(cwd if cwd is not None else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None  # a true start says what is wrong
        files = {0: stdin if stdin != -1 else 0, 1: stdout if stdout != -1 else 1, 2: stderr if stderr != -1 else 2}
        files.update((one, one) for one in others)
        status = Path("/proc/thread-self/status")
        order = {
            "words": [word.decode("latin-1") for word in words],
            "environment": [[key.decode("latin-1"), value.decode("latin-1")] for key, value in environment.items()],
            "files": list(files),
            "session": bool(session),
            "group": group,
            "limits": [resource.getrlimit(one) for one in LIMITS],
            "mask": [int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "umask": int(next(one for one in status.read_text().splitlines() if one.startswith("Umask:")).split()[1], 8),
            "processors": list(os.sched_getaffinity(0)),
        }
        return order, [folder, told, *files.values()]

    def _clone(self, order: dict[str, Any], files: list[int]) -> int:
        try:
            if self._helper is None:
                self._helper = self._start_helper()
            data = json.dumps(order).encode()
            self._helper.sendmsg([struct.pack("!I", len(data))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
            self._helper.sendall(data)
            return struct.unpack("!i", _exactly(self._helper, 4))[0]  # type: ignore[no-any-return]
        except BaseException:  # of a signal's handler, too: the next answer would be that to this order
            self.end()
            raise
        finally:
            os.close(files[0])

    def _start_helper(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            program = f"from {Path(__file__).stem} import serve; serve({theirs.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, "-" * ROOM],
                cwd=Path(__file__).parent,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return ours

    def end(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None
            self._process.wait()


def _ours(words: list[bytes]) -> bool:
    """Whether `python` with these words runs `mqmesh`: the module, or a program that takes something from it."""
    return words == [b"-m", MODULE.encode()] or (words[:1] == [b"-c"] and f"from {MODULE} import ".encode() in words[1])


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(AT_START)}


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := source.recv(count - len(data))):
            raise EOFError("the other end is gone")
        data += more
    return data


# The helper.


def serve(number: int) -> None:
    """Clone this process for each order that comes by socket `number`; a clone does what it says. Ends with pytest."""
    del sys.path[0]  # this folder
    for name in " ".join(LOADED).split():
        import_module(name)
    sys.modules.pop(MODULE, None)
    assert os.listdir("/proc/self/task") == [str(os.getpid())], "a thread would be missing in each clone"
    gc.collect()
    gc.freeze()
    clone, pid = _Clone(), -1
    with socket.socket(fileno=number) as source, contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            data, files = _received(source)
            if (pid := clone()) == 0:
                break
            for one in files:
                os.close(one)
            source.sendall(struct.pack("!i", pid))
    if pid == 0:
        _become(json.loads(data), files)
        _run()


def _run() -> None:
    """As `python` does, but the memory is left to the system: to free it object by object takes 0.03 s."""
    main = vars(sys.modules["__main__"])
    main.pop(serve.__name__)
    try:
        if sys.orig_argv[1] == "-c":
            exec(compile(sys.orig_argv[2], "<string>", "exec"), main)
        else:
            runpy._run_module_as_main(MODULE)  # type: ignore[attr-defined]
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        status = end.code or 0
    else:
        status = 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(status)  # Python says what it is
    os._exit(status & 0xFF)


def _received(source: socket.socket) -> tuple[bytes, list[int]]:
    length, ancillary, _, _ = source.recvmsg(4, socket.CMSG_SPACE(FILES * 4))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data)
    if not length:
        raise EOFError
    length += _exactly(source, 4 - len(length))
    return _exactly(source, struct.unpack("!I", length)[0]), list(files)


class _Clone:
    """fork(2), but the new process is a child of our parent.

    The C library's own fork does the same, without CLONE_PARENT: it tells the kernel where the new thread's identifier stands, and anew
    where the list of its robust locks is (LMDB has one).
    """

    CLONE_PARENT, CHILD_CLEARTID, CHILD_SETTID = 0x8000, 0x200000, 0x1000000
    CLONE, SET_ROBUST_LIST, GET_ROBUST_LIST, PR_GET_TID_ADDRESS = 56, 273, 274, 40  # numbers for x86-64

    def __init__(self) -> None:
        self._c = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, as os.fork does
        self._c.syscall.restype = ctypes.c_long
        self._tid, self._robust, self._size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        self._ok(self._c.prctl(self.PR_GET_TID_ADDRESS, ctypes.byref(self._tid), 0, 0, 0))
        self._ok(self._c.syscall(self.GET_ROBUST_LIST, 0, ctypes.byref(self._robust), ctypes.byref(self._size)))

    def __call__(self) -> int:
        flags = ctypes.c_long(self.CLONE_PARENT | self.CHILD_CLEARTID | self.CHILD_SETTID | signal.SIGCHLD)
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = self._c.syscall(self.CLONE, flags, None, None, self._tid, None)
        if pid == 0:
            self._c.syscall(self.SET_ROBUST_LIST, self._robust, self._size)
            ctypes.pythonapi.PyOS_AfterFork_Child()
        else:
            ctypes.pythonapi.PyOS_AfterFork_Parent()
            self._ok(pid)
        return int(pid)

    def _ok(self, result: int) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _become(order: dict[str, Any], files: list[int]) -> None:
    """Be the process that was asked for. The end of the second file tells `Popen` that it is."""
    if order["session"]:
        os.setsid()
    elif order["group"] >= 0:
        os.setpgid(0, order["group"])
    os.fchdir(files[0])
    os.umask(order["umask"])
    os.sched_setaffinity(0, order["processors"])
    for one, limit in zip(LIMITS, order["limits"], strict=True):
        if resource.getrlimit(one) != tuple(limit):
            resource.setrlimit(one, tuple(limit))
    os.environb.clear()
    os.environb.update({key.encode("latin-1"): value.encode("latin-1") for key, value in order["environment"]})
    time.tzset()
    words = [word.encode("latin-1") for word in order["words"]]
    _show_command_line(b"\0".join(words) + b"\0")
    sys.orig_argv[:] = map(os.fsdecode, words)
    program = sys.orig_argv[1] == "-c"
    sys.argv[:] = ["-c", *sys.orig_argv[3:]] if program else sys.orig_argv[2:]
    sys.path.insert(0, "" if program else os.getcwd())
    signal.pthread_sigmask(signal.SIG_SETMASK, order["mask"])
    _put_files(order["files"], files[2:], told=files[1])


def _put_files(numbers: list[int], files: list[int], told: int) -> None:
    above = 1 + max(*numbers, *files, told)
    high = [os.dup2(one, above + at, inheritable=False) for at, one in enumerate([*files, told])]
    for number, one in zip(numbers, high, strict=False):
        os.dup2(one, number, inheritable=number < 3)
        os.set_inheritable(number, True)
    for at, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(at, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    kept = {*numbers}
    for one in {*map(int, os.listdir("/proc/self/fd"))} - kept:
        with contextlib.suppress(OSError):  # of the list itself
            os.close(one)


def _stream(number: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    """As Python makes it at its start."""
    raw = open(number, "rb" if number == 0 else "wb", 0, closefd=False)  # noqa: SIM115
    raw.name = f"<{('stdin', 'stdout', 'stderr')[number]}>"  # type: ignore[misc]
    through = like.write_through  # with PYTHONUNBUFFERED
    buffer: Any = io.BufferedReader(raw) if number == 0 else raw if through else io.BufferedWriter(raw)
    line = not through and (number == 2 or raw.isatty())
    stream = io.TextIOWrapper(buffer, like.encoding, like.errors, None if number == 0 else "\n", line, through)
    stream.mode = "r" if number == 0 else "w"  # type: ignore[misc]
    return stream


def _show_command_line(line: bytes) -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memmove(start, line + bytes(end - start - len(line)), end - start)
