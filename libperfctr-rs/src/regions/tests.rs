// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the regions without real counters. The tests of `nested` and those in the guest check the
//! counts.

use std::cell::Cell;

use super::*;

/// Starts and stops regions of a table that no other test has.
struct Alone {
    shared: Shared,
    pieces: Nested<Arc<str>, FiveEach>,
}

/// A source that counts five from each reading to the next, and reports each reading as disturbed
/// once.
struct FiveEach(Cell<u64>);

impl crate::nested::Source for FiveEach {
    fn counts_into(&self, counts: &mut [u64]) -> Result<u32, Error> {
        self.0.set(self.0.get() + 5);
        counts.fill(self.0.get());
        Ok(1)
    }
}

impl Alone {
    fn new() -> Self {
        let mut shared = Shared::new();
        shared.threads.extend(["main".to_owned(), "x\u{1b}y".to_owned()]);
        Self { shared, pieces: Nested::new(FiveEach(Cell::new(0)), 1).unwrap() }
    }

    fn apply(&mut self, operation: Operation, name: &str) -> Result<(), Error> {
        let Self { shared, pieces } = self;
        let mut result = Ok(());
        pieces.aside(&mut |pieces| result = shared.apply(operation, name, 1, pieces))?;
        result
    }
}

fn text(result: Result<(), Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn what_is_stopped_must_have_been_started_by_the_same_thread() {
    let mut alone = Alone::new();
    assert_eq!(
        text(alone.apply(Operation::Stop, "a\u{7}")),
        "this thread has stopped `a\\u{7}`, which it has not started: it is in no region"
    );
    alone.apply(Operation::Start, "a").unwrap();
    alone.apply(Operation::Start, "b").unwrap();
    assert_eq!(
        text(alone.apply(Operation::Stop, "c")),
        "this thread has stopped `c`, which it has not started: it is in `b`, in `a`"
    );
    let unnamed = text(alone.apply(Operation::Start, ""));
    assert_eq!(unnamed, "a region without a name found, a name expected");
    assert_eq!(alone.shared.table().rows.len(), 2, "what is refused has no row");
}

#[test]
fn a_table_has_calls_and_what_was_not_stopped() {
    let mut alone = Alone::new();
    for operation in [Operation::Start, Operation::Start, Operation::Stop] {
        alone.apply(operation, "twice").unwrap();
    }
    let table = alone.shared.table();
    let [row] = &table.rows[..] else { panic!("{table}") };
    assert_eq!((row.region.as_str(), row.thread, row.calls, row.open), ("twice", 1, 1, 1));
    assert_eq!((&row.own[..], &row.total[..], row.retries), (&[5][..], &[0][..], 1));
    alone.apply(Operation::Stop, "twice").unwrap();
    let table = alone.shared.table();
    assert_eq!((table.rows[0].calls, table.rows[0].open), (2, 0));
}

#[test]
fn a_recursive_region_is_in_its_total_once() {
    let mut alone = Alone::new();
    for operation in [Operation::Start, Operation::Start, Operation::Stop, Operation::Stop] {
        alone.apply(operation, "a").unwrap();
    }
    let row = &alone.shared.table().rows[0];
    assert_eq!((&row.total[..], &row.own[..], row.calls), (&[15][..], &[15][..], 2));
}

#[test]
fn a_table_is_printed_in_columns() {
    let row =
        |region: &str, thread, thread_name: &str, calls, open, counts: [u64; 2], retries| Row {
            region: region.into(),
            thread,
            thread_name: thread_name.into(),
            calls,
            open,
            total: vec![counts[0]],
            own: vec![counts[1]],
            retries,
        };
    let rows = vec![
        row("sieve", 1, "main", 12, 0, [1_234_567, 4_567], 0),
        row("sieve", 2, "x\u{1b}y", 1, 2, [999, 0], 1_000),
    ];
    let table = Table { events: vec![Event::INSTRUCTIONS.user()], rows };
    assert_eq!(
        table.to_string(),
        "\
region  thread      calls  instructions:u    own
sieve   1 main         12       1,234,567  4,567
sieve   2 x\\u{1b}y      1             999      0
`sieve` was started 2 times in thread 2 and not stopped
`sieve`: 1,000 readings were disturbed in thread 2, which adds a constant each
"
    );
}

#[test]
fn events_are_chosen_before_the_first_region() {
    let mut shared = Shared::new();
    let [a, b] = [Event::CYCLES.user(), Event::BRANCHES.user()];
    assert_eq!(shared.events(), [Event::INSTRUCTIONS.user()]);
    shared.count(&[a]).unwrap();
    shared.count(&[a, b]).unwrap();
    shared.threads.push(String::new());
    shared.count(&[a, b]).unwrap();
    let refused = text(shared.count(&[b]));
    assert!(refused.starts_with("regions count cycles:u,branches:u since the first"), "{refused}");
    assert!(refused.contains("cannot count branches:u from now on"), "{refused}");
    assert_eq!(shared.events(), [a, b]);
}

#[test]
fn a_child_counts_the_events_of_its_parent_and_has_none_of_its_regions() {
    let mut alone = Alone::new();
    alone.shared.generation = Some(Generation::current());
    alone.shared.events = Some(vec![Event::CYCLES.user()]);
    alone.apply(Operation::Start, "parent").unwrap();
    alone.shared.come_to(Generation::current());
    assert_eq!(alone.shared.table().rows.len(), 1, "the same process keeps its regions");
    alone.shared.come_to(Generation::of_child());
    let Table { events, rows } = alone.shared.table();
    assert_eq!((&events[..], rows.len()), (&[Event::CYCLES.user()][..], 0));
    alone.shared.count(&[Event::BRANCHES.user()]).expect("its own first region is yet to come");
}

#[test]
fn threads_have_rows_of_their_own_that_outlive_them() {
    // No other test of this process uses the process's table.
    count(&[]).unwrap();
    let ended = std::thread::spawn(|| {
        start("ended").unwrap();
        start("ended").unwrap();
        stop("ended").unwrap();
        let _inner = enter("inner").unwrap();
    });
    ended.join().unwrap();
    start("ended").unwrap();
    assert!(matches!(Session::open(), Err(Error::AlreadyOpen)), "this thread counts already");
    stop("ended").unwrap();
    assert_eq!(stop("inner").map_err(|error| error.to_string().contains("no region")), Err(true));
    let table = table();
    let rows: Vec<_> = table
        .rows
        .iter()
        .map(|row| (row.region.as_str(), row.thread, row.calls, row.open))
        .collect();
    assert_eq!(rows, [("ended", 1, 1, 1), ("ended", 2, 1, 0), ("inner", 1, 1, 0)]);
    assert!(table.to_string().contains("`ended` was started once in thread 1 and not stopped"));
}

#[test]
fn the_table_is_printed_once_however_often_that_is_asked_for() {
    let (registered, calls) = (Mutex::new(false), Cell::new(0));
    let ask = |result: io::Result<()>| {
        let result = register_once(&registered, || {
            calls.set(calls.get() + 1);
            result
        });
        (result.is_ok(), calls.get())
    };
    assert_eq!(ask(Err(io::ErrorKind::OutOfMemory.into())), (false, 1));
    assert_eq!(ask(Ok(())), (true, 2), "the first time has failed");
    assert_eq!(ask(Ok(())), (true, 2));
}
