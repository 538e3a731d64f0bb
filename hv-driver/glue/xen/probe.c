/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Accesses registers that may not exist, and catches the faults. */

#include <xen/lib.h>

#include <asm/msr.h>
#include <asm/processor.h>

#include "private.h"

bool perfctr_glue_try_rdmsr(uint32_t msr, uint64_t *value)
{
    return !rdmsr_safe(msr, *value);
}

bool perfctr_glue_try_wrmsr(uint32_t msr, uint64_t value)
{
    return !wrmsr_safe(msr, value);
}
