/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Checks the performance monitoring unit from inside a Linux guest, with Linux' own perf driver:
 * every count has to be exact. Meant to be the guest's /init; exits with 0 if all is well.
 *
 *   pmu-check           run the checks (as process 1: also mount what is needed, and power off)
 *   pmu-check --step    check the expected numbers themselves, by single-stepping each body
 *   pmu-check --interrupts
 *                       the same numbers where the CPU has pmu-tally=on,pmu-habits=interrupts
 *   pmu-check --freezing
 *                       check where counters stop when one interrupts, on a CPU that has
 *                       pmu-habits=freeze
 *   pmu-check --edges N
 *                       check what RDPMC misses, or reads too early, with pmu-habits=rdpmc:N
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARENA_PAGES 1024
#define PAGE        4096
#define RING_PAGES  64
#define SIGACTION_RESTORER 0x04000000 /* SA_RESTORER, which libc keeps to itself */

typedef void Body(long rounds);
extern Body body_loop, body_faults, body_syscalls, body_strings, body_branches, body_conditionals,
    body_signals, body_split_lock, body_crossing, body_modified;
void measured(int fd, Body *body, long rounds);
extern char measured_first[], measured_end[], skip_two_bytes[], signal_return[];
extern char indirect_jump[], indirect_target[];

char *arena;
static int failures;

/*
 * The instructions that `rounds` of a body retire: insns[0] + rounds * insns[1], and the same for
 * branches, and for those of them that are conditional.
 */
static const struct {
    const char *name;
    Body *body;
    long rounds, rounds_stepped;
    long insns[2], branches[2], conditionals[2];
} bodies[] = {
    { "loop", body_loop, 3000000, 1000, { 0, 2 }, { 0, 1 }, { 0, 1 } },
    { "page faults", body_faults, ARENA_PAGES, 200, { 1, 4 }, { 0, 1 }, { 0, 1 } },
    { "system calls", body_syscalls, 20000, 100, { 3, 4 }, { 0, 2 }, { 0, 1 } },
    { "strings", body_strings, 300, 110, { 3, 9 }, { 0, 1 }, { 0, 1 } },
    { "branches", body_branches, 100000, 100, { 3, 7 }, { 1, 5 }, { 1, 1 } },
    { "conditional branches", body_conditionals, 50000, 100, { 0, 13 }, { 0, 7 }, { 0, 7 } },
    { "signals", body_signals, 500, 50, { 1, 14 }, { 0, 7 }, { 0, 1 } },
    { "split lock", body_split_lock, 300, 10, { 1, 3 }, { 0, 1 }, { 0, 1 } },
    { "page-crossing code", body_crossing, 100000, 100, { 0, 4 }, { 0, 2 }, { 0, 1 } },
    { "self-modifying code", body_modified, 2000, 100, { 0, 4 }, { 0, 1 }, { 0, 1 } },
};
#define BODIES (sizeof(bodies) / sizeof(bodies[0]))
/* The instructions of a body with those that `measured` adds, and the body's RET. */
#define INSNS(b, rounds)    (bodies[b].insns[0] + (rounds) * bodies[b].insns[1] + 8)
#define BRANCHES(b, rounds) (bodies[b].branches[0] + (rounds) * bodies[b].branches[1] + 3)
#define CONDITIONALS(b, rounds) (bodies[b].conditionals[0] + (rounds) * bodies[b].conditionals[1])

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static void expect(const char *what, const char *name, long got, long want)
{
    if (got != want) {
        printf("FAIL %s, %s: got %ld, expected %ld\n", what, name, got, want);
        failures++;
    }
}

static void fresh_arena(void)
{
    if (madvise(arena, ARENA_PAGES * PAGE, MADV_DONTNEED)) {
        die("madvise");
    }
}

static void prepare(void)
{
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } action = { skip_two_bytes, SA_SIGINFO | SIGACTION_RESTORER, signal_return, 0 };
    static const int signals[] = { SIGILL, SIGSEGV, SIGFPE };

    for (int i = 0; i < 3; i++) {
        if (syscall(SYS_rt_sigaction, signals[i], &action, NULL, 8)) {
            die("rt_sigaction");
        }
    }
    arena = mmap(NULL, ARENA_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                 -1, 0);
    if (arena == MAP_FAILED) {
        die("mmap");
    }
    madvise(arena, ARENA_PAGES * PAGE, MADV_NOHUGEPAGE);
}

/* Opens an event of this thread that counts user mode, kernel mode, or both: "u", "k", "uk". */
static int event_of_type(uint32_t type, uint64_t config, const char *rings, int leader,
                         uint64_t period)
{
    struct perf_event_attr attr = {
        .type = type,
        .size = sizeof(attr),
        .config = config,
        .disabled = leader < 0,
        .exclude_user = !strchr(rings, 'u'),
        .exclude_kernel = !strchr(rings, 'k'),
        .sample_period = period,
        .sample_type = period ? PERF_SAMPLE_IP : 0,
    };
    int fd = syscall(SYS_perf_event_open, &attr, 0, -1, leader, 0);

    if (fd < 0) {
        die("perf_event_open");
    }
    return fd;
}

static int event(uint64_t config, const char *rings, int leader, uint64_t period)
{
    return event_of_type(PERF_TYPE_HARDWARE, config, rings, leader, period);
}

static long value(int fd)
{
    uint64_t count;

    if (read(fd, &count, sizeof(count)) != sizeof(count)) {
        die("read");
    }
    return count;
}

/*
 * Returns EAX of CPUID leaf 0xA: version, number and width of the counters; 0 on AMD's
 * processors.
 */
static unsigned architectural_pmu(void)
{
    unsigned eax = 0, ebx, ecx, edx;

    __get_cpuid_count(0xa, 0, &eax, &ebx, &ecx, &edx);
    return eax;
}

/* Returns the number of general counters: four, or the six of AMD's core extension. */
static unsigned general_counters(void)
{
    unsigned eax, ebx, ecx = 0, edx;

    if (architectural_pmu()) {
        return architectural_pmu() >> 8 & 0xff;
    }
    __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx);
    return ecx >> 23 & 1 ? 6 : 4;
}

#define FIXED_INDEX (1u << 30) /* of RDPMC, for the first fixed counter */

static unsigned fixed_counters(void)
{
    return architectural_pmu() ? 3 : 0;
}

/*
 * Returns whether a group's counters start at the same instruction, which needs a global control.
 */
static bool counters_start_together(void)
{
    return (architectural_pmu() & 0xff) >= 2;
}

/* Opens an event that counts conditional branches in user mode. */
static int conditional_branches(int leader)
{
    return event_of_type(PERF_TYPE_RAW, architectural_pmu() ? 0x01c4 : 0xd1, "u", leader, 0);
}

/* Checks each body, with four events at once, since AMD's processors have no more counters. */
static void check_bodies(const char *how)
{
    for (unsigned b = 0; b < BODIES; b++) {
        long rounds = bodies[b].rounds, insns = INSNS(b, rounds), branches = BRANCHES(b, rounds);
        const struct { const char *name; long count; } others[] = {
            { "branches", branches },
            { "cycles", 2 * insns + 4 * branches },
            { "conditional branches", CONDITIONALS(b, rounds) },
        };

        for (int again = 0; again < 4; again++) {
            int user = event(PERF_COUNT_HW_INSTRUCTIONS, "u", -1, 0);
            int kernel = event(PERF_COUNT_HW_INSTRUCTIONS, "k", user, 0);
            int both = event(PERF_COUNT_HW_INSTRUCTIONS, "uk", user, 0);
            int kind = again % 3;
            int other = kind == 2 ? conditional_branches(user)
                                  : event(kind ? PERF_COUNT_HW_CPU_CYCLES
                                               : PERF_COUNT_HW_BRANCH_INSTRUCTIONS, "u", user, 0);

            fresh_arena();
            measured(user, bodies[b].body, rounds);
            expect(how, bodies[b].name, value(user), insns);
            expect(others[kind].name, bodies[b].name, value(other), others[kind].count);
            if (counters_start_together()) {
                expect("both rings", bodies[b].name, value(both), value(user) + value(kernel));
            }
            close(other), close(both), close(kernel), close(user);
        }
    }
    printf("%s: done\n", how);
}

static void execute_on(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

/* A number of the emulator's tally: interrupts and exceptions outside CPL 0. */
static uint64_t interrupts_of_user_mode(void)
{
    uint32_t low, high;

    asm volatile("rdpmc" : "=a"(low), "=d"(high) : "c"(0x74616c79 + 11));
    return (uint64_t)high << 32 | low;
}

/*
 * Each instruction counts once, each interrupt and exception counts as another one, and branches
 * know nothing of that.
 */
static void check_interrupts(void)
{
    long between = 0, most = 0;

    execute_on(0);
    for (unsigned b = 0; b < BODIES; b++) {
        long rounds = bodies[b].rounds, branches = BRANCHES(b, rounds);

        for (int again = 0; again < 4; again++) {
            int user = event(PERF_COUNT_HW_INSTRUCTIONS, "u", -1, 0);
            int branch = event(PERF_COUNT_HW_BRANCH_INSTRUCTIONS, "u", user, 0);
            int cycles = event(PERF_COUNT_HW_CPU_CYCLES, "u", user, 0);
            long surplus, taken;

            fresh_arena();
            taken = interrupts_of_user_mode();
            measured(user, bodies[b].body, rounds);
            taken = interrupts_of_user_mode() - taken;
            surplus = value(user) - INSNS(b, rounds);
            expect("branches beside interrupts", bodies[b].name, value(branch), branches);
            expect("cycles beside interrupts", bodies[b].name, value(cycles),
                   2 * value(user) + 4 * branches);
            /* One may come before the events begin, or after their end. */
            expect("an instruction for each interrupt", bodies[b].name,
                   surplus <= taken && surplus >= taken - 1, true);
            between += taken - surplus;
            most = surplus > most ? surplus : most;
            close(cycles), close(branch), close(user);
        }
    }
    expect("interrupts", "outside of what is measured, few", between <= 3, true);
    expect("interrupts", "faults among them", most >= 3 * 500, true);
    printf("interrupts: up to %ld of a body, %ld of none\n", most, between);
}

/* Makes the checks above while other programs compete, and somebody keeps moving this one. */
static void check_bodies_in_a_storm(void)
{
    pid_t pids[4], me = getpid();
    int cpus = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;

    for (int i = 0; i < 4; i++) {
        pids[i] = fork();
        for (int cpu = 0; pids[i] == 0; cpu++) {
            if (i < 2) {
                /*
                 * Two of the programs measure, too, so that their counters take turns with ours.
                 */
                int fd = event(PERF_COUNT_HW_INSTRUCTIONS, "u", -1, 0);
                measured(fd, body_loop, 100000);
                expect("beside the others", "loop", value(fd), 2 * 100000 + 8);
                close(fd);
                if (failures) {
                    exit(1);
                }
            } else if (i == 2) {
                body_syscalls(1000);
            } else {
                CPU_ZERO(&set);
                CPU_SET(cpu % cpus, &set);
                sched_setaffinity(me, sizeof(set), &set);
                usleep(500);
            }
        }
    }
    check_bodies("in a storm");
    for (int i = 0; i < 4; i++) {
        int status;
        expect("in a storm", "companion still runs", waitpid(pids[i], &status, WNOHANG), 0);
        kill(pids[i], SIGKILL);
        waitpid(pids[i], &status, 0);
    }
    memset(&set, 0xff, sizeof(set));
    sched_setaffinity(me, sizeof(set), &set);
}

static struct perf_event_mmap_page *map_event(int fd, int pages)
{
    void *page = mmap(NULL, (1 + pages) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (page == MAP_FAILED) {
        die("mmap of an event");
    }
    return page;
}

/*
 * Executes RDPMC, the loop, and RDPMC. The difference is the loop, the two MOVs before it, and the
 * first RDPMC, which retires after it has read the counter.
 */
static uint64_t rdpmc_around_loop(uint32_t index, uint64_t rounds)
{
    uint64_t before, after, high;

    asm volatile("rdpmc\n\t"
                 "mov %%rax, %[before]\n\t"
                 "mov %%rdx, %[high]\n"
                 "1: dec %[rounds]\n\t"
                 "jnz 1b\n\t"
                 "rdpmc\n\t"
                 : [before] "=&r"(before), [high] "=&r"(high), [rounds] "+r"(rounds), "=&a"(after)
                 : "c"(index)
                 : "rdx", "cc");
    return (uint32_t)after - (uint32_t)before;
}

static void check_rdpmc(void)
{
    int fd = event(PERF_COUNT_HW_INSTRUCTIONS, "u", -1, 0), good = 0;
    volatile struct perf_event_mmap_page *page = map_event(fd, 0);

    ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
    for (int i = 0; i < 50000; i++) {
        uint32_t seq = page->lock, index = page->index;
        uint64_t rounds = 100 + i % 900, got;

        if (!index || seq % 2) {
            continue;
        }
        got = rdpmc_around_loop(index - 1, rounds);
        if (page->lock == seq) {
            expect("rdpmc", "around a loop", got, 2 * rounds + 3);
            good++;
        }
    }
    expect("rdpmc", "undisturbed measurements", good > 40000, 1);
    printf("rdpmc: %d measurements\n", good);
    munmap((void *)page, PAGE);
    close(fd);
}

/* Tells Linux who may execute RDPMC: "0" nobody, "1" who has an event for that, "2" everybody. */
static void allow_rdpmc(const char *who)
{
    int fd = open("/sys/bus/event_source/devices/cpu/rdpmc", O_WRONLY);

    if (fd < 0 || write(fd, who, 1) != 1) {
        die("writing the rdpmc policy");
    }
    close(fd);
}

/*
 * Lets Linux clear the counters that perf has used, which it does when a process continues that may
 * execute RDPMC. Otherwise it would do so at any time later.
 */
static void let_linux_clear_counters(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        _exit(0);
    }
    waitpid(pid, &status, 0);
}

static sigjmp_buf fault;
static void on_fault(int sig)
{
    siglongjmp(fault, sig);
}

static void check_rdpmc_faults(void)
{
    const struct {
        const char *name, *allowed;
        uint32_t index;
        int signal;
    } cases[] = {
        { "allowed", "2", 0, 0 },
        { "the last general counter", "2", general_counters() - 1, 0 },
        { "one too far", "2", general_counters(), SIGSEGV },
        { "far too far", "2", 64, SIGSEGV },
        { "the last fixed counter", "2", FIXED_INDEX + 2, architectural_pmu() ? 0 : SIGSEGV },
        { "a fixed one too far", "2", FIXED_INDEX + fixed_counters(), SIGSEGV },
        { "fast read bit", "2", 1u << 31, SIGSEGV },
        { "fast read bit of a fixed counter", "2", 1u << 31 | FIXED_INDEX, SIGSEGV },
        { "without CR4.PCE", "0", 0, SIGSEGV },
    };
    struct sigaction old, action = { .sa_handler = on_fault };

    sigaction(SIGSEGV, &action, &old);
    for (volatile unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int sig;

        allow_rdpmc(cases[i].allowed);
        sig = sigsetjmp(fault, 1);
        if (!sig) {
            rdpmc_around_loop(cases[i].index, 1);
        }
        expect("rdpmc", cases[i].name, sig, cases[i].signal);
    }
    sigaction(SIGSEGV, &old, NULL);
    printf("rdpmc faults: done\n");
}

/* Checks that every sample is taken right after the instruction that overflowed. */
static void check_samples(uint64_t period)
{
    int fd = event(PERF_COUNT_HW_INSTRUCTIONS, "u", -1, period), samples = 0;
    struct perf_event_mmap_page *page = map_event(fd, RING_PAGES);
    char *ring = (char *)page + PAGE;
    long rounds = 5000000;

    measured(fd, body_loop, rounds);
    for (uint64_t at = 0; at < page->data_head;) {
        struct { struct perf_event_header header; uint64_t ip; } *record = (void *)(ring + at);

        at += record->header.size;
        if (record->header.type != PERF_RECORD_SAMPLE) {
            expect("samples", "an unexpected record", record->header.type, PERF_RECORD_SAMPLE);
            continue;
        }
        samples++;
        /* MOV and CALL come first; then DEC (3 bytes) and JNZ alternate. */
        expect("samples", "address", record->ip - (uintptr_t)body_loop,
               (samples * period - 2) % 2 ? 3 : 0);
    }
    expect("samples", "number", samples, (2 * rounds + 8) / period);
    expect("samples", "count", value(fd), 2 * rounds + 8);
    printf("samples: %d at a period of %ld\n", samples, (long)period);
    munmap(page, (1 + RING_PAGES) * PAGE);
    close(fd);
}

/* A branch that was taken, and after how many instructions, itself among them. */
struct taken {
    long insns;
    uint64_t from, to;
    uint64_t kind; /* PERF_SAMPLE_BRANCH_*; all have PERF_SAMPLE_BRANCH_ANY */
};

#define TAKEN_MAX   8192
#define RECORDS     16 /* as many as the processor keeps */
#define KERNEL_HALF (1ull << 63)

static struct taken truth[TAKEN_MAX];
static long truths;

/* Where the instruction was that single steps saw retire as the first one, the second one, ... */
#define STEPS_MAX 8192
static uint64_t place_of_step[STEPS_MAX];

/* Looks at one sample's records, the latest first. */
typedef void Look(const char *name, long insns, uint64_t number,
                  const struct perf_branch_entry *records);

static uint64_t kinds_sampled;
static long full_stacks, longest_stack, ways_out_of_kernel;

static bool is_of_kernel(const struct perf_branch_entry *record)
{
    return (record->from | record->to) & KERNEL_HALF;
}

/* Returns the branch that was the last one after so many instructions. */
static long last_after(long insns)
{
    long last = truths - 1;

    while (last >= 0 && truth[last].insns > insns) {
        last--;
    }
    return last;
}

/* Returns the one before, from `at` on, of the kinds that are sampled; -1 if there is none. */
static long of_sampled_kinds(long at)
{
    while (at >= 0 && !(truth[at].kind & kinds_sampled)) {
        at--;
    }
    return at;
}

/* Returns whether single steps saw these records of user mode before. */
static bool agrees(long insns, uint64_t number, const struct perf_branch_entry *records)
{
    long next = last_after(insns);

    for (uint64_t i = 0; i < number; i++) {
        if (is_of_kernel(&records[i])) {
            continue;
        }
        next = of_sampled_kinds(next);
        if (next < 0 || records[i].from != truth[next].from || records[i].to != truth[next].to) {
            return false;
        }
        next--;
    }
    return true;
}

/* The records between two places of user mode are the latest branches that single steps saw. */
static void look_at_user_mode(const char *name, long insns, uint64_t number,
                              const struct perf_branch_entry *records)
{
    long next = last_after(insns);

    full_stacks += number == RECORDS;
    longest_stack = (long)number > longest_stack ? (long)number : longest_stack;
    expect("branch records", name, number <= RECORDS, true);
    for (uint64_t i = 0; i < number; i++) {
        if (is_of_kernel(&records[i])) {
            ways_out_of_kernel += !(records[i].to & KERNEL_HALF);
            expect("branch records", "none of the kernel",
                   !(kinds_sampled & PERF_SAMPLE_BRANCH_KERNEL), false);
            continue;
        }
        next = of_sampled_kinds(next);
        if (next < 0) {
            expect("branch records", name, number, i);
            return;
        }
        expect("branch recorded from", name, records[i].from, truth[next].from);
        expect("branch recorded to", name, records[i].to, truth[next].to);
        expect("branch mispredicted", name, records[i].mispred, 0);
        next--;
    }
}

/* Recording ends where the counter overflows, and not where the kernel is about to look. */
static void look_at_freezing(const char *name, long insns, uint64_t number,
                             const struct perf_branch_entry *records)
{
    look_at_user_mode(name, insns, number, records);
    /* An interrupt may have come, and ended, between the last branch and the overflow. */
    if (number && insns > 2 * RECORDS + 8) {
        expect("branch records", "the latest one ends in user mode",
               records[0].to & KERNEL_HALF, 0);
    }
}

/* Samples a body with branch records of these kinds, and looks at each. Returns their number. */
static long sample_branches(unsigned b, uint64_t kinds, Look *look)
{
    const long period = 67;
    const long rounds = bodies[b].rounds_stepped;
    struct perf_event_attr attr = {
        .type = PERF_TYPE_HARDWARE,
        .size = sizeof(attr),
        .config = PERF_COUNT_HW_INSTRUCTIONS,
        .disabled = true,
        .exclude_kernel = true,
        .sample_period = period,
        .sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_BRANCH_STACK,
        .branch_sample_type = kinds,
    };
    int fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
    struct perf_event_mmap_page *page;
    char *ring;
    /*
     * On Nehalem perf lets no counter go on with fewer than 32 events. If a thread is suspended so
     * shortly before its sample, that comes later.
     */
    const long late_max = 32;
    long samples = 0, late_samples = 0, all = INSNS(b, rounds) / period;

    if (fd < 0) {
        die("perf_event_open with a branch stack");
    }
    kinds_sampled = kinds;
    page = map_event(fd, RING_PAGES);
    ring = (char *)page + PAGE;
    fresh_arena();
    measured(fd, bodies[b].body, rounds);
    for (uint64_t at = 0; at < page->data_head;) {
        struct {
            struct perf_event_header header;
            uint64_t ip, number;
            struct perf_branch_entry records[];
        } *record = (void *)(ring + at);
        long late;

        at += record->header.size;
        if (record->header.type != PERF_RECORD_SAMPLE) {
            expect("branch records", "an unexpected record", record->header.type,
                   PERF_RECORD_SAMPLE);
            continue;
        }
        samples++;
        late = 0;
        while (late < late_max
               && !agrees(samples * period + late, record->number, record->records)) {
            late++;
        }
        late = late == late_max ? 0 : late;
        late_samples += late > 0;
        look(bodies[b].name, samples * period + late, record->number, record->records);
    }
    expect("samples that are late, few", bodies[b].name, late_samples <= 1 + all / 8, true);
    expect("samples with branch records", bodies[b].name, samples >= all - 1 && samples <= all,
           true);
    munmap(page, (1 + RING_PAGES) * PAGE);
    close(fd);
    return samples;
}

static unsigned body_named(const char *name)
{
    for (unsigned b = 0; b < BODIES; b++) {
        if (!strcmp(bodies[b].name, name)) {
            return b;
        }
    }
    die(name);
    return 0;
}

static void step(unsigned b);

/*
 * Samples a body with perf's precise samples, and compares the place of each one with single
 * steps. Perf lets the processor reload the counter when it writes a record. The record describes
 * the first event after the period, so two records are one event more than a period apart.
 */
static long sample_precisely(unsigned b, long period)
{
    const long rounds = bodies[b].rounds_stepped, insns = INSNS(b, rounds);
    struct perf_event_attr attr = {
        .type = PERF_TYPE_HARDWARE,
        .size = sizeof(attr),
        .config = PERF_COUNT_HW_INSTRUCTIONS,
        .disabled = true,
        .exclude_kernel = true,
        .precise_ip = 2,
        .sample_period = period,
        .sample_type = PERF_SAMPLE_IP,
    };
    int fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
    struct perf_event_mmap_page *page;
    char *ring;
    long samples = 0, at_step = 0, disturbed = 0;
    /* If the thread is suspended in the midst of a period, perf begins the rest of it anew. */
    const long late_max = 32;

    if (fd < 0) {
        die("perf_event_open with precise_ip");
    }
    page = map_event(fd, RING_PAGES);
    ring = (char *)page + PAGE;
    fresh_arena();
    measured(fd, bodies[b].body, rounds);
    for (uint64_t at = 0; at < page->data_head;) {
        struct { struct perf_event_header header; uint64_t ip; } *record = (void *)(ring + at);
        long late = 0;

        at += record->header.size;
        if (record->header.type != PERF_RECORD_SAMPLE) {
            expect("precise samples", "an unexpected record", record->header.type,
                   PERF_RECORD_SAMPLE);
            continue;
        }
        samples++;
        at_step += period + 1;
        while (late < late_max && at_step + late < insns
               && record->ip != place_of_step[at_step + late - 1]) {
            late++;
        }
        disturbed += late > 0;
        expect("precise samples", "at an instruction of the body", late < late_max, true);
        expect("precise samples", "marked as exact",
               record->header.misc & PERF_RECORD_MISC_EXACT_IP, PERF_RECORD_MISC_EXACT_IP);
        at_step += late;
    }
    expect("precise samples, disturbed", bodies[b].name, disturbed <= 1, true);
    expect("number of precise samples", bodies[b].name,
           samples >= insns / (period + 1) - 1 && samples <= insns / (period + 1), true);
    munmap(page, (1 + RING_PAGES) * PAGE);
    close(fd);
    return samples;
}

static void check_precise_samples(void)
{
    long samples = 0;

    for (unsigned b = 0; b < BODIES; b++) {
        step(b);
        samples += sample_precisely(b, 40);
        samples += sample_precisely(b, 67);
    }
    printf("precise samples: %ld samples\n", samples);
}

/* Checks each record of Linux' own perf against single steps of the same body. */
static void check_branch_records(void)
{
    static const uint64_t filters[] = {
        PERF_SAMPLE_BRANCH_ANY_CALL, PERF_SAMPLE_BRANCH_ANY_RETURN, PERF_SAMPLE_BRANCH_COND,
        PERF_SAMPLE_BRANCH_IND_JUMP,
    };
    const uint64_t user = PERF_SAMPLE_BRANCH_USER, any = PERF_SAMPLE_BRANCH_ANY;
    const uint64_t both = user | PERF_SAMPLE_BRANCH_KERNEL;
    unsigned loop = body_named("loop"), branchy = body_named("branches");
    long samples = 0;

    for (unsigned b = 0; b < BODIES; b++) {
        step(b);
        full_stacks = 0;
        samples += sample_branches(b, user | any, look_at_user_mode);
        if (b == loop) {
            expect("branch records", "the stack is full as a rule", full_stacks >= 15, true);
        }
        sample_branches(b, both | any, look_at_user_mode);
    }
    expect("branch records", "ways out of the kernel", ways_out_of_kernel > 10, true);
    step(loop);
    sample_branches(loop, both | any, look_at_freezing);
    step(branchy);
    for (unsigned f = 0; f < sizeof(filters) / sizeof(filters[0]); f++) {
        longest_stack = 0;
        sample_branches(branchy, user | filters[f], look_at_user_mode);
        /*
         * Among all that are taken there are four of each kind at most, and but one conditional
         * one in the whole body. Perf has the ways out of its own interrupts recorded with calls
         * and returns, and leaves them out itself.
         */
        if (filters[f] != PERF_SAMPLE_BRANCH_COND) {
            expect("branch records", "room for one kind alone", longest_stack >= 6, true);
        }
    }
    printf("branch records: %ld samples\n", samples);
}

/* Intel's registers, and a selector's value. */
enum { PMC2 = 0xc3, PMC3 = 0xc4, SELECT2 = 0x188, SELECT3 = 0x189, DEBUGCTL = 0x1d9,
       FIXED0 = 0x309, FIXED_CONTROL = 0x38d, STATUS = 0x38e, CONTROL = 0x38f, CLEAR = 0x390,
       STATUS_SET = 0x391, COUNT_ALL = 0x4300c0 };
static int msr_file;

/* The same for the vendor of this processor. AMD's are those of version 2. */
static struct {
    uint32_t counter, select, stride, status, control, clear, set;
} pmu;

static void find_registers(void)
{
    if (architectural_pmu()) {
        pmu.counter = 0xc1, pmu.select = 0x186, pmu.stride = 1;
        pmu.status = STATUS, pmu.control = CONTROL, pmu.clear = CLEAR, pmu.set = STATUS_SET;
    } else {
        pmu.counter = 0xc0010201, pmu.select = 0xc0010200, pmu.stride = 2;
        pmu.status = 0xc0000300, pmu.control = 0xc0000301;
        pmu.clear = 0xc0000302, pmu.set = 0xc0000303;
    }
}

/* Returns EAX of AMD's CPUID leaf 0x80000022: bit 0 for version 2, bit 2 for freezing. */
static unsigned amd_version_2(void)
{
    unsigned eax = 0, ebx, ecx, edx;

    return __get_cpuid(0x80000022, &eax, &ebx, &ecx, &edx) ? eax : 0;
}

static uint32_t counter_msr(unsigned n)
{
    return pmu.counter + n * pmu.stride;
}

static uint32_t select_msr(unsigned n)
{
    return pmu.select + n * pmu.stride;
}

/* Returns all bits of a counter. AMD's have 48. */
static long counter_mask(void)
{
    return (1l << (architectural_pmu() ? architectural_pmu() >> 16 & 0xff : 48)) - 1;
}

/* Returns the general counters' bits in the registers for all counters. */
static long general_bits(void)
{
    return (1l << general_counters()) - 1;
}

static long rdmsr(uint32_t msr)
{
    uint64_t val;

    return pread(msr_file, &val, sizeof(val), msr) == sizeof(val) ? (long)val : -1;
}

static bool wrmsr(uint32_t msr, uint64_t val)
{
    return pwrite(msr_file, &val, sizeof(val), msr) == sizeof(val);
}

static void open_msrs(int cpu)
{
    char name[32];

    snprintf(name, sizeof(name), "/dev/cpu/%d/msr", cpu);
    msr_file = open(name, O_RDWR);
    if (msr_file < 0) {
        die(name);
    }
}

/* Checks Intel's registers on CPU 0. Perf has no event at this time, so they are ours. */
static void check_msrs(void)
{
    enum { THRESHOLD = 1 << 24 };
    long mask = (1l << (architectural_pmu() >> 16 & 0xff)) - 1;

    execute_on(0);
    expect("msr", "PMU available", rdmsr(0x1a0) >> 7 & 1, 1);
    expect("msr", "reserved bit of a selector", wrmsr(SELECT3, 1l << 32), false);
    expect("msr", "reserved bit of the fixed control", wrmsr(FIXED_CONTROL, 1 << 12), false);
    expect("msr", "reserved bit of a fixed counter", wrmsr(FIXED0, mask + 1), false);
    expect("msr", "reserved bit of the global control", wrmsr(CONTROL, 1 << 4), false);
    expect("msr", "global status is read-only", wrmsr(STATUS, 0), false);
    expect("msr", "fixed counter", wrmsr(FIXED0, mask) ? rdmsr(FIXED0) : -1, mask);
    expect("msr", "positive", wrmsr(PMC3, 0x57fffffffl) ? rdmsr(PMC3) : -1, 0x7fffffff);
    expect("msr", "sign-extended", wrmsr(PMC3, 0x80000001l) ? rdmsr(PMC3) : -1,
           (long)(int)0x80000001 & mask);

    wrmsr(CONTROL, 0xf);
    wrmsr(SELECT3, COUNT_ALL);
    body_loop(1000000);
    expect("msr", "no overflow yet", rdmsr(STATUS), 0);
    wrmsr(PMC3, -1000);
    body_loop(1000000);
    expect("msr", "overflow", rdmsr(STATUS), 1 << 3);
    expect("msr", "clear", wrmsr(CLEAR, 1 << 3) ? rdmsr(STATUS) : -1, 0);
    wrmsr(CONTROL, 0);
    wrmsr(PMC3, 0);
    body_loop(1000);
    expect("msr", "disabled globally", rdmsr(PMC3), 0);
    wrmsr(CONTROL, 0xf);
    wrmsr(SELECT3, COUNT_ALL | THRESHOLD);
    expect("msr", "with a threshold", rdmsr(PMC3) > 0 && rdmsr(PMC3) == rdmsr(PMC3), true);
    wrmsr(SELECT3, COUNT_ALL + 0x10);
    expect("msr", "unknown event", rdmsr(PMC3) > 0 && rdmsr(PMC3) == rdmsr(PMC3), true);
    wrmsr(SELECT3, 0);
    wrmsr(CLEAR, 0xf);
    printf("msr: done\n");
}

/* Returns whether an interrupt freezes counters by the status, and not by the global control. */
static bool freezes_by_status(void)
{
    return architectural_pmu() ? (architectural_pmu() & 0xff) >= 4 : amd_version_2() >> 2 & 1;
}

/* How often the CPU has taken an NMI. */
static long nmis(int cpu)
{
    FILE *file = fopen("/proc/interrupts", "r");
    char line[1024], *at;
    long number = -1;

    if (!file) {
        die("/proc/interrupts");
    }
    while (fgets(line, sizeof(line), file)) {
        at = strstr(line, "NMI:");
        for (int i = 0; at && i <= cpu; i++) {
            at += i ? 0 : strlen("NMI:");
            number = strtol(at, &at, 10);
        }
    }
    fclose(file);
    return number;
}

static uint64_t rdpmc(uint32_t index)
{
    uint32_t low, high;

    asm volatile("rdpmc" : "=a"(low), "=d"(high) : "c"(index));
    return (uint64_t)high << 32 | low;
}

/* One of all counters: the general ones come first. */
typedef struct Counter {
    uint32_t index, msr; /* for RDPMC, and its register */
    long bit;            /* in the registers for all counters */
    bool fixed;
} Counter;

static Counter counter(unsigned n)
{
    unsigned fixed = n - general_counters();

    if (n < general_counters()) {
        return (Counter) { n, counter_msr(n), 1l << n, false };
    }
    return (Counter) { FIXED_INDEX + fixed, FIXED0 + fixed, 1l << (32 + fixed), true };
}

/* Lets this counter count an event in user mode. A fixed counter has an event of its own. */
static void select_event(unsigned n, uint32_t event, bool interrupts)
{
    enum { USER = 1 << 16, INTERRUPT = 1 << 20, ENABLED = 1 << 22, FIXED_USER = 2, FIXED_PMI = 8 };

    if (counter(n).fixed) {
        wrmsr(FIXED_CONTROL, (FIXED_USER | (interrupts ? FIXED_PMI : 0))
                             << 4 * (n - general_counters()));
    } else {
        wrmsr(select_msr(n), USER | ENABLED | event | (interrupts ? INTERRUPT : 0));
    }
}

static void deselect(unsigned n)
{
    wrmsr(counter(n).fixed ? FIXED_CONTROL : select_msr(n), 0);
}

/* What there is to count between the RDPMCs of rdpmc_around_loop(). */
enum { INSTRUCTIONS, CYCLES, REFERENCE_CYCLES, JUMPS, CONDITIONAL_JUMPS, KINDS };

static uint64_t of_loop(int kind, long rounds)
{
    const long instructions = 2 * rounds + 3, cycles = 2 * instructions + 4 * rounds;

    return kind == INSTRUCTIONS ? instructions
           : kind == CYCLES ? cycles
           : kind == REFERENCE_CYCLES ? cycles / 2
           : rounds;
}

/* Checks what a counter holds after software has written it. */
static void check_written_counters(void)
{
    enum { FULL = 0x4c1, CAPABILITIES = 0x345, K7_SELECT = 0xc0010000, K7_COUNTER = 0xc0010004 };
    const long value = 0xff0123456789, mask = counter_mask();
    const unsigned all = general_counters() + fixed_counters();
    bool full_writes = architectural_pmu() && rdmsr(CAPABILITIES) > 0
                       && (rdmsr(CAPABILITIES) >> 13 & 1);

    for (unsigned n = 0; n < all; n++) {
        Counter c = counter(n);
        bool extended = architectural_pmu() && !c.fixed;

        wrmsr(c.msr, c.fixed ? value & mask : value);
        expect("written", "RDPMC", rdpmc(c.index), extended ? (int)value : value & mask);
        expect("written", "RDMSR", rdmsr(c.msr), extended ? (int)value : value & mask);
        wrmsr(c.msr, -2 & mask);
        expect("written", "a negative number", rdpmc(c.index), -2 & mask);
        if (full_writes && !c.fixed) {
            wrmsr(FULL + n, value & 0xffffffff);
            expect("written in full", "32 bits", rdmsr(c.msr), value & 0xffffffff);
            wrmsr(FULL + n, value & mask);
            expect("written in full", "all bits", rdmsr(c.msr), value & mask);
            expect("written in full", "both registers", rdmsr(FULL + n), value & mask);
            expect("written in full", "RDPMC", rdpmc(c.index), value & mask);
            expect("written in full", "a bit too many", wrmsr(FULL + n, mask + 1), false);
            wrmsr(c.msr, value);
            expect("written in full", "32 bits are extended", rdmsr(FULL + n), (int)value);
        }
        if (!architectural_pmu() && n < 4) {
            wrmsr(K7_COUNTER + n, value);
            expect("written", "by the older address", rdmsr(c.msr), value & mask);
            wrmsr(select_msr(n), 0x76);
            expect("written", "a selector's older address", rdmsr(K7_SELECT + n), 0x76);
            wrmsr(K7_SELECT + n, 0);
            expect("written", "a selector by it", rdmsr(select_msr(n)), 0);
        }
        wrmsr(c.msr, 0);
    }
    if (architectural_pmu()) {
        expect("written", "a general counter too far", wrmsr(0xc1 + general_counters(), 0), false);
        expect("written", "a selector too far", wrmsr(0x186 + general_counters(), 0), false);
        expect("written", "a fixed counter too far", wrmsr(FIXED0 + fixed_counters(), 0), false);
    }
    printf("written: done%s\n", full_writes ? ", in full, too" : "");
}

/* Checks each event on each counter, alone and with all others. */
static void check_each_counter(void)
{
    static const uint32_t intel[KINDS] = { 0xc0, 0x3c, 0x13c, 0xc4, 0x1c4 };
    static const uint32_t amd[KINDS] = { 0xc0, 0x76, 0, 0xc2, 0xd1 };
    const uint32_t *events = architectural_pmu() ? intel : amd;
    const unsigned general = general_counters(), all = general + fixed_counters();
    const long rounds = 1000;
    long everything = 0;

    for (unsigned n = 0; n < all; n++) {
        Counter c = counter(n);

        everything |= c.bit;
        for (int kind = 0; kind < KINDS; kind++) {
            if (c.fixed ? kind != (int)(n - general) : !events[kind]) {
                continue;
            }
            wrmsr(pmu.control, 0);
            select_event(n, events[kind], false);
            expect("each counter", "not enabled", rdpmc_around_loop(c.index, rounds), 0);
            wrmsr(pmu.control, everything & ~c.bit);
            expect("each counter", "others are enabled", rdpmc_around_loop(c.index, rounds), 0);
            wrmsr(pmu.control, c.bit);
            expect("each counter", "alone", rdpmc_around_loop(c.index, rounds),
                   of_loop(kind, rounds));
            deselect(n);
            expect("each counter", "not selected", rdpmc_around_loop(c.index, rounds), 0);
        }
    }

    wrmsr(pmu.control, 0);
    for (unsigned n = 0; n < general; n++) {
        select_event(n, events[n % KINDS] ? events[n % KINDS] : events[0], false);
    }
    if (fixed_counters()) {
        wrmsr(FIXED_CONTROL, 0x222);
    }
    wrmsr(pmu.control, everything);
    for (unsigned n = 0; n < all; n++) {
        int kind = n >= general ? (int)(n - general) : events[n % KINDS] ? (int)(n % KINDS) : 0;

        expect("each counter", "among all", rdpmc_around_loop(counter(n).index, rounds),
               of_loop(kind, rounds));
    }

    /* One write starts all of them, and one stops them. */
    wrmsr(pmu.control, 0);
    for (unsigned n = 0; n < general; n++) {
        select_event(n, events[INSTRUCTIONS], false);
        wrmsr(counter_msr(n), 0);
    }
    if (fixed_counters()) {
        wrmsr(FIXED0, 0);
    }
    wrmsr(pmu.control, everything);
    body_loop(rounds);
    wrmsr(pmu.control, 0);
    for (unsigned n = 1; n <= general && n < all; n++) {
        expect("each counter", "agrees with the first one", rdmsr(counter(n).msr),
               rdmsr(counter(0).msr));
    }
    expect("each counter", "has counted", rdmsr(counter(0).msr) > 2 * rounds, true);
    for (unsigned n = 0; n < all; n++) {
        deselect(n);
    }
    printf("each counter: done\n");
}

/* Checks what a selector has to say before its counter counts, and a counter that is running. */
static void check_selectors(void)
{
    enum { USER = 1 << 16, KERNEL = 1 << 17, ENABLED = 1 << 22, INVERTED = 1 << 23,
           TWO_PER_CYCLE = 2 << 24, INSTRUCTION = 0xc0 };
    const long rounds = 1000;
    const struct { const char *name; uint32_t select; uint64_t least, most; } cases[] = {
        { "user mode", USER | ENABLED, of_loop(0, rounds), of_loop(0, rounds) },
        { "both modes", USER | KERNEL | ENABLED, of_loop(0, rounds), UINT64_MAX },
        { "kernel mode", KERNEL | ENABLED, 0, 0 },
        { "no mode", ENABLED, 0, 0 },
        { "not enabled", USER, 0, 0 },
        { "a threshold", USER | ENABLED | TWO_PER_CYCLE, 0, of_loop(0, rounds) - 1 },
        { "a threshold from below", USER | ENABLED | INVERTED | TWO_PER_CYCLE, 0, UINT64_MAX },
    };

    wrmsr(pmu.control, 1);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t select = cases[i].select | INSTRUCTION;
        uint64_t got;

        wrmsr(select_msr(0), select);
        expect("selector", "reads as it was written", rdmsr(select_msr(0)), select);
        got = rdpmc_around_loop(0, rounds);
        for (int again = 0; again < 10; again++) {
            /* An interrupt that comes meanwhile is of kernel mode. */
            uint64_t next = rdpmc_around_loop(0, rounds);

            got = next < got ? next : got;
        }
        expect("selector", cases[i].name, got >= cases[i].least && got <= cases[i].most, true);
    }
    wrmsr(select_msr(0), USER | ENABLED | INSTRUCTION);
    body_loop(100 * rounds);
    wrmsr(counter_msr(0), 0);
    expect("running counter", "takes a smaller value", rdpmc(0) < 100 * rounds, true);
    wrmsr(pmu.clear, general_bits());
    wrmsr(counter_msr(0), -1 & counter_mask());
    body_loop(1);
    expect("running counter", "overflows from there", rdmsr(pmu.status), 1);
    wrmsr(pmu.clear, 1);
    deselect(0);
    printf("selector: done\n");
}

/*
 * Checks that each counter overflows into its own bit of the status, which its own acknowledgement
 * clears, and that it interrupts exactly if it is asked to. Linux has no event and no use for these
 * interrupts, and says so.
 */
static void check_overflows(void)
{
    const unsigned all = general_counters() + fixed_counters();
    const long rounds = 1000;
    long before = 0;

    for (unsigned n = 0; n < all; n++) {
        Counter c = counter(n);

        for (int interrupts = 0; interrupts < 2; interrupts++) {
            /* With an event perf lets the local APIC deliver the next interrupt. */
            int fd = event(PERF_COUNT_HW_INSTRUCTIONS, "u", -1, 0);
            long taken;

            ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
            close(fd);
            let_linux_clear_counters();
            wrmsr(pmu.control, 0);
            select_event(n, 0xc0, interrupts);
            wrmsr(c.msr, -1000 & counter_mask());
            taken = nmis(0);
            if (before) {
                wrmsr(pmu.set, before);
            }
            expect("overflow", "none yet", rdmsr(pmu.status), before);
            wrmsr(pmu.control, c.bit);
            expect("overflow", "counts beyond it",
                   rdpmc_around_loop(c.index, rounds),
                   of_loop(c.fixed ? n - general_counters() : INSTRUCTIONS, rounds));
            wrmsr(pmu.control, 0);
            expect("overflow", "interrupts", nmis(0) - taken, interrupts);
            expect("overflow", "status", rdmsr(pmu.status), before | c.bit);
            expect("overflow", "a small count", rdmsr(c.msr) < 1 << 20, true);
            wrmsr(pmu.clear, c.bit);
            expect("overflow", "acknowledged alone", rdmsr(pmu.status), before);
            wrmsr(pmu.clear, before);
            deselect(n);
        }
        /* Where software can set bits of the status, the next one finds this one there. */
        before = architectural_pmu() && !freezes_by_status() ? 0 : c.bit;
    }
    wrmsr(pmu.control, general_bits());
    printf("overflow: done\n");
}

/* Checks each counter of CPU 0 by its registers. Perf has no event at this time. */
static void check_counters(void)
{
    execute_on(0);
    allow_rdpmc("2");
    let_linux_clear_counters();
    check_written_counters();
    check_each_counter();
    check_selectors();
    check_overflows();
    allow_rdpmc("1");
}

/* The same as rdpmc_around_loop(), with LFENCE right before each RDPMC: one instruction more. */
static uint64_t rdpmc_behind_fences(uint32_t index, uint64_t rounds)
{
    uint64_t before, after, high;

    asm volatile("lfence\n\t"
                 "rdpmc\n\t"
                 "mov %%rax, %[before]\n\t"
                 "mov %%rdx, %[high]\n"
                 "1: dec %[rounds]\n\t"
                 "jnz 1b\n\t"
                 "lfence\n\t"
                 "rdpmc\n\t"
                 : [before] "=&r"(before), [high] "=&r"(high), [rounds] "+r"(rounds), "=&a"(after)
                 : "c"(index)
                 : "rdx", "cc");
    return (uint32_t)after - (uint32_t)before;
}

/* Measures a loop many times, and checks by how much RDPMC deviates. */
static void check_deviations(const char *name, long mode, long least, long most, uint32_t index)
{
    long below = 0, above = 0;

    for (int i = 0; i < 20000; i++) {
        uint64_t rounds = 5000 + i % 900;
        long got = mode ? rdpmc_behind_fences(index, rounds) - 1 : rdpmc_around_loop(index, rounds);

        got -= of_loop(INSTRUCTIONS, rounds);
        below = got < below ? got : below;
        above = got > above ? got : above;
    }
    expect("edges, least", name, below >= least && below < least / 2, true);
    expect("edges, most", name, above <= most && above > most / 2, true);
    printf("edges: from %ld to %ld %s\n", below, above, name);
}

/*
 * Checks the habit rdpmc:N. In the mode that is counted, RDPMC misses up to N events, or reads up
 * to N of them too early. It misses none of before an LFENCE, or of before the last change of mode.
 * In another mode it is exact, so the kernel's counts are.
 */
static void check_edges(long window)
{
    enum { USER_ENABLED = 0x410000 };

    execute_on(0);
    allow_rdpmc("2");
    for (unsigned b = 0; b < BODIES; b++) {
        int user = event(PERF_COUNT_HW_INSTRUCTIONS, "u", -1, 0);
        int branch = event(PERF_COUNT_HW_BRANCH_INSTRUCTIONS, "u", user, 0);

        fresh_arena();
        measured(user, bodies[b].body, bodies[b].rounds);
        expect("edges, by the kernel", bodies[b].name, value(user), INSNS(b, bodies[b].rounds));
        expect("edges, by the kernel", bodies[b].name, value(branch),
               BRANCHES(b, bodies[b].rounds));
        close(branch), close(user);
    }
    let_linux_clear_counters();
    wrmsr(pmu.control, 1);
    wrmsr(select_msr(0), USER_ENABLED | 0xc0);
    check_deviations("without fences", false, -2 * window, 2 * window, 0);
    check_deviations("behind fences", true, -window - 1, window + 1, 0);
    for (int i = 0; i < 2000; i++) {
        long exact = rdmsr(counter_msr(0)), again = rdmsr(counter_msr(0));

        expect("edges", "RDMSR is exact", again > exact && again - exact < 1000, true);
        expect("edges", "nothing of before a system call is missing", (long)rdpmc(0) >= again,
               true);
    }
    wrmsr(select_msr(0), 0);
    wrmsr(pmu.control, general_bits());
    allow_rdpmc("1");
}

static bool is_in_syscalls(uint64_t address)
{
    return address - (uintptr_t)body_syscalls < 32;
}

/* Whether the CPU says that its records have AMD's format, and that there are so many of them. */
static bool has_amds_branch_records(void)
{
    unsigned eax = 0, ebx = 0, ecx, edx;

    __get_cpuid(0x80000022, &eax, &ebx, &ecx, &edx);
    return (eax >> 1 & 1) && (ebx >> 4 & 0x3f) == RECORDS;
}

/* Whether the CPU says that its records have Nehalem's format, or AMD's. */
static bool has_branch_records(void)
{
    enum { CAPABILITIES = 0x345, WITH_FLAGS = 3 };
    unsigned eax, ebx, ecx = 0, edx;

    __get_cpuid(1, &eax, &ebx, &ecx, &edx);
    return has_amds_branch_records()
           || ((ecx >> 15 & 1) && (rdmsr(CAPABILITIES) & 0x3f) == WITH_FLAGS);
}

#define FROZEN (1l << 59) /* CTR_FRZ, in the status of version 4 */
#define FREEZE (1l << 12) /* FREEZE_PERFMON_ON_PMI, in IA32_DEBUGCTL */

/* Returns whether a counter counts the kernel's instructions, of which each reading has some. */
static bool counts(uint32_t counter)
{
    long before = rdmsr(counter);

    return rdmsr(counter) != before;
}

/* Checks that frozen counters go on when software clears the bit, and stop when it sets the bit. */
static void check_thawing(void)
{
    const uint32_t counters[] = { counter_msr(2), counter_msr(3), FIXED0 };
    const int number = fixed_counters() ? 3 : 2;
    long enabled = rdmsr(pmu.control);

    for (int again = 0; again < 2; again++) {
        wrmsr(pmu.control, enabled);
        for (int i = 0; i < number; i++) {
            expect("freezing msr", "enabling does not thaw", counts(counters[i]), false);
        }
        expect("freezing msr", "clear", wrmsr(pmu.clear, FROZEN), true);
        expect("freezing msr", "thawed", rdmsr(pmu.status) & FROZEN, 0);
        for (int i = 0; i < number; i++) {
            expect("freezing msr", "counts again", counts(counters[i]), true);
        }
        expect("freezing msr", "set", wrmsr(pmu.set, FROZEN), true);
        expect("freezing msr", "frozen by software", rdmsr(pmu.status) & FROZEN, FROZEN);
    }
    wrmsr(pmu.clear, FROZEN);
}

/*
 * Checks on one CPU, where perf has no event, that an overflow's interrupt stops all counters if
 * IA32_DEBUGCTL says so. Linux finds no reason for the interrupt, says so, and touches no counter.
 */
static void check_freezing(void)
{
    enum { INTERRUPT = 1 << 20, BOTH_RINGS = 3, BEFORE = 1 << 20 };
    const long counters = 0xc | (fixed_counters() ? 1l << 32 : 0);
    bool by_status = freezes_by_status();

    expect("freezing msr", "only some versions have the bit", wrmsr(pmu.clear, FROZEN), by_status);
    for (int freezes = 1; freezes >= 0; freezes--) {
        wrmsr(pmu.control, 0);
        wrmsr(DEBUGCTL, freezes ? FREEZE : 0);
        expect("freezing msr", "bit", rdmsr(DEBUGCTL) & FREEZE, freezes ? FREEZE : 0);
        wrmsr(counter_msr(2), 0);
        wrmsr(counter_msr(3), -BEFORE);
        if (fixed_counters()) {
            wrmsr(FIXED0, 0);
            wrmsr(FIXED_CONTROL, BOTH_RINGS);
        }
        wrmsr(select_msr(2), COUNT_ALL);
        wrmsr(select_msr(3), COUNT_ALL | INTERRUPT);
        wrmsr(pmu.control, counters);
        body_loop(BEFORE);
        expect("freezing msr", "counters enabled", rdmsr(pmu.control),
               freezes && !by_status ? 0 : counters);
        expect("freezing msr", "frozen", rdmsr(pmu.status) & FROZEN,
               freezes && by_status ? FROZEN : 0);
        expect("freezing msr", "counts after its overflow", rdmsr(counter_msr(3)) != 0, !freezes);
        expect("freezing msr", "another one counts, too", rdmsr(counter_msr(2)) != BEFORE,
               !freezes);
        if (fixed_counters()) {
            expect("freezing msr", "a fixed one counts, too", rdmsr(FIXED0) != BEFORE, !freezes);
        }
        if (freezes && by_status) {
            check_thawing();
        }
        wrmsr(select_msr(2), 0);
        wrmsr(select_msr(3), 0);
        if (fixed_counters()) {
            wrmsr(FIXED_CONTROL, 0);
        }
        wrmsr(pmu.clear, 0xc);
    }
    wrmsr(DEBUGCTL, 0);
    wrmsr(pmu.control, general_bits());
    printf("freezing msr: done\n");
}

/* Checks each CPU as the firmware has left it, and leaves it with counters that do not freeze. */
static void check_firmware_that_freezes(void)
{
    int cpus = sysconf(_SC_NPROCESSORS_ONLN);

    for (int cpu = 0; cpu < cpus; cpu++) {
        execute_on(cpu);
        open_msrs(cpu);
        expect("firmware", "freezes counters", rdmsr(DEBUGCTL) & FREEZE, FREEZE);
        expect("firmware", "has left them frozen", rdmsr(pmu.status) & FROZEN,
               freezes_by_status() ? FROZEN : 0);
        wrmsr(pmu.control, general_bits());
        wrmsr(select_msr(2), COUNT_ALL);
        expect("firmware", "counters count", counts(counter_msr(2)), !freezes_by_status());
        wrmsr(select_msr(2), 0);
        check_freezing();
        close(msr_file);
    }
}

/* Checks the registers of branch records on CPU 0, where perf has no event. */
static void check_branch_msrs(void)
{
    enum { SELECT = 0x1c8, TOS = 0x1c9, FROM = 0x680, TO = 0x6c0, CAPABILITIES = 0x345,
           NOT_RING_0 = 1, NOT_OTHERS = 2, INDIRECT_JUMPS = 1 << 6, FAR = 1 << 8,
           ALL_KINDS = 0x1fc };
    int kernel = 0, entries = 0, exits = 0, latest;

    expect("branch msr", "capabilities are read-only", wrmsr(CAPABILITIES, 3), false);
    expect("branch msr", "reserved bit of the filter", wrmsr(SELECT, 1 << 9), false);
    expect("branch msr", "no such pair is the latest", wrmsr(TOS, RECORDS), false);
    expect("branch msr", "no branch beyond the last one", wrmsr(FROM + RECORDS, 0), false);
    expect("branch msr", "no target beyond the last one", wrmsr(TO + RECORDS, 0), false);
    expect("branch msr", "off at first", rdmsr(DEBUGCTL) & 1, 0);

    wrmsr(TOS, 5);
    for (int i = 0; i < RECORDS; i++) {
        wrmsr(FROM + i, 0), wrmsr(TO + i, 0);
    }
    body_branches(100);
    expect("branch msr", "nothing is recorded while it is off", rdmsr(TOS), 5);
    expect("branch msr", "nothing was recorded", rdmsr(FROM + 6), 0);

    wrmsr(SELECT, NOT_RING_0 | (ALL_KINDS & ~INDIRECT_JUMPS));
    wrmsr(DEBUGCTL, 1);
    body_branches(3);
    latest = rdmsr(TOS);
    body_branches(100);
    wrmsr(DEBUGCTL, 0);
    expect("branch msr", "as many as were taken", rdmsr(TOS), (latest + 100) % RECORDS);
    for (int i = 0; i < RECORDS; i++) {
        expect("branch msr", "from", rdmsr(FROM + i), (uintptr_t)indirect_jump);
        expect("branch msr", "to", rdmsr(TO + i), (uintptr_t)indirect_target);
    }

    wrmsr(SELECT, NOT_OTHERS);
    wrmsr(DEBUGCTL, 1);
    wrmsr(DEBUGCTL, 0);
    for (int i = 0; i < RECORDS; i++) {
        uint64_t from = rdmsr(FROM + i);

        expect("branch msr", "into the kernel or within it", rdmsr(TO + i) < 0, true);
        expect("branch msr", "no misprediction", from >> 63, 0);
        kernel += from >> 47 == 0xffff;
    }
    expect("branch msr", "addresses of the kernel lose their highest bit", kernel > 8, true);
    wrmsr(SELECT, NOT_OTHERS | (ALL_KINDS & ~FAR));
    wrmsr(DEBUGCTL, 1);
    body_syscalls(100);
    wrmsr(DEBUGCTL, 0);
    for (int i = 0; i < RECORDS; i++) {
        entries += is_in_syscalls(rdmsr(FROM + i)) && rdmsr(TO + i) < 0;
    }
    expect("branch msr", "system calls", entries > RECORDS / 2, true);

    wrmsr(SELECT, NOT_RING_0 | (ALL_KINDS & ~FAR));
    wrmsr(DEBUGCTL, 1);
    body_syscalls(100);
    wrmsr(DEBUGCTL, 0);
    for (int i = 0; i < RECORDS; i++) {
        exits += is_in_syscalls(rdmsr(TO + i)) && rdmsr(FROM + i) >> 47 == 0xffff;
    }
    expect("branch msr", "returns from system calls", exits > RECORDS / 2, true);
    wrmsr(SELECT, 0);
    printf("branch msr: done\n");
}

/* The same for AMD's registers, of which the first pair always has the latest branch. */
static void check_amds_branch_msrs(void)
{
    enum { SELECT = 0xc000010e, EXTENSION = 0xc000010f, PAIRS = 0xc0010300, NOT_RING_0 = 1,
           NOT_OTHERS = 2, INDIRECT_JUMPS = 1 << 6, FAR = 1 << 8, ALL_KINDS = 0x1fc, ON = 1 << 6 };
    const long valid = 1l << 63, frozen = 1l << 58, speculative = 3l << 61;
    const long jump = (uintptr_t)indirect_jump, target = (uintptr_t)indirect_target;
    int kernel = 0;

    expect("branch msr", "reserved bit of the filter", wrmsr(SELECT, 1 << 9), false);
    expect("branch msr", "reserved bit of the extension", wrmsr(EXTENSION, 1 << 7), false);
    expect("branch msr", "no branch beyond the last one", wrmsr(PAIRS + 2 * RECORDS, 0), false);
    expect("branch msr", "off at first", rdmsr(EXTENSION), 0);
    for (int i = 0; i < 2 * RECORDS; i++) {
        expect("branch msr", "every register is there", wrmsr(PAIRS + i, 0), true);
    }
    body_branches(100);
    expect("branch msr", "nothing is recorded while it is off", rdmsr(PAIRS + 1), 0);

    wrmsr(SELECT, NOT_RING_0 | (ALL_KINDS & ~INDIRECT_JUMPS));
    wrmsr(EXTENSION, ON);
    body_branches(3);
    wrmsr(EXTENSION, 0);
    for (int i = 0; i < RECORDS; i++) {
        bool is_there = i < 3;

        expect("branch msr", "from", rdmsr(PAIRS + 2 * i), is_there ? jump : 0);
        expect("branch msr", "to", rdmsr(PAIRS + 2 * i + 1), is_there ? target | valid : 0);
    }
    wrmsr(PAIRS, 5);
    wrmsr(EXTENSION, ON);
    body_branches(1);
    wrmsr(EXTENSION, 0);
    expect("branch msr", "the latest comes first", rdmsr(PAIRS), jump);
    expect("branch msr", "and the one before it next", rdmsr(PAIRS + 2), 5);

    wrmsr(SELECT, NOT_OTHERS);
    wrmsr(EXTENSION, ON);
    wrmsr(EXTENSION, 0);
    for (int i = 0; i < RECORDS; i++) {
        uint64_t from = rdmsr(PAIRS + 2 * i), to = rdmsr(PAIRS + 2 * i + 1);

        expect("branch msr", "into the kernel or within it", to >> 47 & 1, 1);
        expect("branch msr", "valid alone", to & (valid | speculative), valid);
        expect("branch msr", "no misprediction", from >> 63, 0);
        kernel += from >> 47 == 0xffff;
    }
    expect("branch msr", "addresses of the kernel lose their highest bit", kernel > 8, true);

    wrmsr(SELECT, NOT_RING_0 | (ALL_KINDS & ~INDIRECT_JUMPS));
    wrmsr(PAIRS, 5);
    wrmsr(EXTENSION, ON);
    expect("branch msr", "frozen by software", wrmsr(pmu.set, frozen), true);
    body_branches(3);
    expect("branch msr", "nothing is recorded while it is frozen", rdmsr(PAIRS), 5);
    expect("branch msr", "all bits are cleared at once", wrmsr(pmu.clear, ~0l), true);
    body_branches(1);
    expect("branch msr", "thawed", rdmsr(PAIRS), jump);
    wrmsr(EXTENSION, 0);
    wrmsr(SELECT, 0);
    printf("branch msr: done\n");
}

/* Returns whether the CPU writes records of PEBS. Otherwise nothing checks them. */
static bool has_pebs(void)
{
    unsigned eax, ebx, ecx, edx = 0;

    __get_cpuid(1, &eax, &ebx, &ecx, &edx);
    return (edx >> 21 & 1) && !(rdmsr(0x1a0) >> 12 & 1);
}

enum { PEBS_ENABLE = 0x3f1, DS_AREA = 0x600, PEBS_PERIOD = 1000, PEBS_ROOM = 4 };

/* The area of PEBS, with its buffer. */
static struct {
    uint64_t bts[4], base, index, end, threshold, reset[4];
    struct {
        uint64_t flags, ip, ax, bx, cx, dx, si, di, bp, sp, r[8];
        uint64_t counters, address, source, latency, event_ip, transaction, tsc;
    } records[PEBS_ROOM + 1];
} area __attribute__((aligned(PAGE)));

/* Checks the records that PMC3 has written while the loop was executed for so many rounds. */
static void check_pebs_records(int records, long rounds)
{
    const uint64_t dec = (uintptr_t)body_loop, jnz = dec + 3;
    long before = 0;

    for (int i = 0; i < records && i < PEBS_ROOM; i++) {
        bool is_dec = area.records[i].event_ip == dec;
        long number = 2 * (rounds - area.records[i].di) - is_dec;

        expect("pebs msr", "an instruction of the loop",
               is_dec || area.records[i].event_ip == jnz, true);
        expect("pebs msr", "the next instruction", area.records[i].ip, is_dec ? jnz : dec);
        expect("pebs msr", "counter", area.records[i].counters, 1 << 3);
        expect("pebs msr", "flags of user mode", area.records[i].flags & 0x202, 0x202);
        if (before) {
            expect("pebs msr", "from record to record", number - before, PEBS_PERIOD + 1);
        }
        before = number;
    }
}

/*
 * Checks PEBS on CPU 0, where perf has no event, with an area in this program's own memory. Every
 * 1001st instruction of user mode has a record: 1000 make the counter overflow, and the next one is
 * the event.
 */
static void check_pebs_msrs(void)
{
    enum { CAPABILITIES = 0x345, COUNT_USER = 0x4100c0, ROUNDS = 4000 };
    const long buffer_bit = 1l << 62, of_pmc3 = 1 << 3;
    unsigned eax, ebx, ecx = 0, edx = 0;

    execute_on(0);
    __get_cpuid(1, &eax, &ebx, &ecx, &edx);
    expect("pebs msr", "capabilities, and a 64-bit area", (ecx >> 15 & 1) && (ecx >> 2 & 1), true);
    expect("pebs msr", "format", rdmsr(CAPABILITIES) >> 6 & 0x3f, 3 << 2 | 3);
    expect("pebs msr", "reserved bit of the enable register", wrmsr(PEBS_ENABLE, 1 << 4), false);
    expect("pebs msr", "an address that is not canonical", wrmsr(DS_AREA, 1l << 47), false);

    for (int full = 0; full < 2; full++) {
        memset(&area, 0, sizeof(area));
        area.base = area.index = (uintptr_t)area.records;
        area.end = area.base + PEBS_ROOM * sizeof(area.records[0]);
        area.threshold = area.end - sizeof(area.records[0]);
        area.reset[3] = -PEBS_PERIOD;
        wrmsr(CONTROL, 0);
        wrmsr(DS_AREA, (uintptr_t)&area);
        wrmsr(PEBS_ENABLE, of_pmc3);
        wrmsr(SELECT3, COUNT_USER);
        wrmsr(PMC3, -PEBS_PERIOD);
        wrmsr(CONTROL, of_pmc3);
        /* Some instructions of this program come before and after the loop. */
        body_loop(full ? ROUNDS : PEBS_PERIOD);
        wrmsr(CONTROL, 0);

        int records = (area.index - area.base) / sizeof(area.records[0]);
        long status = rdmsr(STATUS), left = rdmsr(PMC3);

        expect("pebs msr", "records", records >= 1 && records < 3, !full);
        expect("pebs msr", "the buffer is not exceeded", records <= PEBS_ROOM, true);
        expect("pebs msr", "buffer", status & buffer_bit, full ? buffer_bit : 0);
        expect("pebs msr", "a counter without a record has overflowed", status & of_pmc3,
               full ? of_pmc3 : 0);
        expect("pebs msr", "only with a record is the counter reloaded",
               left > 0 && left < 2 * ROUNDS, full);
        expect("pebs msr", "behind the buffer", area.records[PEBS_ROOM].ip, 0);
        check_pebs_records(records, full ? ROUNDS : PEBS_PERIOD);
        wrmsr(PEBS_ENABLE, 0);
        wrmsr(SELECT3, 0);
        wrmsr(CLEAR, buffer_bit | of_pmc3);
    }
    wrmsr(DS_AREA, 0);
    wrmsr(CONTROL, 0xf);
    printf("pebs msr: done\n");
}

/*
 * Returns whether the instruction that starts with these bytes is a branch. The bodies have no
 * prefixes.
 */
static bool is_branch(unsigned long code)
{
    unsigned char first = code, second = code >> 8;

    switch (first) {
    case 0x0f:
        return second == 0x05 || (second & 0xf0) == 0x80; /* SYSCALL, Jcc */
    case 0xff:
        return (second >> 3 & 7) >= 2 && (second >> 3 & 7) <= 5; /* CALL and JMP, indirect */
    case 0x70 ... 0x7f: case 0xc3: case 0xe0 ... 0xe3: case 0xe8: case 0xe9: case 0xeb:
        return true;
    case 0x41: /* REX for CALL *%r12 */
        return second == 0xff && (code >> 19 & 7) >= 2 && (code >> 19 & 7) <= 5;
    default:
        return false;
    }
}

/* The same for a conditional branch. */
static bool is_conditional(unsigned long code)
{
    unsigned char first = code, second = code >> 8;

    return (first & 0xf0) == 0x70 || (first & 0xfc) == 0xe0
           || (first == 0x0f && (second & 0xf0) == 0x80);
}

/*
 * Returns the kinds that perf has for the branch that starts with these bytes; 0 for SYSCALL, which
 * no record has that both begins and ends in user mode.
 */
static uint64_t kinds_of(unsigned long code)
{
    unsigned char first = code, field = (first == 0x41 ? code >> 19 : code >> 11) & 7;
    uint64_t any = PERF_SAMPLE_BRANCH_ANY;

    if (is_conditional(code)) {
        return any | PERF_SAMPLE_BRANCH_COND;
    }
    switch (first) {
    case 0x0f:
        return 0;
    case 0x41: case 0xff:
        return any | (field == 2 ? PERF_SAMPLE_BRANCH_ANY_CALL : PERF_SAMPLE_BRANCH_IND_JUMP);
    case 0xc3:
        return any | PERF_SAMPLE_BRANCH_ANY_RETURN;
    case 0xe8:
        return any | PERF_SAMPLE_BRANCH_ANY_CALL;
    default:
        return any;
    }
}

/* Returns where the conditional branch at `rip` goes on if it is not taken. */
static uint64_t not_taken(uint64_t rip, unsigned long code)
{
    return rip + ((code & 0xff) == 0x0f ? 6 : 2);
}

/*
 * Counts the steps that a body takes, and notes the branches that it takes. An iteration of a REP
 * is no step, and neither is a signal.
 */
static void step(unsigned b)
{
    long steps = 0, branches = 0, conditionals = 0, rounds = bodies[b].rounds_stepped;
    uintptr_t last = 0;
    unsigned long last_code = 0;
    bool branch = false, conditional = false;
    int status;
    pid_t pid = fork();

    truths = 0;
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        fresh_arena();
        measured(-1, bodies[b].body, rounds);
        exit(0);
    }
    waitpid(pid, &status, 0);
    for (int inside = 0, sig = 0;;) {
        struct user_regs_struct regs;
        unsigned long code;
        bool entering_handler = sig, executed;

        if (ptrace(PTRACE_SINGLESTEP, pid, 0, sig)) {
            die("PTRACE_SINGLESTEP");
        }
        waitpid(pid, &status, 0);
        if (WIFEXITED(status)) {
            break;
        }
        ptrace(PTRACE_GETREGS, pid, 0, &regs);
        sig = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        executed = inside && !sig && !entering_handler && regs.rip != last;
        steps += executed;
        if (executed && steps <= STEPS_MAX) {
            place_of_step[steps - 1] = last;
        }
        branches += executed && branch;
        conditionals += executed && conditional;
        if (executed && branch && kinds_of(last_code) && truths < TAKEN_MAX
            && !(conditional && regs.rip == not_taken(last, last_code))) {
            truth[truths++] = (struct taken) { steps, last, regs.rip, kinds_of(last_code) };
        }
        code = ptrace(PTRACE_PEEKTEXT, pid, regs.rip, 0);
        branch = is_branch(code);
        conditional = is_conditional(code);
        inside = (inside || regs.rip == (uintptr_t)measured_first)
                 && regs.rip != (uintptr_t)measured_end;
        last = regs.rip;
        last_code = code;
    }
    expect("branches that fit", bodies[b].name, truths < TAKEN_MAX, true);
    expect("steps", bodies[b].name, steps, INSNS(b, rounds));
    expect("branches stepped", bodies[b].name, branches, BRANCHES(b, rounds));
    expect("conditional branches stepped", bodies[b].name, conditionals, CONDITIONALS(b, rounds));
    printf("%s: %ld steps, %ld branches, %ld conditional\n", bodies[b].name, steps, branches,
           conditionals);
}

static void set_kernel_parameter(const char *name, const char *value)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/sys/kernel/%s", name);
    fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, value, strlen(value)) != (ssize_t)strlen(value)) {
        die(name);
    }
    close(fd);
}

/*
 * Lets no ordinary thread suspend this one while it samples, or lets them do so again. A thread
 * that was suspended samples later than its period says.
 */
static void sample_undisturbed(bool undisturbed)
{
    struct sched_param param = { .sched_priority = undisturbed ? 1 : 0 };

    if (sched_setscheduler(0, undisturbed ? SCHED_FIFO : SCHED_OTHER, &param)) {
        die("sched_setscheduler");
    }
}

static void check_guest(void)
{
    /* Emulation is slow, and perf must not take that for a reason to sample less often. */
    set_kernel_parameter("perf_cpu_time_max_percent", "0");
    set_kernel_parameter("sched_rt_runtime_us", "-1");
    check_bodies("alone");
    check_rdpmc();
    sample_undisturbed(true);
    check_samples(10007);
    check_samples(99991);
    sample_undisturbed(false);
    check_bodies_in_a_storm();
    check_rdpmc_faults();
    open_msrs(0);
    if (architectural_pmu() || amd_version_2()) {
        check_counters();
    }
    if (counters_start_together()) {
        check_msrs();
    }
    sample_undisturbed(true);
    if (has_branch_records()) {
        check_freezing();
        if (has_amds_branch_records()) {
            check_amds_branch_msrs();
        } else {
            check_branch_msrs();
        }
        check_branch_records();
    }
    if (counters_start_together() && has_pebs()) {
        check_pebs_msrs();
        check_precise_samples();
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    if (getpid() == 1) {
        mkdir("/proc", 0755), mount("proc", "/proc", "proc", 0, NULL);
        mkdir("/sys", 0755), mount("sysfs", "/sys", "sysfs", 0, NULL);
        mkdir("/dev", 0755), mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
        syscall(SYS_finit_module, open("/msr.ko", O_RDONLY), "", 0);
    }
    prepare();
    find_registers();
    if (argc > 1 && !strcmp(argv[1], "--step")) {
        for (unsigned b = 0; b < BODIES; b++) {
            step(b);
        }
    } else if (argc > 1 && !strcmp(argv[1], "--interrupts")) {
        check_interrupts();
    } else if (argc > 1 && !strcmp(argv[1], "--freezing")) {
        check_firmware_that_freezes();
    } else if (argc > 2 && !strcmp(argv[1], "--edges")) {
        open_msrs(0);
        check_edges(atol(argv[2]));
    } else {
        check_guest();
    }
    printf(failures ? "pmu-check: %d FAILED\n" : "pmu-check: passed\n", failures);
    if (getpid() == 1) {
        reboot(RB_POWER_OFF);
    }
    return failures != 0;
}
