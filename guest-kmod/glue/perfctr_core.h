/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Generated from guest-kmod/ffi/src/lib.rs by cargo xtask headers. */

#ifndef PERFCTR_CORE_H
#define PERFCTR_CORE_H

#include "perfctr_abi.h"

/*
 * A thread's counters as C holds them.
 */
struct perfctr_core_thread;

/*
 * A vCPU as C holds it.
 */
struct perfctr_core_vcpu;

extern int perfctr_glue_hypercall(uint32_t op, void *argument, uint32_t length);

extern uint64_t perfctr_glue_rdpmc(uint32_t index);

/*
 * Asks the hypervisor; see handshake.
 */
int perfctr_core_handshake(struct perfctr_hv_query *answer);

/*
 * Bytes of a vCPU object.
 */
size_t perfctr_core_vcpu_bytes(void);

/*
 * Makes a vCPU object of memory.
 */
void perfctr_core_vcpu_init(struct perfctr_core_vcpu *memory,
                            uint32_t number,
                            const struct perfctr_vcpu_page *page);

/*
 * Registers the vCPU's page, which is frame `gfn`; see Cpu::register.
 */
int perfctr_core_vcpu_register(const struct perfctr_core_vcpu *vcpu, uint64_t gfn);

/*
 * Takes the vCPU's page back; see Cpu::unregister.
 */
int perfctr_core_vcpu_unregister(const struct perfctr_core_vcpu *vcpu);

/*
 * Stops the vCPU's counters if nobody counts.
 */
void perfctr_core_vcpu_stop_if_idle(const struct perfctr_core_vcpu *vcpu);

/*
 * Whether nobody counts.
 */
bool perfctr_core_is_idle(void);

/*
 * The name of statistic `index`, or null behind the last.
 */
const char *perfctr_core_stat_name(const struct perfctr_core_vcpu *vcpu, uint32_t index);

/*
 * The value of statistic `index` on any vCPU.
 */
uint64_t perfctr_core_stat(const struct perfctr_core_vcpu *vcpu, uint32_t index);

/*
 * See check_create.
 */
int perfctr_core_check_create(const struct perfctr_create *create);

/*
 * See check_control.  `query` is the answer of the handshake.
 */
int perfctr_core_check_control(const struct perfctr_hv_query *query,
                               const struct perfctr_control_arg *control);

/*
 * Bytes of a thread object.
 */
size_t perfctr_core_thread_bytes(void);

/*
 * Makes a thread object of memory; see ThreadPmu::new.
 */
void perfctr_core_thread_init(struct perfctr_core_thread *memory,
                              const struct perfctr_thread_page *page,
                              uint32_t tid);

/*
 * The thread is switched in; gives a signal, see `pack`.
 */
uint64_t perfctr_core_switch_in(const struct perfctr_core_thread *thread,
                                const struct perfctr_core_vcpu *vcpu);

/*
 * The thread is switched out.
 */
void perfctr_core_switch_out(const struct perfctr_core_thread *thread,
                             const struct perfctr_core_vcpu *vcpu);

/*
 * The thread is switched in, and what that costs is counted.
 */
uint64_t perfctr_core_switch_in_measured(const struct perfctr_core_thread *thread,
                                         const struct perfctr_core_vcpu *vcpu);

/*
 * The thread is switched out, and what that costs is counted.
 */
void perfctr_core_switch_out_measured(const struct perfctr_core_thread *thread,
                                      const struct perfctr_core_vcpu *vcpu);

/*
 * The virtual interrupt of an overflow came while `thread`, if it has counters, executes; see
 */
uint64_t perfctr_core_interrupt(const struct perfctr_core_thread *thread,
                                const struct perfctr_core_vcpu *vcpu);

/*
 * `IOC_RESUME`; see ThreadPmu::go_on.
 */
int perfctr_core_go_on(const struct perfctr_core_thread *thread,
                       const struct perfctr_core_vcpu *vcpu);

/*
 * `IOC_CONTROL`; see ThreadPmu::control.  `query` is the answer of the handshake.
 */
int perfctr_core_control(const struct perfctr_core_thread *thread,
                         const struct perfctr_core_vcpu *vcpu,
                         const struct perfctr_hv_query *query,
                         const struct perfctr_control_arg *control);

/*
 * Stops the thread's counters; see ThreadPmu::stop.
 */
void perfctr_core_stop(const struct perfctr_core_thread *thread,
                       const struct perfctr_core_vcpu *vcpu);

/*
 * `IOC_READ` by the thread itself; see ThreadPmu::read.
 */
int perfctr_core_read(const struct perfctr_core_thread *thread,
                      const struct perfctr_core_vcpu *vcpu,
                      struct perfctr_sums *sums);

/*
 * `IOC_READ` by anybody; see published.
 */
int perfctr_core_read_published(const struct perfctr_core_thread *thread,
                                struct perfctr_sums *sums);

#endif  /* PERFCTR_CORE_H */
