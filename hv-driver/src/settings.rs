// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Parses the option `perfctr`, which every hypervisor has for the host's administrator.

/// The syntax of the option, for the console.
pub const EXPECTED: &str = "on|off[,accounts][,all][,branches][,cost][,cpus=some][,events=all]\
                            [,entries=counted][,interrupts=counted][,precise][,profile]\
                            [,rate=<overflows per ms>]";

/// Number of overflows that a vCPU may have in a millisecond, if the option does not say.
const OVERFLOWS_PER_MS: u32 = 50;

/// How often a vCPU may be interrupted by overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Rate {
    /// Length of a window, unit: TSC ticks.
    pub window_tsc: u64,
    /// Number of overflows in a window after which further ones are put off.
    pub overflows_max: u64,
}

/// The settings of the driver, which are decided at boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a vCPU may be interrupted.
    pub rate: Rate,
    /// Whether the last general counter measures the driver itself.
    ///
    /// A guest with a page can then read how many instructions the hypervisor executes, so this is
    /// only for tests.
    pub measure_cost: bool,
    /// Whether guests may count every event that is not known to harm others.
    pub all_events: bool,
    /// Whether every domain may count about which the host has not decided.
    pub all_domains: bool,
    /// Whether the CPUs count the instruction that enters a guest in the mode that it enters,
    /// so that the driver has to subtract it (S. Das of AMD, KVM's mailing list, 26 April 2023).
    pub counts_entries: bool,
    /// Whether the CPUs count each interrupt and each exception as an instruction of the code that
    /// it interrupts, so that the driver has to subtract it (V. Weaver, D. Terpstra, S. Moore,
    /// ISPASS 2013). It can do so for PV guests, whose interrupts and exceptions all come to the
    /// hypervisor.
    pub counts_interrupts: bool,
    /// Whether a general counter is kept from the guests, with which the host samples itself.
    pub profile: bool,
    /// Whether two general counters are kept from the guests, with which the host accounts what
    /// each vCPU executes.
    pub accounts: bool,
    /// Whether the driver may record guests' branches.
    pub branches: bool,
    /// Whether PV guests may have the processor store where a counter overflows.
    pub precise: bool,
    /// Whether only the driver writes to registers of counters. This includes counters that
    /// several cores share.
    pub owns_all: bool,
}

impl Settings {
    /// Returns the settings of a host without any option, on which only the driver writes to
    /// registers of counters.
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            measure_cost: false,
            all_events: false,
            all_domains: false,
            counts_entries: false,
            counts_interrupts: false,
            profile: false,
            accounts: false,
            branches: false,
            precise: false,
            owns_all: true,
        }
    }
}

/// The facts about the host that the driver has to know.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HostFacts {
    /// The number of ticks of the time-stamp counter in a millisecond.
    pub ticks_per_ms: u64,
    /// See [`Settings::owns_all`].
    pub owns_all: bool,
    /// Whether the glue can sample the host, and account what its vCPUs execute.
    pub can_profile: bool,
    /// Whether the driver may use the registers that record branches and places of overflows.
    pub can_record: bool,
}

/// The values of the option's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Options {
    /// Whether the driver is on.
    pub on: bool,
    /// See [`Settings::all_domains`].
    pub all_domains: bool,
    /// Whether the driver is on even if some CPUs cannot count, or differ from the boot CPU.
    pub some_cpus: bool,
    /// See [`Settings::measure_cost`].
    pub measure_cost: bool,
    /// See [`Settings::all_events`].
    pub all_events: bool,
    /// See [`Settings::counts_entries`].
    pub counts_entries: bool,
    /// See [`Settings::counts_interrupts`].
    pub counts_interrupts: bool,
    /// See [`Settings::profile`].
    pub profile: bool,
    /// See [`Settings::accounts`].
    pub accounts: bool,
    /// See [`Settings::branches`].
    pub branches: bool,
    /// See [`Settings::precise`].
    pub precise: bool,
    /// Number of overflows that a vCPU may have in each millisecond.
    pub overflows_per_ms: u32,
}

impl Options {
    /// The value on a host without the option.
    pub(crate) const OFF: Self = Self {
        on: false,
        all_domains: false,
        some_cpus: false,
        measure_cost: false,
        all_events: false,
        counts_entries: false,
        counts_interrupts: false,
        profile: false,
        accounts: false,
        branches: false,
        precise: false,
        overflows_per_ms: OVERFLOWS_PER_MS,
    };

    /// Parses the option's value, which consists of words separated by commas. Each word but those
    /// that mean off switches the driver on, and so does the option without a value.
    ///
    /// Returns `None` if it does not know a word. The driver stays off then: an administrator who
    /// has misspelled a limit does not want the driver without the limit.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut options = Self::OFF;
        for word in text.split(|&byte| byte == b',') {
            options.take(word)?;
        }
        Some(options)
    }

    fn take(&mut self, word: &[u8]) -> Option<()> {
        self.on = true;
        match word {
            b"" | b"on" | b"1" | b"yes" | b"true" | b"enable" => (),
            b"off" | b"0" | b"no" | b"false" | b"disable" => self.on = false,
            b"all" => self.all_domains = true,
            b"cost" => self.measure_cost = true,
            b"cpus=some" => self.some_cpus = true,
            b"events=all" => self.all_events = true,
            b"profile" => self.profile = true,
            b"accounts" => self.accounts = true,
            b"branches" => self.branches = true,
            b"precise" => self.precise = true,
            b"entries=counted" => self.counts_entries = true,
            b"interrupts=counted" => self.counts_interrupts = true,
            _ => self.overflows_per_ms = number(word.strip_prefix(b"rate=")?)?,
        }
        Some(())
    }

    /// Returns the settings on a host with these facts.
    pub const fn settings(&self, host: &HostFacts) -> Settings {
        let overflows_max = self.overflows_per_ms as u64;
        Settings {
            rate: Rate { window_tsc: host.ticks_per_ms, overflows_max },
            measure_cost: self.measure_cost,
            all_events: self.all_events,
            all_domains: self.all_domains,
            counts_entries: self.counts_entries,
            counts_interrupts: self.counts_interrupts,
            profile: self.profile && host.can_profile,
            accounts: self.accounts && host.can_profile,
            branches: self.branches && host.can_record,
            precise: self.precise && host.can_record,
            owns_all: host.owns_all,
        }
    }
}

/// Parses a decimal number.
pub(crate) fn number(digits: &[u8]) -> Option<u32> {
    let first = digits.first().map(|_| 0);
    digits.iter().fold(first, |number: Option<u32>, &digit| {
        let value = digit.checked_sub(b'0').filter(|value| *value < 10)?;
        number?.checked_mul(10)?.checked_add(u32::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_sets_what_it_says_and_switches_the_driver_on() {
        let on = Options { on: true, ..Options::OFF };
        for (text, options) in [
            ("on", on),
            ("", on),
            ("1", on),
            ("yes", on),
            ("all", Options { all_domains: true, ..on }),
            ("cost", Options { measure_cost: true, ..on }),
            ("cpus=some", Options { some_cpus: true, ..on }),
            ("events=all", Options { all_events: true, ..on }),
            ("entries=counted", Options { counts_entries: true, ..on }),
            ("interrupts=counted", Options { counts_interrupts: true, ..on }),
            ("profile", Options { profile: true, ..on }),
            ("accounts", Options { accounts: true, ..on }),
            ("branches", Options { branches: true, ..on }),
            ("precise", Options { precise: true, ..on }),
            ("profile,accounts", Options { profile: true, accounts: true, ..on }),
            ("rate=17", Options { overflows_per_ms: 17, ..on }),
            ("rate=4294967295", Options { overflows_per_ms: u32::MAX, ..on }),
            ("on,all,rate=3", Options { all_domains: true, overflows_per_ms: 3, ..on }),
            ("all,off", Options { on: false, all_domains: true, ..on }),
            ("off", Options::OFF),
            ("0", Options::OFF),
            ("no", Options::OFF),
        ] {
            assert_eq!(Options::parse(text.as_bytes()), Some(options), "{text}");
        }
    }

    #[test]
    fn a_word_that_is_not_known_leaves_the_driver_off() {
        for text in [
            "on,fast",
            "rate",
            "rate=",
            "rate=x",
            "rate=-1",
            "rate=4294967296",
            "events=some",
            "cpus=all",
            "entries=all",
            "interrupts=all",
            "ON",
        ] {
            assert_eq!(Options::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn counters_are_kept_only_where_the_host_can_use_them() {
        let (branches, precise) = (true, true);
        let options = Options { profile: true, accounts: true, branches, precise, ..Options::OFF };
        for (can_profile, can_record) in [(false, false), (false, true), (true, false)] {
            let host = HostFacts { ticks_per_ms: 1, owns_all: true, can_profile, can_record };
            let Settings { profile, accounts, branches, precise, .. } = options.settings(&host);
            assert_eq!([profile, accounts], [can_profile; 2]);
            assert_eq!([branches, precise], [can_record; 2]);
        }
    }

    #[test]
    fn what_cpus_count_is_set_word_by_word() {
        let host =
            HostFacts { ticks_per_ms: 1, owns_all: false, can_profile: false, can_record: false };
        for (text, entries, interrupts) in [
            ("on", false, false),
            ("entries=counted", true, false),
            ("interrupts=counted", false, true),
            ("interrupts=counted,entries=counted", true, true),
        ] {
            let settings = Options::parse(text.as_bytes()).unwrap().settings(&host);
            let found = (settings.counts_entries, settings.counts_interrupts);
            assert_eq!(found, (entries, interrupts), "{text}");
        }
    }

    #[test]
    fn a_window_is_a_millisecond() {
        let mut options = Options { all_domains: true, overflows_per_ms: 7, ..Options::OFF };
        assert!(
            !options
                .settings(&HostFacts {
                    ticks_per_ms: 1,
                    owns_all: false,
                    can_profile: false,
                    can_record: false,
                })
                .counts_entries
        );
        options.counts_entries = true;
        let host = HostFacts {
            ticks_per_ms: 2_400_000,
            owns_all: true,
            can_profile: true,
            can_record: true,
        };
        let settings = options.settings(&host);
        assert_eq!(settings.rate, Rate { window_tsc: 2_400_000, overflows_max: 7 });
        assert!(
            settings.owns_all
                && settings.all_domains
                && settings.counts_entries
                && !settings.all_events
                && !settings.profile
                && !settings.accounts
                && !settings.branches
                && !settings.precise
                && !settings.measure_cost
        );
    }
}
