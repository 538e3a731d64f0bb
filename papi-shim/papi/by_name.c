/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Preloaded, it has PAPI's tests look up events by name one thread at a time.
 *
 * PAPI 7.2 writes an event's qualifiers anew at each lookup, in memory that all threads share and
 * without its lock (overwrite_qualifiers() in papi_internal.c): some runs of zero_pthreads end by
 * SIGSEGV or SIGABRT, on the bare machine, too. PAPI itself stays as it is.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include "papi.h"

/* Adding an event by name looks it up. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

int PAPI_event_name_to_code(const char *name, int *code)
{
	int (*next)(const char *, int *) = dlsym(RTLD_NEXT, __func__);
	int status;

	pthread_mutex_lock(&lock);
	status = next(name, code);
	pthread_mutex_unlock(&lock);
	return status;
}

int PAPI_add_named_event(int set, const char *name)
{
	int (*next)(int, const char *) = dlsym(RTLD_NEXT, __func__);
	int status;

	pthread_mutex_lock(&lock);
	status = next(set, name);
	pthread_mutex_unlock(&lock);
	return status;
}
