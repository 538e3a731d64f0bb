// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The tables of regions that threads have taken, whose texts C reads.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr;

use perfctr::Event;
use perfctr::regions::{self, Row};

use crate::status::{Failure, Status};
use crate::{EVENTS_MAX, RegionRow};

/// A table with the texts that C reads.
#[derive(Debug)]
struct Taken {
    events: Vec<CString>,
    /// Each row with the region's and the thread's name.
    rows: Vec<(Row, CString, CString)>,
    text: CString,
}

thread_local! {
    static TAKEN: RefCell<Option<Taken>> = const { RefCell::new(None) };
}

/// Returns a text for C, which ends at a byte that would end it there.
fn in_c(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// Chooses what regions count.
pub fn count(list: &str) -> Result<(), Failure> {
    let events = if list.is_empty() { Vec::new() } else { Event::list(list)? };
    Ok(regions::count(&events)?)
}

/// Takes the table for the calling thread. Returns the number of its rows.
pub fn take() -> Result<u32, Failure> {
    let table = regions::table();
    let text = in_c(&table.to_string());
    let events = table.events.iter().map(|event| in_c(&event.to_string())).collect();
    let with_names = |row: Row| {
        let (region, thread) = (in_c(&row.region), in_c(&row.thread_name));
        (row, region, thread)
    };
    let rows: Vec<_> = table.rows.into_iter().map(with_names).collect();
    let number = rows.len() as u32;
    let kept = TAKEN.try_with(|taken| *taken.borrow_mut() = Some(Taken { events, rows, text }));
    kept.map_err(|_| Failure::new(Status::Region, "this thread ends, and cannot take a table"))?;
    Ok(number)
}

/// Calls `f` with the calling thread's table, if it has taken one.
fn taken<T>(f: impl FnOnce(&Taken) -> T) -> Option<T> {
    TAKEN.try_with(|taken| taken.borrow().as_ref().map(f)).ok().flatten()
}

/// Returns a row of the calling thread's table.
pub fn row(number: u32) -> Result<RegionRow, Failure> {
    let found = taken(|taken| {
        let rows = taken.rows.len();
        let row = taken.rows.get(number as usize).map(|(row, region, thread)| RegionRow {
            region: region.as_ptr(),
            thread_name: thread.as_ptr(),
            calls: row.calls,
            open: row.open,
            total: counts(&row.total),
            own: counts(&row.own),
            retries: row.retries,
            thread: row.thread,
            events: taken.events.len() as u32,
            reserved: [0; 4],
        });
        row.ok_or_else(|| {
            Failure::argument(&format!("row {number} found, less than {rows} expected"))
        })
    });
    found.unwrap_or_else(|| {
        Err(Failure::argument("this thread has taken no table: perfctr_region_table() takes it"))
    })
}

fn counts(counts: &[u64]) -> [u64; EVENTS_MAX] {
    std::array::from_fn(|n| counts.get(n).copied().unwrap_or_default())
}

/// Returns the name of an event of the calling thread's table, or null.
pub fn event(number: u32) -> *const c_char {
    let name = |taken: &Taken| taken.events.get(number as usize).map(|name| name.as_ptr());
    taken(name).flatten().unwrap_or(ptr::null())
}

/// Returns the calling thread's table as a text, or null.
pub fn text() -> *const c_char {
    taken(|taken| taken.text.as_ptr()).unwrap_or(ptr::null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_reads_the_table_that_it_has_taken() {
        assert!(text().is_null() && event(0).is_null());
        assert!(row(0).unwrap_err().text.contains("perfctr_region_table() takes it"));
        count("").unwrap();
        regions::start("one\0two").unwrap();
        assert_eq!(take().unwrap(), 1);
        regions::stop("one\0two").unwrap();
        let found = row(0).unwrap();
        assert_eq!((found.calls, found.open, found.thread, found.events), (0, 1, 1, 0));
        assert_eq!(found.total, [0; EVENTS_MAX]);
        assert_eq!(row(1).unwrap_err().text, "row 1 found, less than 1 expected");
        assert!(!text().is_null() && event(0).is_null());
        assert_eq!(in_c("one\0two").as_bytes(), b"one");
        assert!(std::thread::spawn(|| row(0).is_err()).join().unwrap());
        assert_eq!(count("cycels").unwrap_err().status, Status::Event);
        assert_eq!(count("cycles:u").unwrap_err().status, Status::Region);
    }
}
