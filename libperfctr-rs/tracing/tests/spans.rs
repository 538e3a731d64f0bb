// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts spans by counters that the tests move themselves.
#![allow(missing_docs, reason = "these are tests")]

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use perfctr::nested::Source;
use perfctr::{Error, Event};
use perfctr_tracing::{SpanCounter, SpanCounts};
use tracing::{info, info_span};
use tracing_core::span::Id;
use tracing_core::{Dispatch, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

thread_local! {
    /// What this thread has executed.
    static EXECUTED: Cell<u64> = const { Cell::new(0) };
    /// Whether this thread's counters can be read.
    static IS_LOST: Cell<bool> = const { Cell::new(false) };
}

fn work(instructions: u64) {
    EXECUTED.set(EXECUTED.get() + instructions);
}

/// Counts what [`work`] is told, and 10 for each reading.
struct Fake;

impl Source for Fake {
    fn counts_into(&self, counts: &mut [u64]) -> Result<u32, Error> {
        if IS_LOST.get() {
            return Err(Error::Faulted);
        }
        work(10);
        counts[0] = EXECUTED.get();
        Ok(0)
    }
}

/// A layer that executes much, as one that prints does, also where it enters a span itself.
struct Busy;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Busy {
    fn on_new_span(&self, _: &tracing_core::span::Attributes<'_>, _: &Id, _: Context<'_, S>) {
        work(1_000);
    }

    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        work(1_000);
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        work(1_000);
    }

    fn on_event(&self, _: &tracing_core::Event<'_>, context: Context<'_, S>) {
        work(1_000);
        // Other layers find the counts of the span that the thread is in, as far as it was left.
        let span = context.lookup_current();
        let counts = span.and_then(|span| span.extensions().get::<SpanCounts>().copied());
        if let Some(counts) = counts {
            assert_eq!(counts.entered, 1);
        }
    }
}

/// Name, total, own, and how often it was entered.
type Report = (String, u64, u64, u64);

/// Has `body` be counted. Returns what was reported, and the errors.
fn reported(body: impl FnOnce(&Dispatch)) -> Vec<Report> {
    let (reports, errors) = reported_and_failed(body);
    assert_eq!(errors, [""; 0]);
    reports
}

fn reported_and_failed(body: impl FnOnce(&Dispatch)) -> (Vec<Report>, Vec<String>) {
    let (reports, errors) = (Arc::default(), Arc::default());
    let to: Arc<Mutex<Vec<Report>>> = Arc::clone(&reports);
    let failed: Arc<Mutex<Vec<String>>> = Arc::clone(&errors);
    let subscriber = SpanCounter::new(&[Event::INSTRUCTIONS.user()])
        .source(|| Ok(Box::new(Fake)))
        .on_error(move |error| failed.lock().unwrap().push(error.to_string()))
        .on_close(move |span| {
            work(1_000);
            assert_eq!(span.events().len(), 1);
            let report = (span.name().to_owned(), span.total()[0], span.own()[0], span.entered());
            to.lock().unwrap().push(report);
        })
        .around(tracing_subscriber::registry().with(Busy));
    let dispatch = Dispatch::new(subscriber);
    tracing::dispatcher::with_default(&dispatch, || body(&dispatch));
    drop(dispatch);
    let (reports, errors) = (reports.lock().unwrap(), errors.lock().unwrap());
    (reports.clone(), errors.clone())
}

fn report(name: &str, total: u64, own: u64, entered: u64) -> Report {
    (name.to_owned(), total, own, entered)
}

#[test]
fn spans_within_a_span_are_in_its_total_and_not_its_own() {
    let reports = reported(|_| {
        work(50);
        info_span!("outer").in_scope(|| {
            work(5);
            for _ in 0..2 {
                info_span!("inner").in_scope(|| work(7));
            }
            info!("what layers do with an event is not counted");
            work(1);
        });
        info_span!("empty").in_scope(|| ());
    });
    let inner = || report("inner", 7, 7, 1);
    assert_eq!(reports, [inner(), inner(), report("outer", 20, 6, 1), report("empty", 0, 0, 1)]);
}

#[test]
fn a_span_counts_while_it_is_entered_in_whichever_thread() {
    let reports = reported(|dispatch| {
        let span = info_span!("task");
        span.in_scope(|| work(3));
        work(100);
        span.in_scope(|| {
            info!("the span has counts already");
            work(4);
        });
        let there = (span.clone(), dispatch.clone());
        std::thread::spawn(move || {
            work(1_000_000);
            let (span, dispatch) = there;
            tracing::dispatcher::with_default(&dispatch, || span.in_scope(|| work(20)));
        })
        .join()
        .unwrap();
        let never = info_span!("never entered");
        drop(never);
    });
    assert_eq!(reports, [report("task", 27, 27, 3)]);
}

#[test]
fn a_span_that_is_entered_twice_is_counted_once() {
    let reports = reported(|_| {
        let span = info_span!("twice");
        span.in_scope(|| {
            work(1);
            span.in_scope(|| work(2));
            work(4);
        });
    });
    assert_eq!(reports, [report("twice", 7, 7, 2)]);
}

#[test]
fn spans_that_overlap_are_counted_from_entering_to_leaving() {
    let reports = reported(|_| {
        let one = info_span!("one").entered();
        work(1);
        let other = info_span!("other").entered();
        work(2);
        drop(one);
        work(4);
        drop(other);
    });
    // The registry closes a span after those that were made within it.
    assert_eq!(reports, [report("other", 6, 6, 1), report("one", 3, 1, 1)]);
}

#[test]
fn a_thread_that_cannot_be_counted_says_so_once_and_its_spans_go_on() {
    let errors = Arc::new(Mutex::new(Vec::new()));
    let to = errors.clone();
    let subscriber = SpanCounter::new(&[Event::INSTRUCTIONS.user()])
        .source(|| Err(Error::AlreadyOpen))
        .on_error(move |error| to.lock().unwrap().push(error.to_string()))
        .on_close(|span| panic!("{span:?} has no counts"))
        .around(tracing_subscriber::registry());
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..3 {
            info_span!("span").in_scope(|| {
                let current = tracing::Span::current();
                assert_eq!(current.metadata().unwrap().name(), "span");
            });
        }
    });
    assert_eq!(*errors.lock().unwrap(), ["the thread has counters already"]);
}

#[test]
fn spans_end_without_counts_when_the_counters_are_lost() {
    let (reports, errors) = reported_and_failed(|_| {
        info_span!("before").in_scope(|| work(1));
        info_span!("lost").in_scope(|| {
            IS_LOST.set(true);
            info_span!("within").in_scope(|| work(1));
            let current = tracing::Span::current();
            assert_eq!(current.metadata().unwrap().name(), "lost");
        });
        IS_LOST.set(false);
        info_span!("after").in_scope(|| work(1));
    });
    assert_eq!(reports, [report("before", 1, 1, 1)]);
    assert_eq!(errors, [Error::Faulted.to_string()]);
}

#[test]
fn the_thread_is_counted_anew_for_another_subscriber_and_not_for_two_at_once() {
    for _ in 0..2 {
        let reports = reported(|_| {
            info_span!("first").in_scope(|| {
                work(1);
                assert_eq!(reported(|_| info_span!("second").in_scope(|| work(2))), []);
            });
        });
        // What the other subscriber's layer executes is this one's program.
        assert_eq!(reports, [report("first", 3_003, 3_003, 1)]);
    }
}

#[test]
fn what_the_subscriber_inside_is_can_be_found() {
    reported(|dispatch| {
        assert!(dispatch.downcast_ref::<tracing_subscriber::Registry>().is_some());
        assert!(dispatch.downcast_ref::<Busy>().is_some());
        assert!(dispatch.downcast_ref::<u8>().is_none());
    });
}
