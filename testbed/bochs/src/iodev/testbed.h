/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Four files of this process's directory, each written to through 4096 I/O
 * ports: what is written to any of its ports is appended to the file. So a
 * Linux kernel writes a page of bytes there at once, through /dev/port.
 *
 * They end where the ports of Bochs' own devices begin: those of ACPI's power
 * management at 0xb000, by its BIOS, and those of PCI devices at 0xc000. A
 * device's port never gets here, and its byte would be missing in the file.
 */
#ifndef BX_TESTBED_H
#define BX_TESTBED_H

#include <fcntl.h>
#include <unistd.h>

#define BX_TESTBED_PORTS 0x7000
#define BX_TESTBED_EACH 0x1000
#define BX_TESTBED_FILES 4
#define BX_TESTBED_END 0xb000

static_assert(BX_TESTBED_PORTS + BX_TESTBED_FILES * BX_TESTBED_EACH <= BX_TESTBED_END,
              "the ports are those of other devices");

/* False if it is another device's port. */
static bool bx_testbed_write(Bit32u port, Bit32u value)
{
  static const char *const name[BX_TESTBED_FILES] = { "control", "stdout", "stderr", "out" };
  static int file[BX_TESTBED_FILES];
  Bit32u n = (port - BX_TESTBED_PORTS) / BX_TESTBED_EACH;

  if (port < BX_TESTBED_PORTS || n >= BX_TESTBED_FILES)
    return false;
  /* 0 is the standard input. */
  if (!file[n])
    file[n] = open(name[n], O_WRONLY | O_APPEND | O_CREAT, 0666);
  Bit8u byte = value;
  if (write(file[n], &byte, 1) != 1)
    BX_PANIC(("%s cannot be written", name[n]));
  return true;
}

#endif
