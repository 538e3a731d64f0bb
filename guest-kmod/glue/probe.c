/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Finds tracepoints by name, because the kernel exports no symbols of them.
 */

#include <linux/string.h>
#include <linux/tracepoint.h>

#include "perfctr.h"

static void perfctr_find(struct tracepoint *tracepoint, void *probe_pointer)
{
	struct perfctr_probe *probe = probe_pointer;

	if (!strcmp(tracepoint->name, probe->name))
		probe->tracepoint = tracepoint;
}

/* Registers all of these probes, or none of them. */
int perfctr_probe(struct perfctr_probe *probes, unsigned int count)
{
	struct perfctr_probe *probe;
	int err = 0;

	for (probe = probes; probe < probes + count && !err; probe++) {
		err = -ENOENT;
		for_each_kernel_tracepoint(perfctr_find, probe);
		if (probe->tracepoint)
			err = tracepoint_probe_register(probe->tracepoint,
							probe->function, NULL);
		if (err)
			probe->tracepoint = NULL;
	}
	if (err)
		perfctr_unprobe(probes, count);
	return err;
}

/*
 * The probes may still run somewhere until tracepoint_synchronize_unregister()
 * has returned. This does nothing with a probe that is not registered.
 */
void perfctr_unprobe(struct perfctr_probe *probes, unsigned int count)
{
	while (count--) {
		if (probes[count].tracepoint)
			tracepoint_probe_unregister(probes[count].tracepoint,
						    probes[count].function,
						    NULL);
		probes[count].tracepoint = NULL;
	}
}
