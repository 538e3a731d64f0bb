# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""A plug-in for pytest: a test with the mark `perfctr` fails if it executes more than before."""

import gc
import inspect
import unittest

import pytest

from . import Error, count, gate

_RUNS = 5


def pytest_addoption(parser):
    group = parser.getgroup("perfctr", "counts of instructions")
    group.addoption(
        "--perfctr-baseline",
        default="perfctr-baseline.json",
        metavar="FILE",
        help="compare with this file of earlier counts, which `perfctr gate` reads, too",
    )
    group.addoption(
        "--perfctr-update",
        action="store_true",
        help="write the counts to the baseline, and do not fail",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "perfctr(*events, threshold=0, repeat=5, name=None): fail if the test's least count of "
        "an event is more than the threshold above the baseline's",
    )
    config._perfctr_lines = []
    config._perfctr_measured = {}
    config._perfctr_baseline = None


def _baseline(config):
    """Return the benchmarks of the baseline.

    It is read after the first measurement, since the interpreter's memory, and so what it executes,
    depends on what was read before: on whether there is a baseline yet.
    """
    if config._perfctr_baseline is None:
        config._perfctr_baseline = gate.read(config.getoption("perfctr_baseline"))
    return config._perfctr_baseline


def _measure(item, events, repeat):
    """Call the test several times, and return the least and the greatest counts."""
    function = item.obj
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    runs = []
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeat):
            gc.collect()
            with count(*events) as spent:
                function(**arguments)
            runs.append(spent)
    finally:
        if collects:
            gc.enable()
    return {
        event: {"min": min(run[event] for run in runs), "max": max(run[event] for run in runs)}
        for event in runs[0]
    }


def pytest_runtest_setup(item):
    if item.get_closest_marker("perfctr") is not None and not _is_counted(item):
        text = "async tests, and methods of unittest's classes, are not counted"
        pytest.fail(f"mark perfctr: {text}", pytrace=False)


def _is_counted(item):
    """Return whether pytest_pyfunc_call() is called for a test, and a call executes it."""
    return (
        isinstance(item, pytest.Function)
        and not issubclass(item.cls or object, unittest.TestCase)
        and not inspect.iscoroutinefunction(item.obj)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    mark = pyfuncitem.get_closest_marker("perfctr")
    if mark is None:
        return None
    config, options = pyfuncitem.config, dict(mark.kwargs)
    threshold, repeat = options.pop("threshold", 0), options.pop("repeat", _RUNS)
    name = options.pop("name", None) or pyfuncitem.nodeid
    if options or repeat < 1:
        pytest.fail(f"mark perfctr: {options or repeat} found, see pytest --markers", pytrace=False)
    try:
        counts = _measure(pyfuncitem, mark.args or ("instructions:u",), repeat)
        benchmark = _baseline(config).get(name, {"events": {}})
    except (Error, gate.BaselineError) as error:
        pytest.fail(f"nothing is compared: {error}", pytrace=False)
    now = {"cpu": gate.cpu(), "events": counts}
    config._perfctr_measured[name] = now
    worse = []
    for event, range_ in counts.items():
        before = benchmark["events"].get(event)
        said = gate.line(name, event, before, range_, threshold)
        config._perfctr_lines.append(said)
        if gate.verdict(before, range_, threshold) == "WORSE":
            worse.append(said)
    warning = gate.another_cpu(benchmark, now)
    if warning:
        config._perfctr_lines.append(warning)
    if worse and not config.getoption("perfctr_update"):
        pytest.fail("\n".join(worse), pytrace=False)
    return True


def pytest_sessionfinish(session):
    config = session.config
    if config.getoption("perfctr_update") and config._perfctr_measured:
        path = config.getoption("perfctr_baseline")
        benchmarks = gate.read(path)
        for name, now in config._perfctr_measured.items():
            gate.update(benchmarks, name, now)
        gate.write(path, benchmarks)


def pytest_terminal_summary(terminalreporter, config):
    if config._perfctr_lines:
        terminalreporter.section("perfctr")
        for said in config._perfctr_lines:
            terminalreporter.write_line(said)
        for cause in gate.unrepeatable():
            terminalreporter.write_line(f"counts may differ between processes: {cause}")
