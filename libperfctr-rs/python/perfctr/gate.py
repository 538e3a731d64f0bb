# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Baselines of `perfctr gate`: the same file, and the same meaning."""

import json
import sys

FORMAT = "perfctr baseline"
VERSION = 1


class BaselineError(Exception):
    """A file that is no baseline."""


def read(path):
    """Return the benchmarks of a file. An absent file is an empty baseline."""
    try:
        with open(path, encoding="utf-8") as file:
            baseline = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BaselineError(f"cannot read {path}: {error}") from None
    try:
        found = (baseline["format"], baseline["version"])
        benchmarks = baseline["benchmarks"]
        for benchmark in benchmarks.values():
            for counts in benchmark["events"].values():
                int(counts["min"]), int(counts["max"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BaselineError(f"cannot read {path}: its fields are not a baseline's") from None
    if found != (FORMAT, VERSION):
        raise BaselineError(
            f"cannot read {path}: {found[0]!r} version {found[1]} found, {FORMAT!r} version "
            f"{VERSION} expected"
        )
    return benchmarks


def write(path, benchmarks):
    """Write the file as `perfctr gate --update` does: sorted, with a line for each number."""
    ordered = {
        name: {
            **({"cpu": one["cpu"]} if one.get("cpu") else {}),
            "events": {
                event: {"min": counts["min"], "max": counts["max"]}
                for event, counts in sorted(one["events"].items())
            },
        }
        for name, one in sorted(benchmarks.items())
    }
    baseline = {"format": FORMAT, "version": VERSION, "benchmarks": ordered}
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(baseline, indent=2, ensure_ascii=False) + "\n")


def update(benchmarks, name, now):
    """Put these counts of a benchmark in place of those that there are."""
    benchmark = benchmarks.setdefault(name, {"events": {}})
    if now.get("cpu"):
        benchmark["cpu"] = now["cpu"]
    else:
        benchmark.pop("cpu", None)
    benchmark["events"].update(now["events"])


def verdict(before, now, threshold=0):
    """Compare two least counts: "new", "WORSE", "better" or "same"."""
    if before is None:
        return "new"
    if now["min"] > before["min"] + threshold:
        return "WORSE"
    if before["min"] > now["min"] + threshold:
        return "better"
    return "same"


def line(name, event, before, now, threshold=0):
    """Say in words how an event's counts compare."""
    beside = "not in the baseline"
    if before is not None:
        growth = now["min"] - before["min"]
        beside = f"{before['min']:,} before, {growth:+,}" if growth else f"{before['min']:,} before, 0"
        if before["min"] and growth:
            beside += f" ({100 * growth / before['min']:+.4f} %)"
    spread = now["max"] - now["min"]
    ending = f"; runs differ by {spread:,}" if spread else ""
    word = verdict(before, now, threshold)
    return f"{word:<6} {name}: {now['min']:,} {event}; {beside}{ending}"


def unrepeatable():
    """Return what makes this interpreter execute something else in another process."""
    causes = []
    if sys.flags.hash_randomization:
        causes.append("hash seeds are random: set PYTHONHASHSEED=0")
    try:
        with open("/proc/self/personality", encoding="ascii") as file:
            randomised = not int(file.read(), 16) & 0x0040000
    except (OSError, ValueError):
        randomised = False
    if randomised:
        causes.append("addresses are random: start with `setarch -R`")
    return causes


def cpu():
    """Return the name of this machine's CPU, or None if it is unknown."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for text in file:
                if text.startswith("model name"):
                    return text.split(":", 1)[1].strip()
    except OSError:
        pass
    return None
