# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""A test that is gated. The variable MORE has it execute more."""

import itertools
import os

import pytest

ROUNDS = 100_000 + int(os.environ.get("MORE", "0"))


@pytest.mark.perfctr("instructions:u", "branches:u", threshold=50, name="loop")
def test_loop():
    for _ in itertools.repeat(None, ROUNDS):
        pass


def test_without_a_mark():
    assert ROUNDS >= 100_000
