/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Keeps translations from outliving the code that they were made of. */

#include "qemu/osdep.h"
#include "exec/cputlb.h"
#include "exec/exec-all.h"
#include "exec/ram_addr.h"
#include "exec/translate-all.h"
#include "tb-hash.h"
#include "internal.h"
#include "fresh.h"

/* What the present thread's translation begins with, of its first and its second page. */
static __thread struct {
    const void *host;
    size_t size;
    uint8_t bytes[TARGET_PAGE_SIZE];
} before[2];

void fresh_read(int n, tb_page_addr_t phys, const void *host)
{
    /* From now on, writes do not pass unseen. */
    tlb_protect_code(phys & TARGET_PAGE_MASK);
    before[n].host = host;
    before[n].size = TARGET_PAGE_SIZE - (phys & ~TARGET_PAGE_MASK);
    memcpy(before[n].bytes, host, before[n].size);
}

bool fresh_check(const TranslationBlock *tb)
{
    size_t first = MIN(tb->size, before[0].size);

    return !memcmp(before[0].bytes, before[0].host, first) &&
           !memcmp(before[1].bytes, before[1].host, tb->size - first);
}

void fresh_written(ram_addr_t addr, unsigned size)
{
    struct page_collection *pages;

    if (!cpu_physical_memory_get_dirty_flag(addr, DIRTY_MEMORY_CODE)) {
        pages = page_collection_lock(addr, addr + size);
        tb_invalidate_phys_page_fast(pages, addr, size, 0);
        page_collection_unlock(pages);
    }
}
