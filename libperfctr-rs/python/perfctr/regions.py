# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Named pieces of a program, counted in each thread, with a table of all threads."""

import contextlib
import ctypes
import functools
import typing

from . import _library
from ._library import SUSPENDED

__all__ = ["Row", "count", "print_at_exit", "region", "start", "stop", "table", "text"]


class Row(typing.NamedTuple):
    """What a region has counted in one thread."""

    region: str
    #: The thread, by the order in which threads have started their first region, from 1.
    thread: int
    #: What Linux called the thread then.
    thread_name: str
    #: How often the region was stopped.
    calls: int
    #: How often it was started and not stopped.
    open: int
    #: The counts by the events' names.
    total: dict
    #: Those that were not in regions within it.
    own: dict
    #: How many readings were disturbed.
    retries: int


class _Row(ctypes.Structure):
    _fields_ = [
        ("region", ctypes.c_char_p),
        ("thread_name", ctypes.c_char_p),
        ("calls", ctypes.c_uint64),
        ("open", ctypes.c_uint64),
        ("total", ctypes.c_uint64 * _library.EVENTS_MAX),
        ("own", ctypes.c_uint64 * _library.EVENTS_MAX),
        ("retries", ctypes.c_uint64),
        ("thread", ctypes.c_uint32),
        ("events", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64 * 4),
    ]


@functools.lru_cache(maxsize=None)
def _functions():
    library = _library._load()
    text, number, status = ctypes.c_char_p, ctypes.c_uint32, ctypes.c_int
    for name, result, arguments in (
        ("events", status, [text]),
        ("start", status, [text]),
        ("stop", status, [text]),
        ("print_at_exit", status, []),
        ("table", status, [ctypes.POINTER(number)]),
        ("row", status, [number, ctypes.POINTER(_Row)]),
        ("event", text, [number]),
        ("text", text, []),
    ):
        function = getattr(library, "perfctr_region_" + name)
        function.restype, function.argtypes = result, arguments
    return library


def _call(name, *arguments):
    library = _functions()
    _library.check(library, getattr(library, "perfctr_region_" + name)(*arguments))


def count(*events):
    """Choose what regions count, before the first one: names as in `perfctr.count`.

    Without this call regions count instructions:u. With an empty name they count calls only.
    """
    _call("events", ",".join(events).encode())


def start(name):
    """Start a region in the calling thread. The thread cannot have other counters."""
    _call("start", name.encode())


def stop(name):
    """Stop the region of this name that the calling thread has started last."""
    _call("stop", name.encode())


class region(contextlib.ContextDecorator):
    """Count a block, or each call of a function, as a region of this name.

    The counts have what the interpreter executes to enter and leave the region, too.
    """

    def __init__(self, name):
        self._name = name

    def __enter__(self):
        start(self._name)
        return self

    def __exit__(self, *_):
        stop(self._name)

    def __call__(self, function):
        if any(kind(function) for kind in SUSPENDED):
            raise TypeError(
                f"{function!r} is a coroutine or generator function, expected one that "
                "ends when it returns"
            )
        return super().__call__(function)


def _take():
    rows = ctypes.c_uint32()
    _call("table", ctypes.byref(rows))
    return rows.value


def table():
    """Return the rows of all regions and threads until now."""
    rows, raw = [], _Row()
    for n in range(_take()):
        _call("row", n, ctypes.byref(raw))
        names = [_functions().perfctr_region_event(event).decode() for event in range(raw.events)]
        rows.append(
            Row(
                raw.region.decode(),
                raw.thread,
                raw.thread_name.decode(),
                raw.calls,
                raw.open,
                dict(zip(names, raw.total)),
                dict(zip(names, raw.own)),
                raw.retries,
            )
        )
    return rows


def text():
    """Return the table as it is printed."""
    _take()
    return _functions().perfctr_region_text().decode()


def print_at_exit():
    """Have the table be printed to the standard error output when the process ends by itself."""
    _call("print_at_exit")
