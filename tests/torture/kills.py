"""Runs that are killed, that share a folder, or that find the disk full; and go on."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from small_runs import arguments, assert_equal_ends, command
from torture.child import Outcome, in_child, status_of

from training.checkpoint import load_checkpoint

Case = tuple[Outcome, str]  # how it ended, and what was wrong


def whole_run(folder: Path) -> float:
    """An uninterrupted run to compare with; its seconds."""
    start = time.monotonic()
    assert in_child(lambda: _start_or_resume(folder)).status == 0
    return time.monotonic() - start


def _start_or_resume(out: Path) -> int:
    words = arguments(out=out)
    if (out / "last.pt").exists():
        words = ["--resume", "--out", str(out)]
    return status_of(command(*words))


def _compared(whole: Path, out: Path, killed: Outcome) -> Case:
    """Go on to the end, and compare every bit."""
    ended = in_child(lambda: _start_or_resume(out))
    if ended.status != 0:
        return ended, "lost"
    try:
        assert_equal_ends(whole, out)
    except AssertionError:
        return ended, "wrong"
    remains = [path.name for path in out.iterdir() if path.name.startswith(".")]
    shutil.rmtree(out)
    return ended._replace(trace=killed.trace), "wrong" if remains else ""


def kill_at_random(folder: Path, times: int) -> Iterator[Case]:
    """Kill -9 at random instants, up to three times for each run."""
    whole, generator = folder / "whole", random.Random(0)
    seconds = whole_run(whole)
    for number in range(times):
        out = folder / f"killed-{number}"
        killed = Outcome(0, 0, "", 0, 0)
        for _ in range(generator.randint(1, 3)):
            instant = generator.uniform(0, seconds)
            killed = in_child(lambda out=out: _start_or_resume(out), kill_after=instant)
        yield _compared(whole, out, killed)


def kill_at_writes(folder: Path, times: int) -> Iterator[Case]:
    """Kill -9 before and after the n-th rename, and before and after the n-th sync."""
    whole = folder / "whole-writes"
    whole_run(whole)
    places = [(name, after) for name in ("replace", "fsync") for after in (False, True)]
    for number in range(times):
        out, (name, after) = folder / f"writes-{number}", places[number % len(places)]

        def die(
            out: Path = out, name: str = name, after: bool = after, n: int = number // 4
        ) -> int:
            real, left = getattr(os, name), n

            def instead(*words: object) -> object:
                nonlocal left
                left -= 1
                if left < 0 and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = real(*words)
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            setattr(os, name, instead)
            return _start_or_resume(out)

        yield _compared(whole, out, in_child(die))


def two_at_once(folder: Path, times: int) -> Iterator[Case]:
    """A second process in the folder of a first: it is told, and the first ends as if alone."""
    whole = folder / "whole-two"
    seconds = whole_run(whole)
    generator = random.Random(1)
    for number in range(times):
        out = folder / f"two-{number}"
        first = os.fork()
        if first == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os._exit(status_of(command(*arguments(out=out))))
        while not (out / "config.json").exists():
            time.sleep(0.01)
        time.sleep(generator.uniform(0, seconds / 3))
        running = os.waitpid(first, os.WNOHANG)[0] == 0
        second = in_child(lambda out=out: _start_or_resume(out))
        if running:
            os.waitpid(first, 0)
        if second.status not in (0, 2):
            yield second, "wrong"
        else:
            yield _compared(whole, out, second)


def disk_full(folder: Path, times: int) -> Iterator[Case]:
    """Files may grow to so many bytes only: one line, and what was saved before is whole."""
    for number in range(times):
        out = folder / f"full-{number}"
        most = 2**number * 64

        def limited(out: Path = out, most: int = most) -> int:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            return status_of(command(*arguments(out=out)))

        outcome = in_child(limited)
        wrong = "" if outcome.status in (0, 1, 2) or outcome.trace else "wrong"
        for file in out.glob("*.pt"):
            load_checkpoint(file)
        if outcome.status == 0 and not (out / "best.pt").exists():
            wrong = "lost"
        yield outcome, wrong


KILLS: dict[str, tuple[Callable[[Path, int], Iterator[Case]], int]] = {
    "kill -9 at random instants, then to the end": (kill_at_random, 25),
    "kill -9 at each write, then to the end": (kill_at_writes, 25),
    "two processes on one folder": (two_at_once, 5),
    "disk full": (disk_full, 16),
}
torch.set_num_threads(1)
