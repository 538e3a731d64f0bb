# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Builds the wheel with Python's own library alone (PEP 517); so does `python3 backend.py DIR`."""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
NAME = "perfctr"
VERSION = re.search('^__version__ = "(.*)"$', (HERE / NAME / "__init__.py").read_text(), re.M)[1]
INFO = f"{NAME}-{VERSION}.dist-info"
LICENCES = ("LICENSE-MIT", "LICENSE-GPL-2.0")
METADATA = f"""Metadata-Version: 2.4
Name: {NAME}
Version: {VERSION}
Summary: Exact counts of what a thread executes
License-Expression: MIT OR GPL-2.0-only
Requires-Python: >=3.9
""" + "".join(f"License-File: {name}\n" for name in LICENCES)
WHEEL = "Wheel-Version: 1.0\nGenerator: perfctr\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRY_POINTS = "[pytest11]\nperfctr = perfctr.pytest_plugin\n"
#: The earliest time that an archive can have, so that the same sources give the same wheel.
TIME = (1980, 1, 1, 0, 0, 0)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the wheel into a directory, and return its name."""
    files = {
        f"{NAME}/{path.name}": path.read_bytes() for path in sorted((HERE / NAME).glob("*.py"))
    }
    for name, text in (
        ("METADATA", METADATA),
        ("WHEEL", WHEEL),
        ("entry_points.txt", ENTRY_POINTS),
    ):
        files[f"{INFO}/{name}"] = text.encode()
    for name in LICENCES:
        files[f"{INFO}/licenses/{name}"] = (HERE.parent / name).read_bytes()
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{INFO}/RECORD"] = (record + f"{INFO}/RECORD,,\n").encode()
    wheel = f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, TIME), content, zipfile.ZIP_DEFLATED)
    return wheel


if __name__ == "__main__":
    print(build_wheel(sys.argv[1]))
