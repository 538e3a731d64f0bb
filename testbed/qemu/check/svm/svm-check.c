/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Checks what the performance monitoring unit of an AMD CPU does in and around
 * an SVM guest. The guest is a few instructions in this module, executed at
 * CPL 0 in the kernel's own address space, so that every number can be told by
 * reading it. Perf must have no event at this time.
 *
 * Loading it runs the checks; /sys/module/svm_check/parameters/report says how
 * they ended. Its other parameters say which of the model's habits are on.
 */

#include <linux/gfp.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sysfs.h>
#include <asm/cpufeature.h>
#include <asm/desc_defs.h>
#include <asm/desc.h>
#include <asm/msr.h>
#include <asm/nmi.h>
#include <asm/special_insns.h>
#include <asm/svm.h>
#include <asm/trapnr.h>

#define SELECTOR0 0xc0010000
#define COUNTER0 0xc0010004
#define CORE_SELECTOR5 0xc001020a
#define CORE_COUNTER0 0xc0010201
#define CORE_COUNTER5 0xc001020b
#define V2_STATUS 0xc0000300
#define V2_CONTROL 0xc0000301
#define V2_STATUS_CLEAR 0xc0000302
#define V2_STATUS_SET 0xc0000303

#define INSTRUCTIONS 0xc0ull
#define BRANCHES 0xc2ull
#define USR BIT_ULL(16)
#define OS BIT_ULL(17)
#define INT BIT_ULL(20)
#define ENABLE BIT_ULL(22)
#define GUEST_ONLY BIT_ULL(40)
#define HOST_ONLY BIT_ULL(41)
#define MASK GENMASK_ULL(47, 0)

#define ROUNDS 1000
/* What a counter counts until it overflows in the loop, and how often that is done. */
#define PERIOD 500
#define OVERFLOWS 1000
/* svm_check_loop has a MOV, and a DEC and a JNZ for each round. */
#define LOOP_INSTRUCTIONS (1 + 2 * ROUNDS)
/* Selectors and counters of the first four are in MSRs 2 x 8192 and more. */
#define PERMISSION(msr) ((16384 + (msr) - SELECTOR0) * 2)

asm(".pushsection .text\n"
    "svm_check_loop: mov $" __stringify(ROUNDS) ", %ecx\n"
    "1: dec %ecx\n"
    "jnz 1b\n"
    "svm_check_end: vmmcall\n"
    "svm_check_rdpmc: xor %ecx, %ecx\n"
    "svm_check_rdpmc_at: rdpmc\n"
    "vmmcall\n"
    "svm_check_rdmsr: mov $0xc0010004, %ecx\n"
    "svm_check_rdmsr_at: rdmsr\n"
    "vmmcall\n"
    "svm_check_wrmsr: mov $0xc0010004, %ecx\n"
    "mov $77, %eax\n"
    "xor %edx, %edx\n"
    "svm_check_wrmsr_at: wrmsr\n"
    "vmmcall\n"
    "svm_check_xsetbv: xor %ecx, %ecx\n"
    "xgetbv\n"
    "svm_check_xsetbv_at: xsetbv\n"
    "vmmcall\n"
    ".popsection\n");
extern char svm_check_loop[], svm_check_end[], svm_check_rdpmc[], svm_check_rdpmc_at[];
extern char svm_check_rdmsr[], svm_check_rdmsr_at[], svm_check_wrmsr[], svm_check_wrmsr_at[];
extern char svm_check_xsetbv[], svm_check_xsetbv_at[];

/* The property pmu-habits of the CPU; the skid is from `skid` to `skid_most`. */
static bool vmrun, interrupts, latched;
static unsigned int skid, skid_most, spurious;
module_param(vmrun, bool, 0400);
module_param(interrupts, bool, 0400);
module_param(latched, bool, 0400);
module_param(skid, uint, 0400);
module_param(skid_most, uint, 0400);
module_param(spurious, uint, 0400);

static struct vmcb *vmcb;
static gate_desc *gates;
static u64 *stack;
static u64 host_count;
static void *host_save, *io_permissions, *msr_permissions;
static u64 guest_rcx, guest_rdx;
static int checks, failures, nmis;
static char report[2048];

static void expect(const char *what, u64 found, u64 wanted)
{
	size_t used = strlen(report);

	checks++;
	if (found == wanted)
		return;
	failures++;
	scnprintf(report + used, sizeof(report) - used,
		  "FAIL %s: got %llu, expected %llu\n", what, found, wanted);
}

/* Intel's manuals and AMD's call them attributes: type, S, DPL, P, AVL, L, D, G. */
static void set_segment(struct vmcb_seg *segment, u16 selector, u16 attributes)
{
	segment->selector = selector;
	segment->attrib = attributes;
	segment->limit = ~0u;
	segment->base = 0;
}

/* Sets up a guest that starts with this instruction, and has no interrupts. */
static void set_guest(void *entry, u64 flags)
{
	struct vmcb_save_area *save = &vmcb->save;
	struct desc_ptr gdt, idt;

	memset(vmcb, 0, PAGE_SIZE);
	vmcb->control.intercepts[INTERCEPT_WORD3] = BIT(INTERCEPT_NMI - 96) |
						    BIT(INTERCEPT_MSR_PROT - 96);
	vmcb->control.intercepts[INTERCEPT_WORD4] = BIT(INTERCEPT_VMRUN - 128) |
						    BIT(INTERCEPT_VMMCALL - 128);
	vmcb->control.intercepts[INTERCEPT_EXCEPTION] = BIT(X86_TRAP_DB);
	vmcb->control.iopm_base_pa = __pa(io_permissions);
	vmcb->control.msrpm_base_pa = __pa(msr_permissions);
	vmcb->control.asid = 1;
	set_segment(&save->cs, __KERNEL_CS, 0xa9b);
	set_segment(&save->ss, __KERNEL_DS, 0xc93);
	set_segment(&save->ds, __KERNEL_DS, 0xc93);
	set_segment(&save->es, __KERNEL_DS, 0xc93);
	native_store_gdt(&gdt);
	store_idt(&idt);
	save->gdtr.base = gdt.address;
	save->gdtr.limit = gdt.size;
	save->idtr.base = idt.address;
	save->idtr.limit = idt.size;
	save->cr0 = read_cr0();
	save->cr3 = __read_cr3();
	save->cr4 = __read_cr4();
	save->dr6 = 0xffff0ff0;
	save->dr7 = 0x400;
	rdmsrl(MSR_EFER, save->efer);
	save->rflags = X86_EFLAGS_FIXED | flags;
	save->rip = (u64)entry;
}

/* Executes the guest up to its next exit, and returns the exit's code. */
static u64 enter_guest(void)
{
	asm volatile("clgi\n\tvmrun\n\tstgi\n\t"
		     : "+c" (guest_rcx), "+d" (guest_rdx)
		     : "a" (__pa(vmcb))
		     : "cc", "memory");
	return vmcb->control.exit_code;
}

static u64 run(void *entry)
{
	set_guest(entry, 0);
	return enter_guest();
}

static u64 counter(u32 msr)
{
	u64 value;

	rdmsrl(msr, value);
	return value;
}

/* Returns what a counter counts while the loop is executed in the guest. */
static u64 count_loop(u64 selector)
{
	wrmsrl(COUNTER0, 0);
	wrmsrl(SELECTOR0, selector | ENABLE);
	run(svm_check_loop);
	wrmsrl(SELECTOR0, 0);
	return counter(COUNTER0);
}

static void check_worlds(void)
{
	u64 guest = count_loop(INSTRUCTIONS | OS | GUEST_ONLY);
	u64 host = count_loop(INSTRUCTIONS | OS | HOST_ONLY);
	u64 steps = 0;

	host_count = host;
	expect("guest-only, instructions", guest, LOOP_INSTRUCTIONS + vmrun);
	expect("guest-only, branches", count_loop(BRANCHES | OS | GUEST_ONLY), ROUNDS + vmrun);
	expect("guest-only, another ring", count_loop(INSTRUCTIONS | USR | GUEST_ONLY), 0);
	expect("both bits", count_loop(INSTRUCTIONS | OS | GUEST_ONLY | HOST_ONLY), guest + host);
	expect("no bit", count_loop(INSTRUCTIONS | OS), guest + host);

	set_guest(svm_check_loop, X86_EFLAGS_TF);
	while (enter_guest() == SVM_EXIT_EXCP_BASE + X86_TRAP_DB)
		steps++;
	expect("single steps", steps, LOOP_INSTRUCTIONS);
	expect("single steps end", vmcb->save.rip, (u64)svm_check_end);
}

/* Enters a guest that delivers this event to itself, and executes nothing. */
static u64 count_injected(u64 selector, u32 event)
{
	wrmsrl(COUNTER0, 0);
	set_guest(svm_check_loop, 0);
	vmcb->save.idtr.base = (u64)gates;
	vmcb->save.idtr.limit = PAGE_SIZE - 1;
	vmcb->save.rsp = (u64)stack + PAGE_SIZE;
	vmcb->control.event_inj = SVM_EVTINJ_VALID | event;
	wrmsrl(SELECTOR0, selector | OS | GUEST_ONLY | ENABLE);
	expect("injected, then", enter_guest(), SVM_EXIT_VMMCALL);
	wrmsrl(SELECTOR0, 0);
	expect("injected, at", vmcb->save.rip, (u64)svm_check_end);
	return counter(COUNTER0);
}

static void check_injections(void)
{
	static const struct {
		const char *name;
		u32 event;
		bool is_software;
	} cases[] = {
		{ "interrupt", SVM_EVTINJ_TYPE_INTR | 0x40, false },
		{ "NMI", SVM_EVTINJ_TYPE_NMI | X86_TRAP_NMI, false },
		{ "exception", SVM_EVTINJ_TYPE_EXEPT | X86_TRAP_UD, false },
		{ "software interrupt", SVM_EVTINJ_TYPE_SOFT | 0x40, true },
	};
	unsigned int vector, i;

	for (vector = 0; vector < PAGE_SIZE / sizeof(gate_desc); vector++) {
		gates[vector].offset_low = (u64)svm_check_end;
		gates[vector].offset_middle = (u64)svm_check_end >> 16;
		gates[vector].offset_high = (u64)svm_check_end >> 32;
		gates[vector].segment = __KERNEL_CS;
		gates[vector].bits.type = GATE_INTERRUPT;
		gates[vector].bits.p = 1;
	}
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		u64 more = interrupts && !cases[i].is_software;

		expect(cases[i].name, count_injected(INSTRUCTIONS, cases[i].event), vmrun + more);
		expect(cases[i].name, count_injected(BRANCHES, cases[i].event), vmrun);
	}
}

static void check_intercepts(void)
{
	u8 *permission = (u8 *)msr_permissions + PERMISSION(COUNTER0) / 8;

	wrmsrl(COUNTER0, 0);
	wrmsrl(SELECTOR0, INSTRUCTIONS | OS | GUEST_ONLY | ENABLE);
	expect("RDPMC", run(svm_check_rdpmc), SVM_EXIT_VMMCALL);
	expect("RDPMC's value", vmcb->save.rax, 1 + vmrun);
	set_guest(svm_check_rdpmc, 0);
	vmcb->control.intercepts[INTERCEPT_WORD3] |= BIT(INTERCEPT_RDPMC - 96);
	expect("RDPMC intercepted", enter_guest(), SVM_EXIT_RDPMC);
	expect("RDPMC intercepted, at", vmcb->save.rip, (u64)svm_check_rdpmc_at);
	/*
	 * These are the XOR, the RDPMC, and the XOR again. Neither VMMCALL nor an RDPMC that
	 * exits is counted.
	 */
	expect("RDPMC intercepted, counted", counter(COUNTER0), 3 + 2 * vmrun);
	wrmsrl(SELECTOR0, 0);

	wrmsrl(COUNTER0, 12345);
	expect("RDMSR", run(svm_check_rdmsr), SVM_EXIT_VMMCALL);
	expect("RDMSR's value", vmcb->save.rax, 12345);
	*permission = 1 << PERMISSION(COUNTER0) % 8;
	expect("RDMSR intercepted", run(svm_check_rdmsr), SVM_EXIT_MSR);
	expect("RDMSR intercepted, at", vmcb->save.rip, (u64)svm_check_rdmsr_at);
	expect("RDMSR intercepted, as", vmcb->control.exit_info_1, 0);
	expect("WRMSR", run(svm_check_wrmsr), SVM_EXIT_VMMCALL);
	expect("WRMSR's value", counter(COUNTER0), 77);
	*permission = 2 << PERMISSION(COUNTER0) % 8;
	wrmsrl(COUNTER0, 12345);
	expect("WRMSR intercepted", run(svm_check_wrmsr), SVM_EXIT_MSR);
	expect("WRMSR intercepted, at", vmcb->save.rip, (u64)svm_check_wrmsr_at);
	expect("WRMSR intercepted, as", vmcb->control.exit_info_1, 1);
	expect("WRMSR intercepted, value", counter(COUNTER0), 12345);
	*permission = 0;

	expect("XSETBV", run(svm_check_xsetbv), SVM_EXIT_VMMCALL);
	set_guest(svm_check_xsetbv, 0);
	vmcb->control.intercepts[INTERCEPT_WORD4] |= BIT(INTERCEPT_XSETBV - 128);
	expect("XSETBV intercepted", enter_guest(), SVM_EXIT_XSETBV);
	expect("XSETBV intercepted, at", vmcb->save.rip, (u64)svm_check_xsetbv_at);
}

static int on_nmi(unsigned int type, struct pt_regs *regs)
{
	nmis++;
	return NMI_HANDLED;
}

/*
 * Has the first counters overflow together in a guest, and returns how many instructions the first
 * one has counted afterwards. The interrupt comes between two instructions of the guest, and exits
 * from it. Perf has set LVTPC.
 */
static u64 overflow(unsigned int counters)
{
	u64 late;
	unsigned int i;

	for (i = 0; i < counters; i++) {
		wrmsrl(COUNTER0 + i, -PERIOD & MASK);
		wrmsrl(SELECTOR0 + i, INSTRUCTIONS | OS | INT | GUEST_ONLY | ENABLE);
	}
	expect("overflow", run(svm_check_loop), SVM_EXIT_NMI);
	for (i = 0; i < counters; i++)
		wrmsrl(SELECTOR0 + i, 0);
	late = counter(COUNTER0);
	/* The guest executes a MOV, and then a DEC and a JNZ in each round. */
	expect("overflow, round", guest_rcx, ROUNDS - (PERIOD - vmrun + late) / 2);
	/* Whatever comes without a reason comes now. */
	for (i = 0; i < 2 * spurious; i++)
		cpu_relax();
	return late;
}

static void check_overflow(void)
{
	u64 least = U64_MAX, most = 0;
	unsigned int i;

	nmis = 0;
	for (i = 0; i < OVERFLOWS; i++) {
		u64 late = overflow(1);

		least = min(least, late);
		most = max(most, late);
	}
	/* A thousand of 64 numbers lack the least or the greatest with a probability of 3e-7. */
	expect("overflow, least skid", least, skid);
	expect("overflow, greatest skid", most, max(skid, skid_most));
	expect("overflow, interrupts of the host", nmis, OVERFLOWS * (spurious ? 2 : 1));
}

/*
 * Both counters have stopped, and hold nothing to be handled any more, when the second NMI comes:
 * it was latched while the first one was handled.
 */
static void check_latched(void)
{
	nmis = 0;
	overflow(2);
	expect("overflows, second counter", counter(COUNTER0 + 1), counter(COUNTER0));
	expect("overflows, interrupts of the host", nmis, 1 + latched + (spurious ? 1 : 0));
}

static void check_without_svm(void)
{
	wrmsrl(COUNTER0, 0);
	wrmsrl(SELECTOR0, INSTRUCTIONS | OS | HOST_ONLY | ENABLE);
	wrmsrl(SELECTOR0, 0);
	expect("host-only without SVM", counter(COUNTER0), 0);
}

static void check_core_counters(void)
{
	u64 value;

	if (!boot_cpu_has(X86_FEATURE_PERFCTR_CORE))
		return;
	wrmsrl(COUNTER0, 4711);
	expect("counter 0 by its other name", counter(CORE_COUNTER0), 4711);
	wrmsrl(CORE_COUNTER5, 0);
	wrmsrl(CORE_SELECTOR5, INSTRUCTIONS | OS | GUEST_ONLY | ENABLE);
	run(svm_check_loop);
	wrmsrl(CORE_SELECTOR5, 0);
	expect("counter 5", counter(CORE_COUNTER5), LOOP_INSTRUCTIONS + vmrun);
	rdpmcl(5, value);
	expect("counter 5 by RDPMC", value, LOOP_INSTRUCTIONS + vmrun);
}

static bool has_v2(void)
{
	return cpuid_eax(0x80000000) >= 0x80000022 && cpuid_eax(0x80000022) & 1;
}

static void check_v2(void)
{
	if (!has_v2())
		return;
	expect("counters of version 2", cpuid_ebx(0x80000022) & 0xf, 6);
	expect("global control, reserved", wrmsrl_safe(V2_CONTROL, BIT(6)) != 0, 1);
	expect("global status is read-only", wrmsrl_safe(V2_STATUS, 0) != 0, 1);
	wrmsrl(V2_CONTROL, 0);
	expect("stopped globally", count_loop(INSTRUCTIONS | OS), 0);
	wrmsrl(V2_CONTROL, 1);
	expect("started globally", count_loop(INSTRUCTIONS | OS | GUEST_ONLY),
	       LOOP_INSTRUCTIONS + vmrun);
	wrmsrl(V2_STATUS_CLEAR, 0x3f);
	expect("status cleared", counter(V2_STATUS), 0);
	wrmsrl(V2_STATUS_SET, 0x21);
	wrmsrl(V2_STATUS_CLEAR, 0x20);
	expect("status set, then cleared in part", counter(V2_STATUS), 1);
	wrmsrl(V2_STATUS_CLEAR, 1);
	wrmsrl(COUNTER0, -2 & MASK);
	wrmsrl(SELECTOR0, INSTRUCTIONS | OS | GUEST_ONLY | ENABLE);
	run(svm_check_loop);
	wrmsrl(SELECTOR0, 0);
	expect("status of an overflow", counter(V2_STATUS), 1);
	wrmsrl(V2_STATUS_CLEAR, 1);
	wrmsrl(V2_CONTROL, 0);
}

static void check(void)
{
	u64 efer;

	rdmsrl(MSR_EFER, efer);
	if (has_v2())
		wrmsrl(V2_CONTROL, 0x3f);
	check_without_svm();
	wrmsrl(MSR_EFER, efer | EFER_SVME);
	wrmsrl(MSR_VM_HSAVE_PA, __pa(host_save));
	check_worlds();
	check_injections();
	check_intercepts();
	check_overflow();
	check_latched();
	check_core_counters();
	check_v2();
	wrmsrl(MSR_VM_HSAVE_PA, 0);
	wrmsrl(MSR_EFER, efer);
}

static void *pages(unsigned int order)
{
	return (void *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, order);
}

static int __init svm_check_init(void)
{
	size_t used;

	vmcb = pages(0);
	host_save = pages(0);
	msr_permissions = pages(1);
	io_permissions = pages(2);
	gates = pages(0);
	stack = pages(0);
	if (!boot_cpu_has(X86_FEATURE_SVM) || !vmcb || !host_save || !msr_permissions ||
	    !io_permissions || !gates || !stack)
		return -ENODEV;
	if (register_nmi_handler(NMI_LOCAL, on_nmi, 0, "svm-check"))
		return -EBUSY;
	/* What the host executes in between is the same each time. */
	local_irq_disable();
	check();
	local_irq_enable();
	unregister_nmi_handler(NMI_LOCAL, "svm-check");
	used = strlen(report);
	scnprintf(report + used, sizeof(report) - used,
		  "svm-check: %d checks, %d FAILED\n"
		  "svm-check: the host retires %llu instructions around a guest\n",
		  checks, failures, host_count);
	return 0;
}
module_init(svm_check_init);

static int get_report(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%s", report);
}

static const struct kernel_param_ops report_ops = { .get = get_report };
module_param_cb(report, &report_ops, NULL, 0400);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("the performance monitoring unit and SVM guests");
