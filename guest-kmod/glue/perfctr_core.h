/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The Rust core's entries, documented in guest-kmod/ffi/src/lib.rs, and what
 * it calls.  Results are 0 or a negative error number.
 */
#ifndef PERFCTR_CORE_H
#define PERFCTR_CORE_H

#include "perfctr_abi.h"

struct perfctr_core_vcpu;
struct perfctr_core_thread;

int perfctr_core_handshake(struct perfctr_hv_query *answer);

/* With interrupts disabled, on that vCPU. */
int perfctr_core_vcpu_register(const struct perfctr_core_vcpu *vcpu, u64 gfn);
int perfctr_core_vcpu_unregister(const struct perfctr_core_vcpu *vcpu);
void perfctr_core_vcpu_stop_if_idle(const struct perfctr_core_vcpu *vcpu);

/* Anywhere. */
size_t perfctr_core_vcpu_bytes(void);
void perfctr_core_vcpu_init(struct perfctr_core_vcpu *memory, u32 number,
			    const struct perfctr_vcpu_page *page);
bool perfctr_core_is_idle(void);
const char *perfctr_core_stat_name(const struct perfctr_core_vcpu *vcpu,
				   u32 index);
u64 perfctr_core_stat(const struct perfctr_core_vcpu *vcpu, u32 index);
int perfctr_core_check_create(const struct perfctr_create *create);
int perfctr_core_check_control(const struct perfctr_hv_query *query,
			       const struct perfctr_control_arg *control);
size_t perfctr_core_thread_bytes(void);
void perfctr_core_thread_init(struct perfctr_core_thread *memory,
			      const struct perfctr_thread_page *page, u32 tid);
int perfctr_core_read_published(const struct perfctr_core_thread *thread,
				struct perfctr_sums *sums);

/*
 * With interrupts disabled, by the thread itself or its switch, on that vCPU.
 * A u64 is a signal: its number in the high half, counters in the low one.
 */
u64 perfctr_core_switch_in(const struct perfctr_core_thread *thread,
			   const struct perfctr_core_vcpu *vcpu);
void perfctr_core_switch_out(const struct perfctr_core_thread *thread,
			     const struct perfctr_core_vcpu *vcpu);
u64 perfctr_core_switch_in_measured(const struct perfctr_core_thread *thread,
				    const struct perfctr_core_vcpu *vcpu);
void perfctr_core_switch_out_measured(const struct perfctr_core_thread *thread,
				      const struct perfctr_core_vcpu *vcpu);
u64 perfctr_core_interrupt(const struct perfctr_core_thread *thread_or_null,
			   const struct perfctr_core_vcpu *vcpu);
int perfctr_core_go_on(const struct perfctr_core_thread *thread,
		       const struct perfctr_core_vcpu *vcpu);
int perfctr_core_control(const struct perfctr_core_thread *thread,
			 const struct perfctr_core_vcpu *vcpu,
			 const struct perfctr_hv_query *query,
			 const struct perfctr_control_arg *control);
void perfctr_core_stop(const struct perfctr_core_thread *thread,
		       const struct perfctr_core_vcpu *vcpu);
int perfctr_core_read(const struct perfctr_core_thread *thread,
		      const struct perfctr_core_vcpu *vcpu,
		      struct perfctr_sums *sums);

/* hypercall.c */
int perfctr_glue_hypercall(u32 op, void *argument, u32 length);
u64 perfctr_glue_rdpmc(u32 index);

#endif /* PERFCTR_CORE_H */
