/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A whole 32-bit kernel, which asks the driver for what it needs to count, says on its console
 * what the driver answers, and switches itself off.
 *
 * Xen starts it as a PVH domain, with paging off, so that addresses are physical.
 */

#include <perfctr_abi.h>

#define EVENT_CHANNEL_OP 32
#define EVTCHNOP_SEND 4
#define SCHED_OP 29
#define SCHEDOP_SHUTDOWN 2
#define HVM_OP 34
#define HVMOP_GET_PARAM 1
#define HVM_PARAM_CONSOLE_PFN 17
#define HVM_PARAM_CONSOLE_EVTCHN 18
#define DOMID_SELF 0x7ff0

/* The first letters of AMD's name in CPUID leaf 0: "Auth". */
#define AMD 0x68747541

/* XEN_ELFNOTE_PHYS32_ENTRY: where a PVH domain starts. */
asm(".pushsection .note.Xen, \"a\", @note\n"
    ".long 4, 4, 18\n"
    ".asciz \"Xen\"\n"
    ".long start\n"
    ".popsection\n"
    ".globl start\n"
    "start:\n"
    "\tmov $stack + 4096, %esp\n"
    "\tcall act\n");

char stack[4096] __attribute__((aligned(16)));

/* struct xencons_interface */
struct ring {
	char in[1024];
	char out[2048];
	__u32 in_cons, in_prod, out_cons, out_prod;
};

/* struct xen_hvm_param */
struct parameter {
	__u16 domid, padding;
	__u32 index;
	__u64 value;
};

static int is_amd(void)
{
	__u32 eax = 0, ebx, ecx, edx;

	asm volatile("cpuid" : "+a" (eax), "=b" (ebx), "=c" (ecx), "=d" (edx));
	return ebx == AMD;
}

/* SVM and VT-x have an instruction each, and the other one's raises #UD. */
static int hypercall(__u32 number, __u32 first, void *second, __u32 third)
{
	int result;

	if (is_amd())
		asm volatile("vmmcall"
			     : "=a" (result), "+b" (first), "+c" (second), "+d" (third)
			     : "a" (number) : "memory");
	else
		asm volatile("vmcall"
			     : "=a" (result), "+b" (first), "+c" (second), "+d" (third)
			     : "a" (number) : "memory");
	return result;
}

static __u32 parameter(__u32 index)
{
	struct parameter parameter = { .domid = DOMID_SELF, .index = index };

	hypercall(HVM_OP, HVMOP_GET_PARAM, &parameter, 0);
	return parameter.value;
}

static void put(struct ring *console, char c)
{
	console->out[console->out_prod % sizeof(console->out)] = c;
	asm volatile("" ::: "memory");
	console->out_prod++;
}

static void say(struct ring *console, const char *text)
{
	while (*text)
		put(console, *text++);
}

static void say_number(struct ring *console, int number)
{
	if (number < 0) {
		put(console, '-');
		number = -number;
	}
	if (number >= 10)
		say_number(console, number / 10);
	put(console, '0' + number % 10);
}

__attribute__((used, noreturn)) static void act(void)
{
	struct ring *console = (void *)(parameter(HVM_PARAM_CONSOLE_PFN) << 12);
	__u32 channel = parameter(HVM_PARAM_CONSOLE_EVTCHN), reason = 0;
	struct perfctr_hv_query query = { .abi_major = PERFCTR_ABI_MAJOR };
	struct perfctr_hv_register page = { .gfn = 0 };

	say(console, "tenant: {\"query\": ");
	say_number(console, hypercall(PERFCTR_HYPERCALL_NUMBER, PERFCTR_OP_QUERY,
				      &query, sizeof(query)));
	say(console, ", \"register\": ");
	say_number(console, hypercall(PERFCTR_HYPERCALL_NUMBER, PERFCTR_OP_REGISTER,
				      &page, sizeof(page)));
	say(console, "}\r\n");
	hypercall(EVENT_CHANNEL_OP, EVTCHNOP_SEND, &channel, 0);
	for (;;)
		hypercall(SCHED_OP, SCHEDOP_SHUTDOWN, &reason, 0);
}
