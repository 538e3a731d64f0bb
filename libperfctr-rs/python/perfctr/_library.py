# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""libperfctr-counts, through ctypes. Its header perfctr_counts.h says what each function does."""

import ctypes
import functools
import inspect
import os

EVENTS_MAX = 18
INTERFACE = 2
SONAME = "libperfctr-counts.so.1"
#: A variable with the path of the library, if it is not where the dynamic linker looks.
VARIABLE = "PERFCTR_COUNTS_LIBRARY"
#: The kinds of functions whose call executes nothing of their body.
SUSPENDED = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)
PROVIDERS = {"any": 0, "paravirt": 1, "native": 2, "tsc": 3}


class Error(Exception):
    """The failure of a function of the library, with its text: what was found, and what to do."""

    def __init__(self, text, status=None):
        super().__init__(text)
        #: The name of the status in C, such as PERFCTR_STATUS_NO_COUNTERS.
        self.status = status


class _Reading(ctypes.Structure):
    _fields_ = [
        ("clock", ctypes.c_uint64),
        ("counts", ctypes.c_uint64 * EVENTS_MAX),
        ("events", ctypes.c_uint32),
        ("retries", ctypes.c_uint32),
        ("direct", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class _Facts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            "provider events clock_khz general fixed general_width fixed_width vcpus cpu_signature"
        ).split()
    ] + [("reserved", ctypes.c_uint32 * 7)]


@functools.lru_cache(maxsize=None)
def _load():
    path = os.environ.get(VARIABLE) or SONAME
    try:
        # A call keeps the interpreter's lock, since all of them are short. Releasing it, and
        # waiting for it afterwards, would be counted, and depends on other threads.
        library = ctypes.PyDLL(path)
    except OSError as error:
        raise Error(
            f"{path} cannot be loaded ({error}): `cargo xtask install-c PREFIX` installs it, and "
            f"{VARIABLE} may have its path"
        ) from None
    # An earlier library may lack functions.
    found = getattr(library, "perfctr_counts_interface", int)()
    if found < INTERFACE:
        raise Error(f"{path} has interface {found}, at least {INTERFACE} expected")
    handle, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32
    reading = ctypes.POINTER(_Reading)
    for name, result, arguments in (
        ("open", ctypes.c_int, [text, number, number, ctypes.POINTER(handle)]),
        ("close", ctypes.c_int, [handle]),
        ("read", ctypes.c_int, [handle, reading]),
        ("since", ctypes.c_int, [handle, reading, reading]),
        ("stop", ctypes.c_int, [handle]),
        ("start", ctypes.c_int, [handle]),
        ("restart", ctypes.c_int, [handle]),
        ("facts", ctypes.c_int, [handle, ctypes.POINTER(_Facts)]),
        ("event", text, [handle, number]),
        ("error", text, []),
        ("status_name", text, [ctypes.c_int]),
        ("provider_name", text, [number]),
    ):
        function = getattr(library, "perfctr_counts_" + name)
        function.restype, function.argtypes = result, arguments
    return library


def check(library, status):
    """Raise the calling thread's last failure unless a function of the library has succeeded."""
    if status:
        name = library.perfctr_counts_status_name(status)
        text = library.perfctr_counts_error().decode(errors="replace")
        raise Error(text, name.decode() if name else str(status))


class Reading:
    """All counters at one moment, or what happened between two."""

    def __init__(self, raw):
        self._raw = raw
        self.clock = raw.clock
        self.retries = raw.retries
        self.direct = raw.direct == 1

    @property
    def values(self):
        """The counts, in the order of the events."""
        return self._raw.counts[: self._raw.events]


class Counters:
    """The counters of the thread that makes this object. No other thread may use it."""

    def __init__(self, events, provider="any", unverified=False):
        self._library = _load()
        self._handle = None
        if provider not in PROVIDERS:
            raise Error(f"provider {provider!r} found, one of {', '.join(PROVIDERS)} expected")
        handle = ctypes.c_void_p()
        self._check(
            self._library.perfctr_counts_open(
                events.encode(), PROVIDERS[provider], int(unverified), ctypes.byref(handle)
            )
        )
        self._handle = handle
        #: The events as they were given.
        self.events = events
        facts = _Facts()
        self._check(self._library.perfctr_counts_facts(handle, ctypes.byref(facts)))
        #: Who counts: paravirt, native or tsc.
        self.provider = self._library.perfctr_counts_provider_name(facts.provider).decode()
        #: The frequency of the clock, unit: kHz, or 0 if it is unknown.
        self.clock_khz = facts.clock_khz
        #: The events' names, in order.
        self.names = [
            self._library.perfctr_counts_event(handle, n).decode() for n in range(facts.events)
        ]

    def _check(self, status):
        check(self._library, status)

    def read(self):
        """Read all counters."""
        raw = _Reading()
        self._check(self._library.perfctr_counts_read(self._handle, ctypes.byref(raw)))
        return Reading(raw)

    def since(self, before):
        """Return what was counted since an earlier reading."""
        raw = _Reading()
        self._check(
            self._library.perfctr_counts_since(
                self._handle, ctypes.byref(before._raw), ctypes.byref(raw)
            )
        )
        return Reading(raw)

    def _region(self):
        """Return what begins a region, what ends it, and the raw reading that gets the difference.

        The first two are called without arguments and return a status. They execute as little of
        the interpreter as they can, since that is counted, and differs with what is in memory.
        """
        before, spent = _Reading(), _Reading()
        # By their names in brackets they are other objects, which do not convert arguments.
        read, since = (self._library["perfctr_counts_" + name] for name in ("read", "since"))
        begin = functools.partial(read, self._handle, ctypes.byref(before))
        end = functools.partial(since, self._handle, ctypes.byref(before), ctypes.byref(spent))
        return begin, end, spent

    def stop(self):
        """Stop counting. The counts stay."""
        self._check(self._library.perfctr_counts_stop(self._handle))

    def start(self):
        """Go on counting after a stop."""
        self._check(self._library.perfctr_counts_start(self._handle))

    def restart(self):
        """Count the same events from 0."""
        self._check(self._library.perfctr_counts_restart(self._handle))

    def close(self):
        """End the counters. Closing twice does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._check(self._library.perfctr_counts_close(handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
