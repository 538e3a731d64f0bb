# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Exact counts of what a thread executes, by libperfctr-counts."""

import functools
import threading

from . import regions
from ._library import SUSPENDED, Counters, Error, Reading

__all__ = ["Counters", "Counts", "Error", "Reading", "count", "counted", "regions"]
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


class count:
    """Count these events of the calling thread while the block runs.

    Each argument is a name, or a list of names with commas between. Blocks of one thread may be
    nested if all count the same events, since a thread has its counters once.

    The counts have what the interpreter executes to enter and leave the block, too.
    """

    def __init__(self, *events):
        self._events = ",".join(events) or "instructions:u"

    def __enter__(self):
        shared = getattr(_thread, "counters", None)
        self._is_nested = shared is not None and shared.events == self._events
        self._counters = shared if self._is_nested else Counters(self._events)
        _thread.counters = self._counters
        begin, self._end, self._raw = self._counters._region()
        self._spent = spent = Counts()
        status = begin()
        # From here on everything is counted.
        if status:
            self._leave(status)
        return spent

    def __exit__(self, *_):
        status = self._end()
        # From here on nothing is counted.
        self._leave(status)
        self._spent._take(self._counters.names, Reading(self._raw))

    def _leave(self, status):
        """Check what a reading has returned, and end the counters if the block has opened them."""
        try:
            self._counters._check(status)
        finally:
            if not self._is_nested:
                _thread.counters = None
                self._counters.close()

def counted(*events):
    """Count each call of a function. Its attribute `spent` has the counts of the last call.

    Coroutine and generator functions are refused: a call only makes an object, and what the object
    executes later, other calls execute in between.
    """

    def decorate(function):
        if any(kind(function) for kind in SUSPENDED):
            raise TypeError(
                f"{function!r} is a coroutine or generator function, expected one that "
                "ends when it returns; count what it calls, or a block without await and yield by "
                "`with perfctr.count()`"
            )

        @functools.wraps(function)
        def call(*args, **kwargs):
            with count(*events) as spent:
                result = function(*args, **kwargs)
            call.spent = spent
            return result

        call.spent = Counts()
        return call

    return decorate
