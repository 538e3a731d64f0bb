// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The examples of each verb, for its help and its man page: a command line, and what it does.

pub const DIFF: &str = "\
Examples:
  perfctr diff before.data after.data
      Shows for each function how many events it had in either profile.";

pub const DOMAINS: &str = "\
Examples:
  perfctr domains list
      Lists the virtual machines of this host, and which of them may count.
  perfctr domains allow web
      Lets the virtual machine `web` count.
  perfctr domains counts -e instructions -- sleep 5
      Counts for five seconds what each virtual CPU of a Xen host executes.";

pub const DOMAINS_ALLOW: &str = "\
Examples:
  perfctr domains allow web
      Lets the virtual machine `web` count.
  perfctr domains allow 3
      Lets domain 3 of a Xen host count.
  perfctr domains allow web --counters 2 --rate 10
      Lets `web` count with two counters, and with ten interrupts in a millisecond at most.";

pub const DOMAINS_APPLY: &str = "\
Examples:
  perfctr domains apply /etc/perfctr/domains
      Lets those virtual machines of a KVM host count that the file names.
  perfctr domains apply --every 5 /etc/perfctr/domains
      Looks every five seconds for machines that have started, or that are new in the file.";

pub const DOMAINS_COUNTS: &str = "\
Examples:
  perfctr domains counts -e instructions -- sleep 5
      Counts for five seconds what each virtual CPU of a Xen host executes.
  perfctr domains counts --json
      Counts until an interrupt, and prints the counts as JSON.";

pub const DOMAINS_FORBID: &str = "\
Examples:
  perfctr domains forbid web
      Stops the virtual machine `web` counting.";

pub const DOMAINS_LIMITS: &str = "\
Examples:
  perfctr domains limits
      Says how many counters guests have, and which events they may count.";

pub const DOMAINS_LIST: &str = "\
Examples:
  perfctr domains list
      Lists the virtual machines of this host, and which of them may count.";

pub const EXPORT: &str = "\
Examples:
  perfctr export -p 1234
      Serves the counts of process 1234.
  perfctr export -G /sys/fs/cgroup/web.slice
      Serves the counts of a group of processes.
  perfctr export --host -e instructions
      Serves the counts of all domains of a Xen host.";

pub const GATE: &str = "\
Examples:
  perfctr gate --name sort --update -- ./sort words
      Writes the program's instructions to the baseline.
  perfctr gate --name sort -- ./sort words
      Ends with status 1 if the program executes more instructions now.
  perfctr gate --name sort --threshold 1000 --junit sort.xml -- ./sort words
      Allows 1000 instructions more, and writes the outcome for continuous integration.";

pub const INFO: &str = "\
Examples:
  perfctr info
      Says who provides counters here, and what to do where nobody does.";

pub const LIST: &str = "\
Examples:
  perfctr list
      Lists the events that every CPU has.
  perfctr list --all
      Lists this CPU's own events as well, if libpfm4 is installed.
  perfctr list --metrics --tables linux-source-6.1
      Lists the metrics that the CPU's vendor has defined, from a source of Linux.";

pub const RECORD: &str = "\
Examples:
  perfctr record -g -e instructions:u -c 1000003 -- ./program
      Records where the program is, and who has called it, every 1,000,003 instructions.
  perfctr record -g -f perf -- ./program
      Writes perf.data, which Linux's `perf report` and others read.
  perfctr record -g -p 1234 -- sleep 10
      Samples process 1234, which runs already, for ten seconds.
  perfctr record -g -e cycles -a -- sleep 10
      Samples all CPUs for ten seconds, user mode and the kernel.
  perfctr record --host -- sleep 10
      Samples a host for ten seconds: the hypervisor and all domains, or KVM and all machines.
  perfctr record --names
      Records in a domain which threads execute, for a host's profile.";

pub const REPORT: &str = "\
Examples:
  perfctr report
      Shows how many samples each function has.
  perfctr report -s time,symbol
      Shows the same for each tenth of a second.
  perfctr report --annotate work
      Shows the instructions of the function `work` with their samples, and its lines of source.
  perfctr report -f flame-graph -o flames.svg
      Draws who called whom, for a browser.
  perfctr report -f perf -o perf.data
      Writes the profile as a file that Linux's `perf report` reads.
  perfctr report --guest web=web.names
      Names the threads and functions of a host's domain web, which has recorded them.
  perfctr report -i perf.data
      Shows what Linux's `perf record` has recorded.";

pub const SELFTEST: &str = "\
Examples:
  perfctr selftest
      Says whether counts and samples are exact here, and what the processor adds to them.
  perfctr selftest --report selftest.json
      Also writes all measurements to a file, which can be sent to perfctr's developers.";

pub const STAT: &str = "\
Examples:
  perfctr stat -e instructions:u,branches:u -- ./program
      Counts two events in user mode.
  perfctr stat --repeatable -r 20 -- ./program
      Runs the program 20 times in the same surroundings, and says by how much the counts differ.
  perfctr stat -I 1000 --csv -p 1234
      Prints what process 1234 counts in each second, until an interrupt.
  perfctr stat -M branches -- ./program
      Says how often the program branches, and how often the processor predicts that wrongly.
  perfctr stat -M tma_frontend_bound:u -- ./program
      Computes a metric of the CPU's vendor in user mode.
  perfctr stat -a -- sleep 10
      Counts everything that executes on all CPUs in ten seconds.
  perfctr stat -e {cycles:u,instructions:u},branches:u -- ./program
      Counts the first two at the same time, so that their ratio is one of the same moments.";

pub const TOP: &str = "\
Examples:
  perfctr top
      Shows all threads.
  perfctr top -p 1234 -e instructions:u,cycles:u
      Shows the threads of process 1234.
  perfctr top --functions
      Shows in which functions all programs are.
  perfctr top --host
      Shows which domains of a host execute which functions, also of the hypervisor.";
