# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Tests for the plug-in, of which one is gated.

They need the library of stand_in.c, which counts what it is told, and 100 instructions and 10
branches of its own for each region. The gated test executes in its fifth run 1,000 and 110 with
these, in each run before 7 more than in the next, and always as many more as the variable MORE
says.
"""

import ctypes
import gc
import itertools
import os

import pytest

RUNS_LEFT = itertools.count(4, -1)


@pytest.fixture
def execute():
    function = ctypes.CDLL(os.environ["PERFCTR_STAND_IN"]).stand_in_execute
    function.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    return function


@pytest.mark.perfctr("instructions:u", "branches:u", threshold=50, name="loop")
def test_loop(execute):
    more = int(os.environ["MORE"]) + 7 * next(RUNS_LEFT)
    execute(900 + more, 100 + more)
    assert not gc.isenabled()


def test_without_a_mark():
    """It is run, and not counted."""
    assert gc.isenabled()
