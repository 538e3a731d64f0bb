// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The events of a processor's tables, and how they are encoded.

use std::collections::HashMap;

use perfctr::Event;

use super::refusal::{Kind, Refusal};
use super::{Entry, Vendor};

/// perf's names for the PMUs of cores. On a processor with two kinds of cores, `cpu_core` is the
/// PMU of the performance cores.
const CORES: [&str; 2] = ["cpu", "cpu_core"];

/// Events that only a fixed counter counts, by the tables' names for them.
const FIXED: [(&str, Event); 5] = [
    ("INST_RETIRED.ANY", Event::INSTRUCTIONS),
    ("CPU_CLK_UNHALTED.THREAD", Event::CYCLES),
    ("CPU_CLK_UNHALTED.CORE", Event::CYCLES),
    ("CPU_CLK_UNHALTED.REF_TSC", Event::REF_CYCLES),
    ("CPU_CLK_UNHALTED.REF", Event::REF_CYCLES),
];

/// The events by their names in lower case, since perf's users write them in either.
#[derive(Debug, Default)]
pub struct Events(HashMap<String, Vec<Entry>>);

impl Events {
    pub fn add(&mut self, name: &str, entry: Entry) {
        self.0.entry(name.to_lowercase()).or_default().push(entry);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Finds an event by its name in an expression: `NAME`, `NAME:k`, `cpu@NAME,cmask=1,edge@` or
    /// `cpu@event=0xc4,umask=1@`. It counts in both modes unless the name says otherwise.
    pub fn find(&self, vendor: Vendor, written: &str) -> Result<Event, Refusal> {
        let Some((unit, rest)) = written.split_once('@') else {
            let (name, modifier) = written.split_once(':').unwrap_or((written, "uk"));
            return in_modes(self.named(vendor, name)?.encode(vendor, name)?, modifier, written);
        };
        if !CORES.contains(&unit) {
            return Err(Kind::OtherUnit.refusal(written));
        }
        let malformed = || Kind::Encoding.refusal(written);
        let (terms, modifier) = rest.rsplit_once('@').ok_or_else(malformed)?;
        let mut terms = terms.split(',').peekable();
        let is_name = |term: &&str| !term.contains('=');
        let mut entry = match terms.next_if(is_name) {
            Some(name) => self.named(vendor, name)?,
            None => Entry::default(),
        };
        for term in terms {
            let (key, value) = term.split_once('=').unwrap_or((term, "1"));
            let field = match key {
                "event" => &mut entry.event_code,
                "umask" => &mut entry.umask,
                "cmask" => &mut entry.counter_mask,
                "inv" => &mut entry.invert,
                "edge" => &mut entry.edge_detect,
                "any" => &mut entry.any_thread,
                _ => return Err(malformed()),
            };
            *field = Some(value.to_owned());
        }
        let modifier = modifier.trim_start_matches(':');
        let modifier = if modifier.is_empty() { "uk" } else { modifier };
        in_modes(entry.encode(vendor, written)?, modifier, written)
    }

    /// Returns the table's entry of an event of a core.
    fn named(&self, vendor: Vendor, name: &str) -> Result<Entry, Refusal> {
        let Some(entries) = self.0.get(&name.to_lowercase()) else {
            return known_to_perf(vendor, name);
        };
        let of_core =
            |entry: &&Entry| entry.unit.as_deref().is_none_or(|unit| CORES.contains(&unit));
        entries.iter().find(of_core).cloned().ok_or_else(|| Kind::OtherUnit.refusal(name))
    }
}

/// Returns the event that Linux itself knows by this name.
fn known_to_perf(vendor: Vendor, name: &str) -> Result<Entry, Refusal> {
    if name == "slots" || name.starts_with("topdown-") {
        return Err(match vendor {
            Vendor::Intel => Kind::Fixed.refusal(name),
            Vendor::Amd => Kind::Unknown.refusal(name),
        });
    }
    let known = Event::named().find(|event| !event.is_software() && event.to_string() == name);
    let known = known.ok_or_else(|| Kind::Unknown.refusal(name))?;
    Ok(Entry { known: Some(known), ..Entry::default() })
}

fn in_modes(event: Event, modifier: &str, written: &str) -> Result<Event, Refusal> {
    match modifier {
        "u" => Ok(event.user()),
        "k" => Ok(event.kernel()),
        "uk" | "ku" => Ok(event),
        _ => Err(Kind::Mode.refusal(written)),
    }
}

impl Entry {
    /// Returns the event. `written` is its name in errors.
    ///
    /// The tables are the processor's own, so the event is known to be right on it.
    fn encode(&self, vendor: Vendor, written: &str) -> Result<Event, Refusal> {
        if let Some(event) = self.known {
            return Ok(event);
        }
        if is_set(&self.msr_index) {
            return Err(Kind::FurtherRegisters.refusal(written));
        }
        if is_set(&self.any_thread) || written.ends_with("_ANY") && self.is_fixed() {
            return Err(Kind::OtherThread.refusal(written));
        }
        if self.pebs.as_deref().is_some_and(|pebs| pebs.trim() == "2") {
            return Err(Kind::Pebs.refusal(written));
        }
        if vendor == Vendor::Intel && self.is_fixed() {
            let fixed = FIXED.iter().find(|(name, _)| name.eq_ignore_ascii_case(written));
            return fixed.map(|(_, event)| *event).ok_or_else(|| Kind::Fixed.refusal(written));
        }
        let select = self.select(vendor).ok_or_else(|| Kind::Encoding.refusal(written))?;
        Ok(Event::raw(select).unverified())
    }

    /// Returns whether only a fixed counter counts the event.
    fn is_fixed(&self) -> bool {
        let code = self.event_code.as_deref().and_then(number);
        self.counter.starts_with("Fixed") || self.event_code.is_some() && code == Some(0)
    }

    /// Returns the event select (SDM volume 3, figure 20-1; APM volume 2, figure 13-7), or `None`
    /// if there is a number that does not fit.
    fn select(&self, vendor: Vendor) -> Option<u64> {
        if is_set(&self.umask_ext) || is_set(&self.ext_sel) {
            return None;
        }
        let field = |text: &Option<String>, bits: u32| {
            let value = text.as_deref().map_or(Some(0), number)?;
            (value >> bits == 0).then_some(value)
        };
        let code = match vendor {
            Vendor::Intel => field(&self.event_code, 8)?,
            Vendor::Amd => {
                let code = field(&self.event_code, 12)?;
                code & 0xff | (code >> 8) << 32
            }
        };
        self.event_code.as_ref()?;
        let edge = field(&self.edge_detect, 1)?;
        let (invert, mask) = (field(&self.invert, 1)?, field(&self.counter_mask, 8)?);
        Some(code | field(&self.umask, 8)? << 8 | edge << 18 | invert << 23 | mask << 24)
    }
}

/// Returns whether a field has another number than 0.
fn is_set(field: &Option<String>) -> bool {
    field.as_deref().is_some_and(|text| number(text) != Some(0))
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns events of a table that nobody but this test has.
    fn events(table: &str) -> Events {
        let mut events = Events::default();
        for entry in serde_json::from_str::<Vec<Entry>>(table).unwrap() {
            let name = entry.event_name.clone().unwrap();
            events.add(&name, entry);
        }
        events
    }

    fn intel() -> Events {
        events(
            r#"[
            {"EventName": "INST_RETIRED.ANY", "Counter": "Fixed counter 0", "UMask": "0x1"},
            {"EventName": "CPU_CLK_UNHALTED.REF", "EventCode": "0x0", "UMask": "0x0"},
            {"EventName": "CPU_CLK_UNHALTED.THREAD_ANY", "Counter": "Fixed counter 1"},
            {"EventName": "TOPDOWN.SLOTS", "EventCode": "0x00", "UMask": "0x4"},
            {"EventName": "A.B", "EventCode": "0x9C", "UMask": "0x2", "CounterMask": "4",
             "Invert": "1", "EdgeDetect": "1", "MSRIndex": "0", "PEBS": "1"},
            {"EventName": "A.PLAIN", "EventCode": "156", "UMask": "0x1"},
            {"EventName": "A.ANY", "EventCode": "0x9c", "AnyThread": "1"},
            {"EventName": "A.PS", "EventCode": "0x9c", "PEBS": "2"},
            {"EventName": "A.OFFCORE", "EventCode": "0xb7,0xbb", "MSRIndex": "0x1a6,0x1a7"},
            {"EventName": "A.WIDE", "EventCode": "0x19c"},
            {"EventName": "A.MORE", "EventCode": "0x9c", "UMaskExt": "0x10"},
            {"EventName": "A.MEMORY", "EventCode": "0x1", "Unit": "iMC"},
            {"EventName": "A.BOTH", "EventCode": "0x1", "Unit": "cpu_atom"},
            {"EventName": "A.BOTH", "EventCode": "0x2", "Unit": "cpu_core"}
            ]"#,
        )
    }

    #[test]
    fn an_event_has_the_select_that_its_table_says() {
        let raw = |select| Ok(Event::raw(select).unverified());
        for (written, event) in [
            ("A.B", raw(0x4 << 24 | 1 << 23 | 1 << 18 | 0x29c)),
            ("a.plain", raw(0x19c)),
            ("A.PLAIN:k", raw(0x19c).map(Event::kernel)),
            (r"cpu@A.PLAIN,cmask=0x2,edge@", raw(0x2 << 24 | 1 << 18 | 0x19c)),
            ("cpu@A.PLAIN,cmask=2,inv@u", raw(0x2 << 24 | 1 << 23 | 0x19c).map(Event::user)),
            ("cpu@event=0xc4,umask=1@", raw(0x1c4)),
            ("cpu_core@A.B,cmask=0,inv=0,edge=0,umask=0@", raw(0x9c)),
            ("A.BOTH", raw(2)),
            ("INST_RETIRED.ANY", Ok(Event::INSTRUCTIONS)),
            ("CPU_CLK_UNHALTED.REF:u", Ok(Event::REF_CYCLES.user())),
            ("cycles:k", Ok(Event::CYCLES.kernel())),
        ] {
            assert_eq!(intel().find(Vendor::Intel, written), event, "{written}");
        }
    }

    #[test]
    fn amds_event_numbers_have_twelve_bits() {
        let amd = events(
            r#"[{"EventName": "a", "EventCode": "0x187", "UMask": "0x02"},
                {"EventName": "b", "EventCode": "0x00", "UMask": "0x0f"},
                {"EventName": "c", "EventCode": "0x1000"}]"#,
        );
        let find = |name| amd.find(Vendor::Amd, name);
        assert_eq!(find("a"), Ok(Event::raw(1 << 32 | 0x287).unverified()));
        assert_eq!(find("b"), Ok(Event::raw(0xf00).unverified()), "AMD has no fixed counters");
        assert_eq!(find("c"), Err(Kind::Encoding.refusal("c")));
    }

    #[test]
    fn what_no_counter_of_a_core_counts_is_refused_by_name() {
        for (written, kind) in [
            ("A.OFFCORE", Kind::FurtherRegisters),
            ("A.ANY", Kind::OtherThread),
            ("CPU_CLK_UNHALTED.THREAD_ANY", Kind::OtherThread),
            ("cpu@A.PLAIN,any=1@", Kind::OtherThread),
            ("A.PS", Kind::Pebs),
            ("TOPDOWN.SLOTS", Kind::Fixed),
            ("slots", Kind::Fixed),
            ("topdown-retiring", Kind::Fixed),
            ("A.WIDE", Kind::Encoding),
            ("A.MORE", Kind::Encoding),
            ("cpu@A.PLAIN,ldlat=3@", Kind::Encoding),
            ("cpu@A.PLAIN", Kind::Encoding),
            ("cpu@A.PLAIN,umask=zz@", Kind::Encoding),
            ("cpu@umask=1@", Kind::Encoding),
            ("A.MEMORY", Kind::OtherUnit),
            ("msr@tsc@", Kind::OtherUnit),
            ("A.PLAIN:pp", Kind::Mode),
        ] {
            let found = intel().find(Vendor::Intel, written);
            assert_eq!(found, Err(kind.refusal(written)), "{written}");
        }
        assert_eq!(intel().find(Vendor::Intel, "A.C:u"), Err(Kind::Unknown.refusal("A.C")));
        assert_eq!(
            intel().find(Vendor::Intel, "task-clock"),
            Err(Kind::Unknown.refusal("task-clock"))
        );
    }
}
