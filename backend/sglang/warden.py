"""The parent of one server: `python warden.py GRACE COMMAND...`. Ends it when the app is gone.

The app holds the other end of this process's standard input. When that end closes, by a polite stop, by a crash or
by kill -9 of the app, the server's whole process group is ended: politely first, after GRACE seconds by force. On
Linux the server is also told to die with this process, so a kill -9 of the warden itself leaves nothing either;
elsewhere the app's supervisor ends the group in that case. Standard library only, so that it starts at once.

Standard output gets one line: the server's process id, which is that of its group. The exit status is the
server's, or 128 + the signal that ended it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

POLL = 0.2
PR_SET_PDEATHSIG = 1  # linux/prctl.h
C_LIBRARY = ctypes.CDLL(None)


def run(command: Sequence[str], grace: float) -> int:
    """Run `command` in a session of its own until it ends or standard input closes; returns the exit status."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    print(child.pid, flush=True)
    told_to_stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: told_to_stop.set())
    while child.poll() is None and not told_to_stop.is_set() and not _app_is_gone():
        pass  # _app_is_gone waits
    end_group(child.pid, grace, collect=child.poll)
    status = child.wait()
    return status if status >= 0 else 128 - status


def end_group(group: int, grace: float, collect: Callable[[], object] | None = None) -> None:
    """End every process of the group, by force after `grace` seconds.

    `collect` reaps the group's leader where it is a child of this process; else it would stay as a zombie.
    """
    deadline = time.monotonic() + grace
    if not _signal_group(group, signal.SIGTERM):
        return
    while time.monotonic() < deadline:
        if collect is not None:
            collect()
        if not group_exists(group):
            return
        time.sleep(POLL / 4)
    _signal_group(group, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Whether any process of the group is left, a zombie included."""
    return _signal_group(group, 0)


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        return False
    return True


def _app_is_gone() -> bool:
    readable, _, _ = select.select([0], [], [], POLL)
    return bool(readable) and os.read(0, 1) == b""


def _die_with_parent() -> None:
    if sys.platform == "linux":
        C_LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], float(sys.argv[1])))
