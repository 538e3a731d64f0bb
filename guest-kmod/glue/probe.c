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

int perfctr_probe(struct perfctr_probe *probe)
{
	int err = -ENOENT;

	for_each_kernel_tracepoint(perfctr_find, probe);
	if (probe->tracepoint)
		err = tracepoint_probe_register(probe->tracepoint,
						probe->function, NULL);
	if (err)
		probe->tracepoint = NULL;
	return err;
}

/*
 * The probe may still run somewhere until tracepoint_synchronize_unregister()
 * has returned. This does nothing with a probe that is not registered.
 */
void perfctr_unprobe(struct perfctr_probe *probe)
{
	if (probe->tracepoint)
		tracepoint_probe_unregister(probe->tracepoint, probe->function,
					    NULL);
	probe->tracepoint = NULL;
}
