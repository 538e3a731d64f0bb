# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""A test that is gated on counters. The variable MORE has it execute so many rounds more."""

import itertools
import os

import pytest

ROUNDS = 50_000 + int(os.environ["MORE"])


@pytest.mark.perfctr("instructions:u", "branches:u", threshold=1000, name="loop")
def test_loop():
    for _ in itertools.repeat(None, ROUNDS):
        pass
