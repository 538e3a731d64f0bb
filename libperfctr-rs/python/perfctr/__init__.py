# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Exact counts of what a thread executes, by libperfctr-counts."""

import contextlib
import functools
import threading

from ._library import Counters, Error, Reading

__all__ = ["Counters", "Counts", "Error", "Reading", "count", "counted"]
__version__ = "0.1.0"

_thread = threading.local()


class Counts(dict):
    """What a block has counted, by the events' names. It is empty until the block ends."""

    #: Ticks of the clock that the thread executed for.
    clock = 0
    #: How many attempts of the second reading were disturbed.
    retries = 0
    #: Whether no system call was made.
    direct = False

    def _take(self, names, spent):
        self.update(zip(names, spent.values))
        self.clock, self.retries, self.direct = spent.clock, spent.retries, spent.direct


@contextlib.contextmanager
def count(*events):
    """Count these events of the calling thread while the block runs.

    Each argument is a name, or a list of names with commas between. Blocks of one thread may be
    nested if all count the same events, since a thread has its counters once.

    The counts have what the interpreter executes to enter and leave the block, too.
    """
    text = ",".join(events) or "instructions:u"
    shared = getattr(_thread, "counters", None)
    counters = shared if shared is not None and shared.events == text else Counters(text)
    spent = Counts()
    if counters is not shared:
        _thread.counters = counters
    try:
        before = counters.read()
        try:
            yield spent
        finally:
            spent._take(counters.names, counters.since(before))
    finally:
        if counters is not shared:
            _thread.counters = None
            counters.close()


def counted(*events):
    """Count each call of a function. Its attribute `spent` has the counts of the last call."""

    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            with count(*events) as spent:
                result = function(*args, **kwargs)
            call.spent = spent
            return result

        call.spent = Counts()
        return call

    return decorate
