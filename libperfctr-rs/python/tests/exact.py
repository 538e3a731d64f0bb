# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Counts code of known length, alone and in threads that compete. It needs counters."""

import collections
import ctypes
import gc
import itertools
import mmap
import operator
import random
import sys
import threading
import time

import perfctr
from perfctr import _library

# A measurement is repeated until nothing has disturbed this many repetitions.
RUNS = 50
# After this many repetitions the test fails instead.
ATTEMPTS = 40 * RUNS
THREADS = 4
EVENTS = "instructions:u,branches:u"


def known_loop(rounds):
    """Return a function that executes 2 * rounds instructions and a few more, half branches.

    It takes no argument, so that the interpreter executes the same to call it for any rounds. For
    the same reason the thread keeps the interpreter's lock while it executes the loop. Otherwise
    another thread would take the lock more often during a longer loop.
    """
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # mov $rounds, %edi; dec %rdi; jnz back to dec; ret
    code.write(b"\xbf" + rounds.to_bytes(4, "little") + b"\x48\xff\xcf\x75\xfb\xc3")
    loop = ctypes.PYFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    loop.code = code
    return loop


def set_rounds(loop, rounds):
    """Have the function execute so many rounds from now on."""
    loop.code[1:5] = rounds.to_bytes(4, "little")


def in_block(body):
    """Return a function that counts the body in a block."""

    def measure():
        with perfctr.count(EVENTS) as counts:
            body()
        return counts

    return measure


def decorated(body):
    """Return a function that counts the body as a decorated function."""
    function = perfctr.counted(EVENTS)(body)

    def measure():
        function()
        return function.spent

    return measure


def more(how, shorter, longer):
    """Return by how much the counts of two loops differ, for each event.

    What the interpreter itself executes depends on where its objects are, on what has been executed
    before and on other threads. So one function is counted with both numbers of rounds, in a random
    order, and each count of the longer loop is compared with each count of the shorter one. The
    difference that most of these pairs have is returned.
    """
    loop = known_loop(shorter)
    order, measure = random.Random(1), how(loop)
    undisturbed = {shorter: [], longer: []}
    for _ in range(ATTEMPTS):
        # Other threads take the lock between two measurements, since nothing within one lets it go.
        time.sleep(0)
        rounds = order.choice([shorter, longer])
        set_rounds(loop, rounds)
        counts = measure()
        if counts.retries == 0:
            undisturbed[rounds].append([counts[event] for event in EVENTS.split(",")])
        if min(map(len, undisturbed.values())) >= RUNS:
            pairs = itertools.product(undisturbed[longer], undisturbed[shorter])
            differences = (tuple(map(operator.sub, *pair)) for pair in pairs)
            return collections.Counter(differences).most_common(1)[0][0]
    raise AssertionError(f"{how.__name__}: too few runs were not disturbed: {undisturbed}")


def counts_exactly(how):
    """Check that 20,000 rounds more are exactly so many branches, and twice the instructions."""
    found = more(how, 10_000, 30_000)
    assert found == (40_000, 20_000), f"{how.__name__}: {found}"


def measures_exactly():
    """Check what the library for C, which the package loads, measures without the interpreter."""
    rounds = 10_000
    loop, undisturbed = known_loop(rounds), 0
    with perfctr.Counters(EVENTS) as counters:
        measure = counters._library["perfctr_counts_measure"]
        for _ in range(ATTEMPTS):
            time.sleep(0)
            raw = _library._Reading()
            counters._check(measure(counters._handle, loop, None, ctypes.byref(raw)))
            if raw.retries == 0:
                undisturbed += 1
                # The return is not counted.
                assert raw.counts[:2] == [2 * rounds + 1, rounds], raw.counts[:2]
            if undisturbed == RUNS:
                return
    raise AssertionError(f"only {undisturbed} runs were not disturbed")


# A thread that has waited for the interpreter for so many seconds has the thread that executes let
# it go. The latter executes more then, at the end of whichever function is longer.
NEVER_TAKEN_AWAY = 1_000


def in_block_and_measured():
    """Check one thread of several."""
    measures_exactly()
    counts_exactly(in_block)


def in_threads(body):
    """Run this in several threads at once."""
    failures = []

    def guarded():
        try:
            body()
        except BaseException as error:
            failures.append(error)
            raise

    sys.setswitchinterval(NEVER_TAKEN_AWAY)
    threads = [threading.Thread(target=guarded) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def nested():
    loop = known_loop(1_000)
    with perfctr.count(EVENTS) as outer:
        loop()
        with perfctr.count(EVENTS) as inner:
            loop()
    assert inner["branches:u"] >= 1_000, inner
    assert outer["branches:u"] >= inner["branches:u"] + 1_000, (outer, inner)


def stops():
    loop = known_loop(1_000_000)
    with perfctr.Counters(EVENTS) as counters:
        assert counters.provider == "paravirt" and counters.clock_khz > 0, counters.provider
        assert counters.names == EVENTS.split(","), counters.names
        counters.stop()
        before = counters.read()
        loop()
        assert counters.since(before).values == [0, 0]
        counters.start()
        loop()
        spent = counters.since(before)
        assert 2_000_000 <= spent.values[0] < 2_100_000, spent.values


def in_regions():
    """Check regions of known length in a thread of their own, which has no other counters."""
    from perfctr import regions

    def measure():
        loops = [known_loop(rounds) for rounds in (10_000, 30_000)]
        for _ in range(RUNS):
            for loop, name in zip(loops, ("shorter", "longer.")):
                with regions.region("around"):
                    with regions.region(name):
                        loop()

    regions.count(EVENTS)
    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    shorter, longer, around = (
        next(row for row in regions.table() if row.region == name)
        for name in ("shorter", "longer.", "around")
    )
    for event, more in (("instructions:u", 40_000), ("branches:u", 20_000)):
        # The interpreter does not execute the same each time, but not much more or fewer.
        difference = longer.total[event] - shorter.total[event] - RUNS * more
        assert abs(difference) < RUNS * 1_000, (event, difference)
        assert around.total[event] == around.own[event] + shorter.total[event] + longer.total[event]
    assert (shorter.calls, longer.calls, around.calls) == (RUNS, RUNS, 2 * RUNS)


def main():
    gc.disable()
    in_regions()
    for how in (in_block, decorated):
        counts_exactly(how)
    in_threads(in_block_and_measured)
    nested()
    stops()
    empty = in_block(lambda: None)
    least = min(empty()["instructions:u"] for _ in range(RUNS))
    print(f"note an empty block of Python counts {least:,} instructions")


main()
