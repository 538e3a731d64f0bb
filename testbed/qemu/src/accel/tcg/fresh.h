/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Keeps translations from outliving the code that they were made of.
 *
 * While one virtual CPU translates, another may write what it reads. QEMU 7.2 throws translations
 * away on a write to their page, but one that is not linked yet is not found, stays, and goes on
 * executing what is no longer there: a breakpoint that the kernel had planted for a moment while it
 * patched itself stands for ever. A host with fewer CPUs than virtual ones is all that it takes.
 *
 * So a translation is compared with memory once it is linked, and from before it was begun until
 * then writes to its pages come along here, where they look for translations both before and after
 * memory has changed.
 */
#ifndef ACCEL_TCG_FRESH_H
#define ACCEL_TCG_FRESH_H

/* Translation is about to read the first or second page (@n) of a block: at @host, to its end. */
void fresh_read(int n, tb_page_addr_t phys, const void *host);

/* Whether memory still holds what the present thread has translated into @tb. */
bool fresh_check(const TranslationBlock *tb);

/* A virtual CPU has written these bytes of a page that has, or had, translations. */
void fresh_written(ram_addr_t addr, unsigned size);

#endif
