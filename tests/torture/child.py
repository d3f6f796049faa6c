"""Calls in forked processes, which may die, be killed, or take too much; and what came of them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from click.testing import Result

# Beyond what the process had before: the bounds that docs/reliability.md promises.
MOST_MEGABYTES, MOST_SECONDS = 300, 2.0


class Outcome(NamedTuple):
    """How a child ended.

    Attributes:
        status: What its function returned, or None where it died or raised.
        signal: The number of the signal that ended it, or 0.
        trace: The traceback of what it raised, or nothing.
        seconds: Wall clock.
        megabytes: Memory at its peak, beyond what it was forked with.
    """

    status: int | None
    signal: int
    trace: str
    seconds: float
    megabytes: float


def in_child(function: Callable[[], int], *, kill_after: float | None = None) -> Outcome:
    """Run a function that returns 0 to 200 in a forked process.

    Args:
        function: What to do there.
        kill_after: Seconds after which it is killed with SIGKILL.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "trace"
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _child(function, report)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        _, code, usage = os.wait4(pid, 0)
        seconds = time.monotonic() - start
        trace = report.read_text() if report.exists() else ""
    before = float(trace.partition("\n")[0] or 0) if trace else 0.0
    trace = trace.partition("\n")[2]
    ended = os.WEXITSTATUS(code) if os.WIFEXITED(code) and not trace else None
    number = os.WTERMSIG(code) if os.WIFSIGNALED(code) else 0
    return Outcome(ended, number, trace, seconds, usage.ru_maxrss / 1024 - before)


def _child(function: Callable[[], int], report: Path) -> None:
    # A forked process starts with the peak of its parent; what is now in use is the base.
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    base = max(
        pages * resource.getpagesize() / 2**20,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )
    report.write_text(f"{base}\n")
    status = 255
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        status = function()
    except BaseException:
        with report.open("a") as file, contextlib.suppress(OSError):
            file.write(traceback.format_exc())
    finally:
        os._exit(status)


def status_of(result: Result) -> int:
    """The status of a command that ran by click's runner; raises what it ought to have handled."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code
