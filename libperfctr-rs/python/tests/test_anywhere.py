# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What needs no counters: messages, baselines, blocks, the plug-in, the book, and the wheel."""

import ctypes
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import zipfile

import perfctr
from perfctr import Counters, Error, _library, gate

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
PROJECT = PACKAGE.parents[1]


def load(test, path):
    """Have a test use the library with this path instead."""
    variable = unittest.mock.patch.dict(os.environ, {_library.VARIABLE: path})
    variable.start()
    test.addCleanup(variable.stop)
    test.addCleanup(_library._load.cache_clear)
    _library._load.cache_clear()


def note(what, number):
    """Have the suite print a number in its summary."""
    print(f"note Python {sys.version.split()[0]}, {what}: {number:,}")


class Refusals(unittest.TestCase):
    def test_where_nobody_counts_the_error_says_why(self):
        try:
            with perfctr.count("instructions:u") as spent:
                sum(range(1000))
        except Error as error:
            self.assertEqual(error.status, "PERFCTR_STATUS_NO_COUNTERS")
            for said in ("no counters for instructions:u\n", "\nparavirt: ", "\nnative: "):
                self.assertIn(said, str(error))
        else:
            self.assertGreater(spent["instructions:u"], 1000)

    def test_what_is_misspelt_is_refused_in_words(self):
        with self.assertRaises(Error) as caught:
            Counters("cycels")
        self.assertEqual(caught.exception.status, "PERFCTR_STATUS_EVENT")
        self.assertIn("did you mean `cycles`?", str(caught.exception))
        with self.assertRaisesRegex(Error, "provider 'xen' found, one of any, paravirt"):
            Counters("", provider="xen")

    def test_a_thread_has_its_counters_once_and_for_itself(self):
        with Counters("", provider="tsc") as own:
            self.assertEqual((own.provider, own.names), ("tsc", []))
            self.assertGreater(own.since(own.read()).clock, 0)
            with self.assertRaises(Error) as caught:
                Counters("", provider="tsc")
            self.assertEqual(caught.exception.status, "PERFCTR_STATUS_OPEN")
            statuses = []

            def stranger():
                try:
                    own.read()
                except Error as error:
                    statuses.append(error.status)

            thread = threading.Thread(target=stranger)
            thread.start()
            thread.join()
            self.assertEqual(statuses, ["PERFCTR_STATUS_HANDLE"])
        own.close()
        with self.assertRaises(Error):
            own.read()

    def test_another_library_is_refused_in_words(self):
        load(self, "libc.so.6")
        with self.assertRaisesRegex(Error, "libc.so.6 has interface 0, at least 2 expected"):
            Counters("")


class Regions(unittest.TestCase):
    """Runs regions that count calls only, in processes of their own, whose tables are theirs."""

    IMPORTS = "import threading\nfrom perfctr import Error, regions\n"

    def run_alone(self, program):
        ended = subprocess.run(
            [sys.executable, "-c", self.IMPORTS + program],
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout, ended.stderr

    def test_regions_of_all_threads_are_in_the_table(self):
        printed, errors = self.run_alone(
            """if True:
            regions.count("")
            regions.print_at_exit()

            @regions.region("inner")
            def inner(depth):
                if depth:
                    inner(depth - 1)

            def thread():
                with regions.region("outer"):
                    inner(2)
                regions.start("open")

            other = threading.Thread(target=thread)
            other.start()
            other.join()
            try:
                with regions.region("outer"):
                    raise ValueError
            except ValueError:
                pass
            for row in regions.table():
                print(row.region, row.thread, row.calls, row.open, row.total, row.own)
            print(*regions.text().splitlines()[0].split())
            """
        )
        rows = ["inner 1 3 0 {} {}", "open 1 0 1 {} {}", "outer 1 1 0 {} {}", "outer 2 1 0 {} {}"]
        self.assertEqual(printed.splitlines(), [*rows, "region thread calls"])
        self.assertRegex(errors, "^region  thread +calls\n")
        self.assertIn("`open` was started once in thread 1 and not stopped\n", errors)

    def test_what_is_wrong_is_refused_in_words(self):
        printed, _ = self.run_alone(
            """if True:
            regions.count("")

            def refused(function, *arguments):
                try:
                    function(*arguments)
                except (Error, TypeError) as error:
                    print(getattr(error, "status", "TypeError"), str(error))

            refused(regions.stop, "never")
            regions.start("one")
            refused(regions.stop, "other")
            refused(regions.count, "cycles:u")

            async def later():
                pass

            refused(regions.region("later"), later)
            """
        )
        said = printed.splitlines()
        self.assertIn("PERFCTR_STATUS_REGION this thread has stopped `never`, which", said[0])
        self.assertIn("it is in `one`", said[1])
        self.assertIn("regions count nothing since the first one was started", said[2])
        self.assertIn("TypeError <function later", said[3])


class Baselines(unittest.TestCase):
    """Compares with the cases that `perfctr gate` is tested by, too."""

    CASES = json.loads((PROJECT / "libperfctr-rs/gate/cases.json").read_text("utf-8"))

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name) / "baseline.json"

    def read(self, file):
        self.path.write_text(file if isinstance(file, str) else json.dumps(file), "utf-8")
        return gate.read(self.path)

    def test_lines_and_verdicts_are_those_of_the_command(self):
        for case in self.CASES["lines"]:
            before, now, threshold = case["before"], case["now"], case["threshold"]
            said = gate.line(case["name"], case["event"], before, now, threshold)
            self.assertEqual(said, case["line"])
            self.assertEqual(gate.verdict(before, now, threshold), case["line"].split()[0])

    def test_warnings_of_another_cpu_are_those_of_the_command(self):
        for case in self.CASES["warnings"]:
            before, now = ({"cpu": case[whose], "events": {}} for whose in ("before", "now"))
            self.assertEqual(gate.another_cpu(before, now), case["warning"])

    def test_what_the_command_refuses_is_no_baseline(self):
        for file in ["[", *self.CASES["refused"]]:
            with self.assertRaisesRegex(gate.BaselineError, "^cannot read ", msg=file):
                self.read(file)
        with self.assertRaisesRegex(gate.BaselineError, "version 2 found"):
            self.read({"format": "perfctr baseline", "version": 2, "benchmarks": {}})
        with self.assertRaisesRegex(gate.BaselineError, "its fields are not a baseline's"):
            self.read({})

    def test_files_are_those_of_the_command(self):
        for case in self.CASES["updates"]:
            benchmarks = self.read(case["file"])
            gate.update(benchmarks, case["name"], case["now"])
            gate.write(self.path, benchmarks)
            text = self.path.read_text("utf-8")
            self.assertEqual(text, "\n".join(case["written"]) + "\n")
            gate.write(self.path, gate.read(self.path))
            self.assertEqual(self.path.read_text("utf-8"), text)
        self.path.unlink()
        self.assertEqual(gate.read(self.path), {})


class Blocks(unittest.TestCase):
    """Counts by the library that stands in for one that counts."""

    def setUp(self):
        stand_in = os.environ["PERFCTR_STAND_IN"]
        load(self, stand_in)
        self.execute = ctypes.CDLL(stand_in).stand_in_execute
        self.execute.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

    def test_a_block_has_the_counts_of_what_is_in_it(self):
        self.execute(1_000_000, 1_000_000)
        with perfctr.count("instructions:u", "branches:u") as spent:
            self.assertEqual(spent, {})
            self.execute(5, 2)
        self.execute(1_000_000, 1_000_000)
        self.assertEqual(spent, {"instructions:u": 105, "branches:u": 12})
        self.assertEqual((spent.clock, spent.retries, spent.direct), (315, 2, True))

    def test_blocks_of_the_same_events_are_nested(self):
        with perfctr.count("instructions:u,branches:u") as outer:
            self.execute(3, 0)
            with perfctr.count("instructions:u", "branches:u") as inner:
                self.execute(5, 2)
        # The outer one has the two readings of the inner one, too.
        self.assertEqual(inner, {"instructions:u": 105, "branches:u": 12})
        self.assertEqual(outer, {"instructions:u": 308, "branches:u": 32})
        with perfctr.count() as outer:
            with self.assertRaises(Error) as caught, perfctr.count("branches:u"):
                self.fail("the thread has other counters")
            self.assertEqual(caught.exception.status, "PERFCTR_STATUS_OPEN")
        self.assertEqual(outer, {"instructions:u": 100})

    def test_a_block_that_is_left_by_an_exception_is_counted_and_ends(self):
        for _ in range(2):
            with self.assertRaises(KeyError), perfctr.count() as spent:
                self.execute(5, 2)
                raise KeyError
            self.assertEqual(spent, {"instructions:u": 105})

    def test_each_call_of_a_function_is_counted(self):
        @perfctr.counted("instructions:u")
        def executes(instructions, then=None):
            """Says."""
            self.execute(instructions, 0)
            return then

        self.assertEqual((executes.spent, executes.__doc__), ({}, "Says."))
        for instructions in (5, 7):
            self.assertEqual(executes(instructions, then="done"), "done")
            self.assertEqual(executes.spent, {"instructions:u": 100 + instructions})

    def test_functions_whose_call_executes_nothing_of_them_are_refused(self):
        async def waits():
            pass

        def yields():
            yield 1

        async def does_both():
            yield 1

        for function in (waits, yields, does_both, functools.partial(waits)):
            with self.subTest(function=function), self.assertRaises(TypeError) as caught:
                perfctr.counted("instructions:u")(function)
            self.assertIn("count what it calls, or a block without await", str(caught.exception))


class RunsPytest(unittest.TestCase):
    """Runs pytest in a directory of its own. The installed package has the plug-in."""

    COUNTED = {_library.VARIABLE: os.environ["PERFCTR_STAND_IN"]}

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def run_here(self, *command, **variables):
        """Return a command's exit status, and what it says."""
        ended = subprocess.run(
            command,
            cwd=self.directory,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return ended.returncode, ended.stdout

    def pytest(self, *options, **variables):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        return self.run_here(*command, *options, **variables)


class PlugIn(RunsPytest):
    GATED = str(PACKAGE / "tests/gated.py")

    def test_a_test_that_executes_more_fails(self):
        for more, options, status, said in (
            ("0", [], 0, "new    loop: 1,000 instructions:u; not in the baseline"),
            ("0", [], 0, "instructions:u; not in the baseline; runs differ by 28"),
            ("0", ["--perfctr-update"], 0, "new    loop: 110 branches:u"),
            ("0", [], 0, "same   loop: 1,000 instructions:u; 1,000 before, 0"),
            ("50", [], 0, "same   loop: 1,050 instructions:u; 1,000 before, +50"),
            ("51", [], 1, "WORSE  loop: 161 branches:u; 110 before, +51 (+46.3636 %)"),
            ("51", ["--perfctr-update"], 0, "WORSE  loop: 1,051 instructions:u"),
            ("51", [], 0, "same   loop: 161 branches:u; 161 before, 0"),
            ("0", [], 0, "better loop: 1,000 instructions:u; 1,051 before, -51"),
        ):
            found, text = self.pytest(self.GATED, *options, MORE=more, **self.COUNTED)
            self.assertEqual(found, status, text)
            self.assertIn(said, text)
            self.assertIn("1 failed, 1 passed" if status else "2 passed", text)
        baseline = gate.read(self.directory / "perfctr-baseline.json")
        self.assertEqual(baseline["loop"]["events"]["branches:u"], {"min": 161, "max": 189})

    def test_a_baseline_may_have_another_name(self):
        options = [f"--perfctr-baseline={self.directory / 'mine.json'}", "--perfctr-update"]
        status, text = self.pytest(self.GATED, *options, MORE="0", **self.COUNTED)
        self.assertEqual(status, 0, text)
        self.assertEqual(os.listdir(self.directory), ["mine.json"])

    def test_what_differs_between_processes_is_told(self):
        for seed, expected in (("0", False), ("42", False), ("random", True)):
            _, text = self.pytest(self.GATED, PYTHONHASHSEED=seed, MORE="0", **self.COUNTED)
            self.assertEqual("set PYTHONHASHSEED=0" in text, expected, text)

    def test_a_test_that_nobody_counts_fails_and_says_why(self):
        absent = str(self.directory / "absent.so")
        status, text = self.pytest(self.GATED, PERFCTR_COUNTS_LIBRARY=absent)
        self.assertEqual(status, 1, text)
        self.assertIn("nothing is compared: ", text)
        self.assertIn("`cargo xtask install-c PREFIX` installs it", text)
        test = self.directory / "test_misspelt.py"
        test.write_text(
            "import pytest\n\n@pytest.mark.perfctr('cycels')\ndef test_nothing():\n    pass\n"
        )
        status, text = self.pytest()
        self.assertEqual(status, 1, text)
        self.assertRegex(text, "nothing is compared: .*did you mean `cycles`?")

    def test_a_mark_that_would_compare_nothing_fails(self):
        (self.directory / "test_marks.py").write_text(
            "import unittest\n"
            "import pytest\n\n"
            "pytestmark = pytest.mark.perfctr\n\n"
            "async def test_later():\n    pass\n\n"
            "class Case(unittest.TestCase):\n    def test_method(self):\n        pass\n"
        )
        status, text = self.pytest(**self.COUNTED)
        self.assertEqual(status, 1, text)
        self.assertEqual(text.count("\nmark perfctr: async tests, and methods of"), 2, text)
        self.assertIn("2 errors", text)


class Page(RunsPytest):
    """Runs the examples of the page of the book."""

    def blocks(self, language):
        """Return the blocks in a language."""
        text = (PROJECT / "docs/python.md").read_text("utf-8")
        return re.findall(f"^```{language}\n(.*?)^```$", text, re.M | re.S)

    def test_the_first_example_counts(self):
        example, *_ = self.blocks("python")
        status, text = self.run_here(sys.executable, "-c", example, **self.COUNTED)
        # It has nothing that the library is told of, so it counts the library's own readings.
        self.assertEqual((status, text), (0, "100\n100\n"))

    def test_the_example_of_a_gate_is_written_to_a_baseline_and_compared(self):
        *_, example = self.blocks("python")
        _, commands = self.blocks("sh")
        (self.directory / "test_page.py").write_text(example)
        found = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        update, compare = commands.splitlines()
        for command, said in (
            (update, "new    test_page.py::test_sorting: 100 instructions:u; not in the baseline"),
            (compare, "same   test_page.py::test_sorting: 100 instructions:u; 100 before, 0"),
        ):
            status, text = self.run_here("sh", "-c", command, PATH=found, **self.COUNTED)
            self.assertEqual(status, 0, text)
            self.assertIn(said, text)
            self.assertNotIn("counts may differ between processes", text)


class Stepped(RunsPytest):
    """Counts instructions by a trap after each, since nothing else counts everywhere."""

    STEPPED = {_library.VARIABLE: os.environ["PERFCTR_STEPPING"], "PYTHONHASHSEED": "0"}
    FIXED = ("setarch", "-R", sys.executable)
    #: Prints what three runs of a function have counted, which makes sets of objects and of texts.
    #: Whether the elements of such sets collide depends on addresses and hashes only by luck. So
    #: the function also repeats a loop, by bits of an address and of a text's hash: two processes
    #: that differ in one of them count the same once in 256 times.
    RUNS = """if True:
        import gc, perfctr
        by_address, by_hash = id(gc) >> 12 & 255, hash("text") & 255
        @perfctr.counted()
        def makes_sets():
            {object() for _ in range(5)}, {str(n) for n in range(5)}
            for _ in range(by_address + by_hash):
                pass
        gc.disable()
        for _ in range(3):
            makes_sets()
            print(makes_sets.spent["instructions:u"])
    """

    def runs(self, *python, **variables):
        """Return what three runs in one process have counted."""
        status, text = self.run_here(*python, "-c", self.RUNS, **{**self.STEPPED, **variables})
        self.assertEqual(status, 0, text)
        return [int(line) for line in text.splitlines()]

    def test_counts_repeat_in_another_process_if_seed_and_addresses_do(self):
        counts = self.runs(*self.FIXED)
        self.assertEqual(self.runs(*self.FIXED), counts)
        self.assertGreater(counts[0], min(counts), "the first call executes more")
        seeds = [self.runs(*self.FIXED, PYTHONHASHSEED=seed) for seed in "123"]
        self.assertNotEqual(seeds, 3 * [counts])
        addresses = [self.runs(sys.executable) for _ in range(3)]
        self.assertNotEqual(addresses, 3 * [counts])

    def test_a_gate_repeats_and_notices_what_is_more(self):
        command = [*self.FIXED, "-m", "pytest", "-p", "no:cacheprovider"]
        counts = []
        for sorts, options, expected, word in (
            (30, ["--perfctr-update"], 0, "new"),
            (30, [], 0, "same"),
            (30, [], 0, "same"),
            (31, [], 0, "same"),
            (90, [], 1, "WORSE"),
        ):
            (self.directory / "test_gate.py").write_text(
                "import pytest\n\n"
                "@pytest.mark.perfctr(repeat=2, name='sort', threshold=2000)\n"
                f"def test_sorting():\n    sorted(range({sorts}), reverse=True)\n"
            )
            status, text = self.run_here(*command, *options, **self.STEPPED)
            self.assertEqual(status, expected, text)
            line = re.search(rf"^{word:<6} sort: ([\d,]+) instructions:u; ", text, re.M)
            self.assertIsNotNone(line, text)
            counts.append(int(line[1].replace(",", "")))
        first, same, again, more, _ = counts
        self.assertEqual(same, again, "the same command counts the same")
        self.assertGreater(more, again, "one number more to sort is noticed")
        note("instructions by which --perfctr-update changes a test's count", abs(first - same))

    def test_an_empty_block_has_its_own_instructions(self):
        makes = "{object() for _ in range(5)}, {str(n) for n in range(5)}"
        empty = self.RUNS.replace(makes, "pass")
        self.assertNotEqual(empty, self.RUNS)
        status, text = self.run_here(*self.FIXED, "-c", empty, **self.STEPPED)
        self.assertEqual(status, 0, text)
        least = min(int(line) for line in text.splitlines())
        self.assertTrue(1_000 < least < 100_000, text)
        note("instructions of an empty block", least)


class Wheel(unittest.TestCase):
    def test_the_wheel_has_every_module_and_the_plug_in(self):
        wheel = os.environ.get("PERFCTR_WHEEL")
        self.assertIsNotNone(wheel, "PERFCTR_WHEEL has the wheel's path")
        modules = {f"perfctr/{path.name}": path for path in PACKAGE.glob("perfctr/*.py")}
        info = f"perfctr-{perfctr.__version__}.dist-info/"
        licences = [f"licenses/LICENSE-{name}" for name in ("MIT", "GPL-2.0")]
        expected = ["METADATA", "WHEEL", "entry_points.txt", *licences, "RECORD"]
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            self.assertEqual(names, sorted(modules) + [info + name for name in expected])
            for name, path in modules.items():
                self.assertEqual(archive.read(name), path.read_bytes())
            plug_in = archive.read(info + "entry_points.txt").decode()
            self.assertIn("perfctr = perfctr.pytest_plugin", plug_in)
            metadata = archive.read(info + "METADATA").decode()
            for path in licences:
                self.assertIn(f"License-File: {path.split('/')[1]}\n", metadata)
                self.assertGreater(archive.getinfo(info + path).file_size, 1000)
            recorded = archive.read(info + "RECORD").decode().splitlines()
            self.assertEqual([line.split(",")[0] for line in recorded], names)

    def test_what_is_said_of_the_library_is_what_its_header_says(self):
        header = (PACKAGE.parent / "c/include/perfctr_counts.h").read_text("utf-8")
        constants = re.findall(r"^#define PERFCTR_COUNTS_(\w+) (\d+)$", header, re.M)
        constants = {name: int(value) for name, value in constants}
        self.assertEqual(constants["INTERFACE"], _library.INTERFACE)
        self.assertEqual(constants["EVENTS_MAX"], _library.EVENTS_MAX)
        self.assertEqual(constants["UNVERIFIED"], int(True))
        providers = re.findall(r"PERFCTR_PROVIDER_(\w+) = (\d+)", header)
        providers = {name.lower(): int(number) for name, number in providers}
        self.assertEqual(providers, _library.PROVIDERS)

    def test_the_version_is_that_of_the_library(self):
        version = _library._load().perfctr_counts_version
        version.restype = ctypes.c_char_p
        self.assertEqual(perfctr.__version__, version().decode())


if __name__ == "__main__":
    unittest.main()
