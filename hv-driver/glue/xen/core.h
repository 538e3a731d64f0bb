/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The driver's core, in Rust: hv-driver/ffi/src/lib.rs.
 *
 * All of it is called with interrupts disabled, on the CPU whose state is
 * passed, so that neither a context switch nor an interrupt comes between.
 */
#ifndef PERFCTR_CORE_H
#define PERFCTR_CORE_H

#include "perfctr_abi.h"

/* Storage for the core's structures; the core asserts that it suffices. */
struct perfctr_driver { uint64_t storage[64 / 8]; };
struct perfctr_pcpu { uint64_t storage[576 / 8]; };
struct perfctr_core_vcpu { uint64_t storage[1792 / 8]; };

/* What CPUID says: leaf 0 EBX, EDX, ECX; leaf 1 EAX; leaf 0xA EAX to EDX. */
struct perfctr_cpuid {
    uint32_t vendor[3];
    uint32_t signature;
    uint32_t perfmon[4];
};

/* How often a vCPU may be interrupted by overflows. */
struct perfctr_rate {
    uint64_t window_tsc;
    uint64_t overflows_max;
};

struct perfctr_refusal {
    const char *expected;
    uint32_t expected_bytes;
    uint32_t found;
};

#define PERFCTR_REQUEST_QUERY      0
#define PERFCTR_REQUEST_REGISTER   1
#define PERFCTR_REQUEST_UNREGISTER 2
#define PERFCTR_REQUEST_LOAD       3
#define PERFCTR_REQUEST_STOP       4
#define PERFCTR_REQUEST_DOMAIN     5
#define PERFCTR_REQUEST_STATS      6

struct perfctr_request {
    uint32_t kind;
    uint32_t domid;
    uint32_t enabled;
    uint32_t reserved;
    uint64_t gfn;
    uint64_t config[320 / 8];
};

int perfctr_core_init(struct perfctr_driver *driver,
                      const struct perfctr_cpuid *cpuid, bool measure_cost,
                      const struct perfctr_rate *rate,
                      struct perfctr_refusal *refusal);
void perfctr_core_pcpu_init(struct perfctr_pcpu *pcpu);
void perfctr_core_run_stranger(struct perfctr_pcpu *pcpu);
void perfctr_core_register(const struct perfctr_driver *driver,
                           struct perfctr_pcpu *pcpu,
                           struct perfctr_core_vcpu *vcpu,
                           struct perfctr_vcpu_page *page,
                           uint32_t id, uint64_t domain, uint32_t cpu);
void perfctr_core_unregister(const struct perfctr_driver *driver,
                             struct perfctr_pcpu *pcpu,
                             struct perfctr_core_vcpu *vcpu,
                             struct perfctr_vcpu_page *page);
void perfctr_core_load(const struct perfctr_driver *driver,
                       struct perfctr_pcpu *pcpu,
                       struct perfctr_core_vcpu *vcpu,
                       struct perfctr_vcpu_page *page,
                       const struct perfctr_request *request);
void perfctr_core_stop(const struct perfctr_driver *driver,
                       struct perfctr_pcpu *pcpu,
                       struct perfctr_core_vcpu *vcpu,
                       struct perfctr_vcpu_page *page);
void perfctr_core_switch_from(const struct perfctr_driver *driver,
                              struct perfctr_pcpu *pcpu,
                              struct perfctr_core_vcpu *vcpu,
                              struct perfctr_vcpu_page *page);
/* These give whether to send the guest the virtual interrupt. */
bool perfctr_core_switch_to(const struct perfctr_driver *driver,
                            struct perfctr_pcpu *pcpu,
                            struct perfctr_core_vcpu *vcpu,
                            struct perfctr_vcpu_page *page,
                            uint32_t cpu, bool kernel, bool allowed);
bool perfctr_core_toggle(const struct perfctr_driver *driver,
                         struct perfctr_pcpu *pcpu,
                         struct perfctr_core_vcpu *vcpu,
                         struct perfctr_vcpu_page *page, bool kernel);
bool perfctr_core_interrupt(const struct perfctr_driver *driver,
                            struct perfctr_pcpu *pcpu,
                            struct perfctr_core_vcpu *vcpu,
                            struct perfctr_vcpu_page *page);
void perfctr_core_acknowledge(const struct perfctr_driver *driver,
                              const struct perfctr_pcpu *pcpu);
int perfctr_core_decode(const struct perfctr_driver *driver, uint32_t op,
                        void *bytes, uint32_t length, bool domain_enabled,
                        struct perfctr_request *request);
void perfctr_core_count_hypercall(struct perfctr_pcpu *pcpu);
void perfctr_core_add_stats(const struct perfctr_pcpu *pcpu,
                            struct perfctr_hv_stats *total);

#endif /* PERFCTR_CORE_H */
