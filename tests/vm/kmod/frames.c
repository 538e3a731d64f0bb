/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What a hostile guest's kernel names as a vCPU's page, and what it makes of a
 * frame of its own before, or while it is one.
 *
 * Files in /sys/module/frames/parameters. `own` says the number of a frame of
 * this kernel's. Each of the others does what its name says when something is
 * written to it, and fails as that does:
 *
 *   register    names the frame of this number as the calling vCPU's page
 *   unregister  takes that back
 *   release     gives the own frame back to the hypervisor
 *   populate    gets memory for it again
 *   map         "DOMAIN REFERENCE IS_READ_ONLY": maps a grant there
 *   unmap       takes that away
 */

#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <asm/xen/hypercall.h>
#include <xen/interface/grant_table.h>
#include <xen/interface/memory.h>
#include <xen/interface/xen.h>
#include <xen/page.h>

#include "perfctr_abi.h"

static struct page *own;
static grant_handle_t grant;

static int set_register(const char *text, const struct kernel_param *unused)
{
	struct perfctr_hv_register what = {};
	int err = kstrtou64(text, 0, &what.gfn);

	if (err)
		return err;
	return _hypercall3(int, arch_5, PERFCTR_OP_REGISTER, &what,
			   (u32)sizeof(what));
}

static int set_unregister(const char *text, const struct kernel_param *unused)
{
	return _hypercall3(int, arch_5, PERFCTR_OP_UNREGISTER, NULL, 0u);
}

static int get_own(char *buffer, const struct kernel_param *unused)
{
	return sysfs_emit(buffer, "%lu\n", page_to_pfn(own));
}

/* The memory is the guest's, and nobody reads it, so it may come and go. */
static int reserve(unsigned int operation)
{
	xen_pfn_t frame = page_to_pfn(own);
	struct xen_memory_reservation reservation = {
		.nr_extents = 1,
		.domid = DOMID_SELF,
	};

	set_xen_guest_handle(reservation.extent_start, &frame);
	return HYPERVISOR_memory_op(operation, &reservation) == 1 ? 0 : -EIO;
}

static int set_release(const char *text, const struct kernel_param *unused)
{
	return reserve(XENMEM_decrease_reservation);
}

static int set_populate(const char *text, const struct kernel_param *unused)
{
	return reserve(XENMEM_populate_physmap);
}

static int set_map(const char *text, const struct kernel_param *unused)
{
	struct gnttab_map_grant_ref map = {
		.host_addr = page_to_phys(own),
		.flags = GNTMAP_host_map,
	};
	unsigned int domain, reference, is_read_only;

	if (sscanf(text, "%u %u %u", &domain, &reference, &is_read_only) != 3)
		return -EINVAL;
	map.dom = domain;
	map.ref = reference;
	if (is_read_only)
		map.flags |= GNTMAP_readonly;
	if (HYPERVISOR_grant_table_op(GNTTABOP_map_grant_ref, &map, 1) ||
	    map.status != GNTST_okay)
		return -EIO;
	grant = map.handle;
	return 0;
}

static int set_unmap(const char *text, const struct kernel_param *unused)
{
	struct gnttab_unmap_grant_ref unmap = {
		.host_addr = page_to_phys(own),
		.handle = grant,
	};

	if (HYPERVISOR_grant_table_op(GNTTABOP_unmap_grant_ref, &unmap, 1) ||
	    unmap.status != GNTST_okay)
		return -EIO;
	return 0;
}

static const struct kernel_param_ops own_ops = { .get = get_own };
static const struct kernel_param_ops register_ops = { .set = set_register };
static const struct kernel_param_ops unregister_ops = { .set = set_unregister };
static const struct kernel_param_ops release_ops = { .set = set_release };
static const struct kernel_param_ops populate_ops = { .set = set_populate };
static const struct kernel_param_ops map_ops = { .set = set_map };
static const struct kernel_param_ops unmap_ops = { .set = set_unmap };

module_param_cb(own, &own_ops, NULL, 0400);
module_param_cb(register, &register_ops, NULL, 0200);
module_param_cb(unregister, &unregister_ops, NULL, 0200);
module_param_cb(release, &release_ops, NULL, 0200);
module_param_cb(populate, &populate_ops, NULL, 0200);
module_param_cb(map, &map_ops, NULL, 0200);
module_param_cb(unmap, &unmap_ops, NULL, 0200);

/*
 * The module stays until the domain ends: nobody knows what has become of its
 * frame.
 */
static int __init frames_init(void)
{
	own = alloc_page(GFP_KERNEL);
	return own ? 0 : -ENOMEM;
}
module_init(frames_init);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("frames that a hostile guest's kernel names as a vCPU's page");
