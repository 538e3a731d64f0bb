# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Baselines of `perfctr gate`: the same file, and the same meaning."""

import json
import os
import sys
import unicodedata

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
    if not _is_baseline(baseline):
        raise BaselineError(f"cannot read {path}: its fields are not a baseline's")
    found = (baseline["format"], baseline["version"])
    if found != (FORMAT, VERSION):
        raise BaselineError(
            f"cannot read {path}: {found[0]!r} version {found[1]} found, {FORMAT!r} version "
            f"{VERSION} expected"
        )
    return baseline["benchmarks"]


def _is_baseline(file):
    """Return whether a file has the fields of a baseline, of whatever version."""
    try:
        benchmarks = file["benchmarks"].values()
        texts = [file["format"]]
        texts += [benchmark["cpu"] for benchmark in benchmarks if benchmark.get("cpu") is not None]
        events = [counts for benchmark in benchmarks for counts in benchmark["events"].values()]
        numbers = [file["version"]]
        numbers += [counts[end] for counts in events for end in ("min", "max")]
    except (AttributeError, KeyError, TypeError):
        return False
    # Python takes a truth value for a number, too.
    return all(type(text) is str for text in texts) and all(
        type(number) is int and 0 <= number < 1 << 64 for number in numbers
    )


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
        signed = f"{growth:+,}" if growth else "0"
        beside = f"{before['min']:,} before, {signed}"
        if before["min"] and growth:
            beside += f" ({100 * growth / before['min']:+.4f} %)"
    spread = now["max"] - now["min"]
    ending = f"; runs differ by {spread:,}" if spread else ""
    word = verdict(before, now, threshold)
    return f"{word:<6} {_harmless(name)}: {now['min']:,} {event}; {beside}{ending}"


def another_cpu(before, now):
    """Return a warning if another CPU counted what is compared with this, or None."""
    there, here = before.get("cpu"), now.get("cpu")
    if there is None or here is None or there == here:
        return None
    return (
        f"the baseline is of {_harmless(there)}, this is {_harmless(here)}: libraries choose "
        "their code by the CPU"
    )


def _harmless(text):
    """Spell out control characters, which could send commands to the terminal."""
    spelt = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
    return "".join(
        spelt.get(c, f"\\u{{{ord(c):x}}}") if unicodedata.category(c) == "Cc" else c for c in text
    )


def unrepeatable():
    """Return what makes this interpreter execute something else in another process."""
    causes = []
    # Python's flag is also set for seeds but 0 that the variable fixes.
    seed = "" if sys.flags.ignore_environment else os.environ.get("PYTHONHASHSEED", "")
    if sys.flags.hash_randomization and not seed.isdigit():
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
