// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares the dashboard for Grafana and the alerts for Prometheus, which are in `packaging`, with
//! the contents of a scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use perfctr::Event;
use perfctr::watch::Total;
use serde_json::Value;

use super::{Row, Scrape};

/// The labels of each metric of a scrape.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// The labels that Prometheus itself gives every series.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns what a scrape of processes, groups and domains prints.
fn metrics() -> Metrics {
    let row = |executed| Row {
        domain: Some(1),
        name: "web".into(),
        vcpu: 0,
        executed,
        hypervisor: executed,
        sum: 2,
    };
    let labelled = |labels: &[&'static str]| {
        vec![(
            labels.iter().map(|&label| (label, "1".to_owned())).collect(),
            vec![Total::default()],
        )]
    };
    let scrape = Scrape {
        events: vec![Event::INSTRUCTIONS.user()],
        processes: labelled(&["pid"]),
        threads: labelled(&["pid", "tid", "name"]),
        cgroups: labelled(&["cgroup"]),
        domains: vec![row(Some(1)), row(None)],
    };
    let mut metrics = Metrics::new();
    for line in scrape.text().unwrap().lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, _) = rest.split_once('}').unwrap();
        let labels = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0.into()));
        metrics.entry(name.to_owned()).or_default().extend(labels);
    }
    metrics
}

/// Returns the words of a text, and what is between braces or brackets behind each.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    fn is_no_letter(c: char) -> bool {
        !c.is_ascii_alphanumeric() && c != '_'
    }
    text.split_inclusive(is_no_letter).scan(0, move |end, part| {
        let word = part.trim_end_matches(is_no_letter);
        *end += part.len();
        Some((word, &text[*end - part.len() + word.len()..]))
    })
}

/// Returns what is between these two characters at the beginning of a text, but for white space.
fn between(text: &str, [open, close]: [char; 2]) -> Option<&str> {
    text.trim_start().strip_prefix(open)?.split_once(close).map(|(inside, _)| inside)
}

/// Returns the metrics of an expression of Prometheus, and the faults of the expression.
fn wrong(expression: &str, metrics: &Metrics) -> (BTreeSet<String>, Vec<String>) {
    let (mut used, mut faults) = (BTreeSet::new(), Vec::new());
    let mut grouped = Vec::new();
    for (word, rest) in words(expression) {
        if ["by", "without", "on", "ignoring"].contains(&word) {
            // A label may have this name, too.
            let labels = between(rest, ['(', ')']).into_iter().flat_map(|list| list.split(','));
            grouped.extend(labels.map(|label| label.trim().to_owned()));
        }
        if !word.starts_with("perfctr_") {
            continue;
        }
        let Some(labels) = metrics.get(word) else {
            faults.push(format!("no metric is called {word}"));
            continue;
        };
        used.insert(word.to_owned());
        for matcher in between(rest, ['{', '}']).unwrap_or_default().split(", ") {
            let label = matcher.split(['=', '!']).next().unwrap_or_default().trim();
            if !label.is_empty() && !labels.contains(label) && !OF_PROMETHEUS.contains(&label) {
                faults.push(format!("{word} has no label {label}"));
            }
        }
    }
    faults.extend(labels_missing(grouped.iter().map(String::as_str), &used, metrics));
    (used, faults)
}

/// Returns those of these labels that some of these metrics lack.
fn labels_missing<'a>(
    labels: impl Iterator<Item = &'a str>,
    used: &BTreeSet<String>,
    metrics: &Metrics,
) -> Vec<String> {
    let missing = |label: &&str| {
        !OF_PROMETHEUS.contains(label) && used.iter().any(|name| !metrics[name].contains(*label))
    };
    labels.filter(missing).map(|label| format!("{used:?} have no label {label}")).collect()
}

/// Returns the labels that a text has in double braces, behind this beginning.
fn templates<'a>(text: &'a str, beginning: &'a str) -> impl Iterator<Item = &'a str> {
    text.split("{{")
        .skip(1)
        .filter_map(move |rest| rest.split("}}").next()?.trim().strip_prefix(beginning))
}

#[test]
fn what_is_misspelt_is_found() {
    let metrics = metrics();
    let process = &metrics["perfctr_process_events_total"];
    assert_eq!(process.iter().map(String::as_str).collect::<Vec<_>>(), ["event", "pid"]);
    for (expression, fault) in [
        ("rate(perfctr_process_events[5m])", "no metric is called perfctr_process_events"),
        ("perfctr_process_events_total{process=\"1\"}", "has no label process"),
        ("perfctr_process_events_total{pid=\"1\", Event!~\"x\"}", "has no label Event"),
        ("sum by (pid, cgroup) (perfctr_process_events_total)", "have no label cgroup"),
    ] {
        let (_, faults) = wrong(expression, &metrics);
        assert!(faults.len() == 1 && faults[0].contains(fault), "{expression}: {faults:?}");
    }
    let right =
        "sum by (instance, pid) (rate(perfctr_process_events_total{event=\"cycles:u\"}[5m]))";
    assert_eq!(wrong(right, &metrics).1, [""; 0]);
}

#[test]
fn the_dashboard_shows_what_a_scrape_has() {
    let metrics = metrics();
    let dashboard: Value = serde_json::from_str(&file("grafana/perfctr.json")).unwrap();
    let mut shown = BTreeSet::new();
    let (mut ids, mut tiles) = (BTreeSet::new(), BTreeSet::new());
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its number is another's");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|of| panel["gridPos"][of].as_u64().unwrap());
        assert!(x + w <= 24, "{title} is wider than Grafana's 24 columns");
        for tile in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(tiles.insert(tile), "{title} covers another panel");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["type"], "timeseries", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let expression = target["expr"].as_str().unwrap();
            let (used, faults) = wrong(expression, &metrics);
            assert_eq!(faults, [""; 0], "{title}: {expression}");
            assert!(!used.is_empty(), "{title}: {expression}");
            let legend = templates(target["legendFormat"].as_str().unwrap(), "");
            assert_eq!(labels_missing(legend, &used, &metrics), [""; 0], "{title}");
            shown.extend(used);
        }
    }
    // Every family must be shown. Times are shown only where events take turns.
    for name in metrics.keys().filter(|name| name.contains("_events_")) {
        assert!(shown.contains(name), "{name} is in no panel");
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<&str> = variables.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["datasource", "instance", "event"]);
    for (name, field) in [("title", "perfctr"), ("uid", "perfctr")] {
        assert_eq!(dashboard[name], field);
    }
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36, "a schema of Grafana 9 or later");
    // It must not replace another dashboard of the person who imports it.
    assert!(dashboard.get("id").is_none_or(Value::is_null));
}

#[test]
fn alerts_are_about_what_a_scrape_has() {
    let metrics = metrics();
    for path in ["prometheus/perfctr.yml", "prometheus/perfctr_test.yml"] {
        let text = file(path);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let (used, faults) = wrong(&lines.join("\n"), &metrics);
        // The labels by which several metrics are grouped are compared rule by rule.
        let faults: Vec<_> = faults.iter().filter(|fault| !fault.contains("have no")).collect();
        assert!(faults.is_empty() && !used.is_empty(), "{path}: {faults:?}");
    }
    let text = file("prometheus/perfctr.yml");
    let rules: Vec<&str> = text.split("- alert: ").skip(1).collect();
    assert_eq!(rules.len(), 4);
    for rule in rules {
        let (_, expression) = rule.split_once("expr: ").unwrap();
        let (expression, _) = expression.split_once("for: ").unwrap();
        let (used, faults) = wrong(expression, &metrics);
        assert_eq!(faults, [""; 0], "{expression}");
        let labels = templates(rule, "$labels.");
        assert_eq!(labels_missing(labels, &used, &metrics), [""; 0], "{expression}");
    }
}
