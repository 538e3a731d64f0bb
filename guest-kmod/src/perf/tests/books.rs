// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What perf's books have of an event, when perf stops or removes it.

use std::mem::take;

use super::*;
use crate::local::LocalVcpu;
use crate::perf::LocalEvents;
use crate::testing::Local;

#[test]
fn a_removed_event_was_stalled_until_where_the_books_end() {
    let machine = Machine::new();
    let mut local = Local::new(&machine, 1001);
    for began in [1_000, 7_000] {
        local.show_perfs(&Default::default()).unwrap();
        assert_eq!(machine.schedule(0, &[(event(0xc0, false), 0)]), [Ok(0)]);
        machine.revoke(0);
        machine.refuse(Some(Errno::PERM));
        local.books.times = [500, began - 100, began];
        local.continue_events(true, |local| local.with_cpu(|cpu| cpu.enable_events(None)));
        machine.refuse(None);
        local.books.times = [500, began + 400, began + 450];
        local.remove_event(0, false, false).unwrap();
        assert_eq!(take(&mut local.books.stalls), [(0, 0), (0, 400)]);
    }
}

#[test]
fn a_period_that_goes_on_has_as_many_events_as_it_had() {
    let machine = Machine::new();
    start_periods(&machine, &[(event(0xc0, true), 1_000, 1_000)]);
    let start = |period, left| machine.on(0, |cpu| cpu.start_event(0, period, left, 1_000));
    assert_eq!(start(3_000, 400), 1_000, "the longer one comes after this one");
    assert_eq!(start(400, 400), 1_000, "all of the shorter one is left");
    assert_eq!(start(300, 400), 300, "more is left than the shorter one has");
    assert_eq!([start(500, 0), start(500, -3)], [500; 2], "none goes on");
}

#[test]
fn an_event_that_overflows_just_before_it_is_stopped_is_in_its_next_period() {
    let machine = Machine::new();
    let mut local = Local::new(&machine, 1001);
    local.show_perfs(&Default::default()).unwrap();
    assert_eq!(machine.schedule(0, &[(event(0xc0, true), 1_000)]), [Ok(0)]);
    for (more, samples) in [(1_300, 1), (2_400, 2)] {
        machine.execute(0, more, 0);
        local.stop_event(0, true);
        let given = |(count, left)| (0, Progress { count, left, stalled: 0 });
        let left = 1_000 - more as i64;
        let next = left + 1_000 * samples as i64;
        assert_eq!(take(&mut local.books.progress), [(more, left), (0, next)].map(given));
        assert_eq!(take(&mut local.books.samples), [samples]);
        assert!(take(&mut local.books.report_due));
        local.with_cpu(|cpu| {
            cpu.disable_events();
            cpu.start_event(0, 1_000, 1_000, 0);
            cpu.enable_events(None);
        });
    }
}
