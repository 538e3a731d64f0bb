// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests metrics from a vendor's tables, which are this test's own.

use std::fs;

use serde_json::Value;

use crate::run::{Printed, file, output_of, perfctr};

const METRICS: &str = r#"[
    {"EventName": "WORK.DONE", "EventCode": "0xc4", "UMask": "0x1"},
    {"EventName": "MEMORY", "EventCode": "0x1", "Unit": "iMC"},
    {"MetricName": "Share", "MetricExpr": "WORK.DONE / (WORK.DONE + WORK.DONE)",
     "MetricGroup": "Top", "ScaleUnit": "100%", "BriefDescription": "Half of the work"},
    {"MetricName": "Twice", "MetricExpr": "2 * WORK.DONE"},
    {"MetricName": "Far", "MetricExpr": "MEMORY", "MetricGroup": "Top;Distant"}
]"#;

/// Runs the command with tables for any processor.
fn with_tables(line: &str) -> Printed {
    let tables = file("tables");
    fs::create_dir_all(tables.join("any")).unwrap();
    fs::write(tables.join("mapfile.csv"), "heading\n.*,v1,any,core\n").unwrap();
    fs::write(tables.join("any/all.json"), METRICS).unwrap();
    output_of(perfctr(line.split(' ')).env("PERFCTR_TABLES", tables))
}

#[test]
fn a_vendors_metric_is_counted_by_its_name() {
    let table = with_tables("stat -M Share:u true");
    assert_eq!(table.status, 0, "{table:?}");
    assert!(table.err.contains("  WORK.DONE:u  "), "{table:?}");
    assert!(table.err.contains("              50.000  % Share\n"), "{table:?}");
    let json = with_tables("stat -M share:u --json true");
    let json: Value = serde_json::from_str(&json.err).unwrap();
    assert_eq!(json["events"].as_array().unwrap().len(), 1, "{json}");
    assert_eq!(json["metrics"], serde_json::json!([{ "value": 50.0, "unit": "% Share" }]));
    let both = with_tables("stat -M ipc,Share:u --csv true");
    let lines: Vec<&str> = both.err.lines().collect();
    assert_eq!(lines.len(), 6, "{both:?}");
    assert!(lines[2].contains(",WORK.DONE:u,") && lines[5] == ",,,,,50.00,% Share", "{both:?}");
}

#[test]
fn what_a_metric_needs_is_counted_once_by_the_name_that_was_asked_for() {
    let printed = with_tables("stat --csv --unverified -e r1c4:u -M Share:u true");
    let lines: Vec<&str> = printed.err.lines().collect();
    assert_eq!((printed.status, lines.len()), (0, 2), "{printed:?}");
    assert!(lines[0].contains(",r1c4:u,") && lines[1] == ",,,,,50.00,% Share", "{printed:?}");
}

#[test]
fn what_several_metrics_need_is_counted_once() {
    let printed = with_tables("stat -M Share:u,Twice:u,Share:u --json true");
    assert_eq!(printed.status, 0, "{printed:?}");
    let json: Value = serde_json::from_str(&printed.err).unwrap();
    let names = json["events"].as_array().unwrap().iter().map(|event| event["event"].as_str());
    assert_eq!(names.collect::<Vec<_>>(), [Some("WORK.DONE:u")], "{json}");
    assert_eq!(json["metrics"].as_array().unwrap().len(), 3, "{json}");
}

#[test]
fn a_metric_that_cannot_be_computed_says_why() {
    let far = with_tables("stat -M Far true");
    assert_eq!(far.status, 125, "{far:?}");
    let why = "the metric Far cannot be computed: MEMORY is counted by another unit than a core";
    assert!(far.err.contains(why), "{far:?}");
    let group = with_tables("stat -M Top:u true");
    assert!(group.status == 0 && group.err.contains("50.000  % Share"), "{group:?}");
    assert!(group.err.contains("perfctr: Far is left out: MEMORY is counted"), "{group:?}");
    let unknown = with_tables("stat -M Nearby true");
    assert!(unknown.err.contains("no metric and no group Nearby found in"), "{unknown:?}");
    let none = output_of(&mut perfctr("stat -M ipcc --tables /nonexistent true".split(' ')));
    assert_eq!(none.status, 125, "{none:?}");
    let why = "the metric ipcc is none of ipc, branches, caches";
    assert!(none.err.contains(why) && none.err.contains("in /nonexistent,"), "{none:?}");
}

#[test]
fn the_metrics_of_the_tables_are_listed() {
    let list = with_tables("list --metrics");
    assert_eq!(list.status, 0, "{list:?}");
    let line = |name: &str, can: &str| format!("{name:<40} {can}\n");
    assert!(list.out.contains(&(line("Share", "yes") + "    Half of the work\n")), "{list:?}");
    let why = "no: MEMORY is counted by another unit than a core";
    assert!(list.out.contains(&line("Far", why)), "{list:?}");
    let json = with_tables("list --metrics --json --cpu AuthenticAMD-23-31-0");
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["cpu"], "AuthenticAMD-23-31-0");
    let metrics = json["metrics"].as_array().unwrap();
    assert_eq!(metrics[0]["refused"]["kind"], "other-unit", "{json}");
    assert_eq!(metrics[1]["events"], serde_json::json!([["WORK.DONE", "r1c4"]]), "{json}");
}
