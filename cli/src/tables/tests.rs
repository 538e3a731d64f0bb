// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests tables that nobody but these tests has.

use super::*;

/// The tables of a processor of Intel's.
const EVENTS: &str = r#"[
    {"EventName": "WORK.DONE", "EventCode": "0xc0", "UMask": "0x1"},
    {"EventName": "TICKS", "Counter": "Fixed counter 1", "UMask": "0x2"},
    {"EventName": "CPU_CLK_UNHALTED.THREAD", "Counter": "Fixed counter 1", "UMask": "0x2"},
    {"EventName": "MEMORY", "EventCode": "0x1", "Unit": "iMC"},
    {"EventName": "SLOTS.ANY", "EventCode": "0x3c", "AnyThread": "1"}
]"#;
const METRICS: &str = r#"[
    {"MetricName": "Rate", "MetricExpr": "WORK.DONE / CPU_CLK_UNHALTED.THREAD",
     "MetricGroup": "Top;Summary", "ScaleUnit": "100%", "BriefDescription": "Work for each cycle"},
    {"MetricName": "Twice", "MetricExpr": "2 * Rate + WORK.DONE", "MetricGroup": "Top"},
    {"MetricName": "Doubled", "MetricExpr": "Rate + Rate"},
    {"MetricName": "Cores", "MetricExpr": "SLOTS.ANY / 2 if #SMT_on else WORK.DONE"},
    {"MetricName": "Threads", "MetricExpr": "WORK.DONE if #SMT_on else SLOTS.ANY"},
    {"MetricName": "Chosen", "MetricExpr": "WORK.DONE if Rate > 1 else -WORK.DONE"},
    {"MetricName": "Bounds", "MetricExpr": "max(min(WORK.DONE, 5), d_ratio(1, 0 * WORK.DONE))"},
    {"MetricName": "Second", "MetricExpr": "WORK.DONE / duration_time", "ScaleUnit": "1e-3kHz"},
    {"MetricName": "Share", "MetricExpr": "WORK.DONE:k / WORK.DONE"},
    {"MetricName": "Bandwidth", "MetricExpr": "MEMORY * 64", "MetricGroup": "Top"},
    {"MetricName": "First", "MetricExpr": "1 + Next"},
    {"MetricName": "Next", "MetricExpr": "first * 2"},
    {"MetricName": "Broken", "MetricExpr": "1 +"},
    {"MetricName": "Many", "MetricExpr": "WORK.DONE / #num_packages"},
    {"MetricName": "Odd", "MetricExpr": "source_count(MEMORY)"},
    {"MetricName": "There", "MetricExpr": "has_event(WORK.DONE) + 2 * has_event(MEMORY)"},
    {"MetricName": "Both", "MetricExpr": "2", "Unit": "cpu_core"},
    {"MetricName": "Both", "MetricExpr": "1", "Unit": "cpu_atom"},
    {"MetricName": "Small", "MetricExpr": "1", "Unit": "cpu_atom"}
]"#;
const LIST_TEXT: &str = "Family-model,Version,Filename,EventType
GenuineIntel-6-55-[01234],v1,first,core
GenuineIntel-6-(55|5C),v1,second,core
GenuineIntel-6-1,v1,wrong,core
GenuineIntel-6-AA,v1,wrong,uncore
AuthenticAMD-23-[[:xdigit:]]+,v1,third,core
";

fn processor(text: &str) -> Processor {
    text.parse().unwrap()
}

/// Writes the tables to a directory of this name, and returns it.
fn directory(name: &str) -> PathBuf {
    let root = env::temp_dir().join(format!("perfctr-tables-{name}-{}", std::process::id()));
    fs::create_dir_all(root.join("arch/x86/first")).unwrap();
    fs::write(root.join("arch/x86").join(LIST), LIST_TEXT).unwrap();
    for (file, text) in [
        ("events.json", EVENTS),
        ("metrics.json", METRICS),
        ("metricgroups.json", r#"{"Top": "What comes first"}"#),
        ("notes.txt", "these are no tables"),
    ] {
        fs::write(root.join("arch/x86/first").join(file), text).unwrap();
    }
    root
}

fn tables(smt: bool) -> Tables {
    let root = directory(&format!("{smt}-{:?}", std::thread::current().id()));
    let tables = Tables::read(&root, processor("GenuineIntel-6-55-4"), smt);
    fs::remove_dir_all(root).unwrap();
    tables.unwrap()
}

fn only(tables: &Tables, name: &str, modes: Modes) -> TableMetric {
    let [metric] = &*tables.named(name, modes).unwrap() else { panic!("{name}") };
    metric.clone()
}

/// Computes a metric for 30 units of work, 10 of them in the kernel, in 5 cycles and 2 seconds.
fn value(tables: &Tables, name: &str) -> Option<f64> {
    let work = Event::raw(0x1c0).unverified();
    let count = |event: Event| {
        [(work, 30.0), (work.kernel(), 10.0), (Event::CYCLES, 5.0)]
            .into_iter()
            .find_map(|(known, count)| (known == event).then_some(count))
    };
    only(tables, name, Modes::AsDefined).compute(count, 2.0)
}

fn refusal(tables: &Tables, name: &str, modes: Modes) -> Refusal {
    only(tables, name, modes).formula.unwrap_err()
}

#[test]
fn a_processor_has_the_first_directory_whose_expression_is_its_whole_name() {
    let of = |text: &str| folder(LIST_TEXT, &processor(text));
    for (text, expected) in [
        ("GenuineIntel-6-55-4", "first"),
        ("GenuineIntel-6-55-7", "second"),
        ("GenuineIntel-6-5C-9", "second"),
        ("AuthenticAMD-23-31-0", "third"),
    ] {
        assert_eq!(of(text).unwrap(), expected, "{text}");
    }
    for text in ["GenuineIntel-6-1A-5", "GenuineIntel-6-AA-0", "GenuineIntel-6-155-0"] {
        let error = of(text).unwrap_err().to_string();
        assert_eq!(error, format!("this processor, {text}, is not in the list"));
    }
    let error = folder("heading\na,b\n", &processor("a-b-c-d")).unwrap_err().to_string();
    assert!(error.starts_with("`a,b` found"), "{error}");
    assert!(
        "GenuineIntel-6".parse::<Processor>().unwrap_err().ends_with("such as GenuineIntel-6-55-4")
    );
}

#[test]
fn metrics_are_computed_from_counts_and_from_each_other() {
    for (name, expected) in [
        ("Rate", Some(600.0)),
        ("rate", Some(600.0)),
        ("Twice", Some(42.0)),
        ("Doubled", Some(12.0)),
        ("Chosen", Some(30.0)),
        ("Bounds", Some(5.0)),
        ("Second", Some(0.015)),
        ("Share", Some(1.0 / 3.0)),
        ("There", Some(1.0)),
        ("Both", Some(2.0)),
    ] {
        assert_eq!(value(&tables(false), name), expected, "{name}");
    }
    let rate = only(&tables(false), "Rate", Modes::AsDefined);
    assert_eq!(rate.label(), "% Rate");
    assert_eq!(rate.compute(|_| Some(0.0), 1.0), None, "0 by 0");
    assert_eq!(rate.compute(|_| None, 1.0), None, "nothing was counted");
    assert_eq!(only(&tables(false), "Twice", Modes::AsDefined).label(), "Twice");
}

#[test]
fn only_what_the_machine_has_chosen_is_counted() {
    assert_eq!(value(&tables(false), "Cores"), Some(30.0));
    assert_eq!(value(&tables(true), "Threads"), Some(30.0));
    let refused = refusal(&tables(true), "Cores", Modes::AsDefined);
    assert_eq!(refused, Kind::OtherThread.refusal("SLOTS.ANY"));
}

#[test]
fn an_event_is_counted_once_in_the_modes_that_were_asked_for() {
    let of = |modes| only(&tables(false), "Twice", modes).formula.unwrap().events;
    let work = Event::raw(0x1c0).unverified();
    let [done, thread] = ["WORK.DONE", "CPU_CLK_UNHALTED.THREAD"];
    let named = |name: &str, suffix: &str| format!("{name}{suffix}");
    assert_eq!(of(Modes::AsDefined), [(work, named(done, "")), (Event::CYCLES, named(thread, ""))]);
    assert_eq!(
        of(Modes::User),
        [(work.user(), named(done, ":u")), (Event::CYCLES.user(), named(thread, ":u"))]
    );
    assert_eq!(of(Modes::Kernel)[1].0, Event::CYCLES.kernel());
    assert_eq!(refusal(&tables(false), "Share", Modes::User), Kind::Mode.refusal("WORK.DONE:k"));
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    for (name, expected) in [
        ("Bandwidth", "MEMORY is counted by another unit than a core"),
        ("First", "the metric first is computed from itself"),
        ("Broken", "malformed expression: the end found, a value expected"),
        ("Many", "the constant #num_packages is not known here"),
        ("Odd", "the function source_count of 1 is not supported"),
        ("Small", "Small (cpu_atom) is counted by another unit than a core"),
    ] {
        let found = refusal(&tables(false), name, Modes::AsDefined).to_string();
        assert_eq!(found, expected, "{name}");
    }
    let error = tables(false).named("Nothing", Modes::AsDefined).unwrap_err().to_string();
    assert!(error.starts_with("no metric and no group Nothing found in"), "{error}");
}

#[test]
fn a_group_is_all_of_its_metrics() {
    let found = tables(false).named("top", Modes::AsDefined).unwrap();
    let names: Vec<&str> = found.iter().map(|metric| &*metric.name).collect();
    assert_eq!(names, ["Bandwidth", "Rate", "Twice"]);
    assert_eq!(found[1].groups, ["Top", "Summary"]);
}

#[test]
fn directories_without_tables_are_refused_with_what_they_lack() {
    let root = directory("none");
    let read = |below: &str, cpu| Tables::read(&root.join(below), processor(cpu), false);
    let error_of = |below, cpu| format!("{:#}", read(below, cpu).unwrap_err());
    let intel = "GenuineIntel-6-55-4";
    assert!(read("arch/x86", intel).is_ok());
    assert!(error_of("arch/x86/first", intel).contains("a directory with mapfile.csv expected"));
    assert!(error_of("", "AuthenticAMD-23-31-0").contains("third: No such file"));
    fs::write(root.join("arch/x86/first/more.json"), "[{\"EventName\": 7}]").unwrap();
    assert!(error_of("", intel).contains("more.json: invalid type"), "{}", error_of("", intel));
    fs::create_dir(root.join("arch/x86/third")).unwrap();
    assert!(error_of("", "AuthenticAMD-23-31-0").ends_with("no events and no metrics found"));
    fs::remove_dir_all(root).unwrap();
}
