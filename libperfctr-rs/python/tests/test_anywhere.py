# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What needs no counters: baselines, messages, the plug-in, and the wheel."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

import perfctr
from perfctr import Counters, Error, gate

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
PROJECT = PACKAGE.parents[1]


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


class Baselines(unittest.TestCase):
    """Compares with the cases that `perfctr gate` is tested by, too."""

    CASES = json.loads((PROJECT / "cli/src/gate/cases.json").read_text("utf-8"))

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


class PlugIn(unittest.TestCase):
    """Runs pytest with a library whose counts are known, and with the real one."""

    GATED = pathlib.Path(__file__).parent / "gated.py"

    def pytest(self, *options, **variables):
        # The wheel names the plug-in, so pytest finds it.
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        command.append(f"--perfctr-baseline={self.baseline}")
        ended = subprocess.run(
            [*command, *options, str(self.GATED)],
            cwd=os.path.dirname(self.baseline),
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return ended.returncode, ended.stdout

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.baseline = os.path.join(directory.name, "baseline.json")

    def test_a_test_that_executes_more_fails(self):
        counted = {"PERFCTR_COUNTS_LIBRARY": os.environ["PERFCTR_STAND_IN"]}
        for more, options, status, said in (
            ("0", [], 0, "new    loop: 1,000 instructions:u; not in the baseline"),
            ("0", ["--perfctr-update"], 0, "new    loop: 1,000 branches:u"),
            ("0", [], 0, "same   loop: 1,000 instructions:u; 1,000 before, 0"),
            ("50", [], 0, "same   loop: 1,050 instructions:u; 1,000 before, +50"),
            ("51", [], 1, "WORSE  loop: 1,051 branches:u; 1,000 before, +51 (+5.1000 %)"),
            ("51", ["--perfctr-update"], 0, "WORSE  loop: 1,051 branches:u"),
            ("51", [], 0, "same   loop: 1,051 branches:u; 1,051 before, 0"),
            ("0", [], 0, "better loop: 1,000 branches:u; 1,051 before, -51"),
        ):
            found, text = self.pytest(*options, MORE=more, **counted)
            self.assertEqual(found, status, text)
            self.assertIn(said, text)
            self.assertIn("1 failed, 1 passed" if status else "2 passed", text)

    def test_what_differs_between_processes_is_told(self):
        counted = {"PERFCTR_COUNTS_LIBRARY": os.environ["PERFCTR_STAND_IN"]}
        for seed, expected in (("0", False), ("random", True)):
            _, text = self.pytest(PYTHONHASHSEED=seed, **counted)
            self.assertEqual("set PYTHONHASHSEED=0" in text, expected, text)

    def test_a_test_that_nobody_counts_fails_and_says_why(self):
        library = os.path.join(os.path.dirname(self.baseline), "absent.so")
        status, text = self.pytest(PERFCTR_COUNTS_LIBRARY=library)
        self.assertEqual(status, 1, text)
        self.assertIn("nothing is compared: ", text)
        self.assertIn("`cargo xtask install-c PREFIX` installs it", text)


class Wheel(unittest.TestCase):
    def test_the_wheel_has_every_module_and_the_plug_in(self):
        here = pathlib.Path(perfctr.__file__).parent
        wheel = os.environ.get("PERFCTR_WHEEL")
        self.assertIsNotNone(wheel, "PERFCTR_WHEEL has the wheel's path")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            for module in here.glob("*.py"):
                self.assertEqual(archive.read(f"perfctr/{module.name}"), module.read_bytes())
            info = "perfctr-0.1.0.dist-info/"
            plug_in = archive.read(info + "entry_points.txt").decode()
            self.assertIn("perfctr = perfctr.pytest_plugin", plug_in)
            recorded = archive.read(info + "RECORD").decode().splitlines()
            self.assertEqual([line.split(",")[0] for line in recorded], names)


if __name__ == "__main__":
    unittest.main()
