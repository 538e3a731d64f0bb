// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The sequence protocol under loom's memory model, with a reader on another CPU.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p shared-abi --test loom_seq`
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use shared_abi::seq::Seq;
use shared_abi::sync::AtomicU64;
use shared_abi::sync::Ordering::Relaxed;

/// A page of two words that belong together.
#[derive(Default)]
struct Page {
    seq: Seq,
    words: [AtomicU64; 2],
}

impl Page {
    fn write(&self, writes: &mut u64, value: u64) {
        let _guard = self.seq.write(writes);
        for word in &self.words {
            word.store(value, Relaxed);
        }
    }

    /// Makes one attempt of a reader.
    fn read(&self) -> Option<[u64; 2]> {
        let stamp = self.seq.stamp();
        let words = self.words.each_ref().map(|word| word.load(Relaxed));
        self.seq.is_valid(stamp).then_some(words)
    }
}

#[test]
fn a_reader_never_accepts_a_torn_page() {
    loom::model(|| {
        let page = Arc::new(Page::default());
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                let mut writes = 0;
                page.write(&mut writes, 1);
                page.write(&mut writes, 2);
            })
        };
        if let Some([first, second]) = page.read() {
            assert_eq!(first, second);
        }
        writer.join().unwrap();
        assert_eq!(page.read(), Some([2, 2]), "a quiet page is read at once");
    });
}

/// Without the check, the model finds what the protocol prevents.
#[test]
#[should_panic(expected = "torn")]
fn a_reader_that_does_not_check_sees_a_torn_page() {
    loom::model(|| {
        let page = Arc::new(Page::default());
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.write(&mut 0, 1))
        };
        let [first, second] = page.words.each_ref().map(|word| word.load(Relaxed));
        assert_eq!(first, second, "torn");
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_never_goes_back_in_time() {
    loom::model(|| {
        let page = Arc::new(Page::default());
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.write(&mut 0, 1))
        };
        if let (Some(first), Some(second)) = (page.read(), page.read()) {
            assert!(second >= first);
        }
        writer.join().unwrap();
    });
}

/// Reads both words of two pages, of which one names the other, as in a thread's read.
#[test]
fn two_pages_are_read_as_one() {
    loom::model(|| {
        let pages = Arc::new([Page::default(), Page::default()]);
        let writer = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || {
                // A fold moves a count from the second page to the first: their sum is constant.
                let (mut outer, mut inner) = (0, 0);
                let _guard = pages[0].seq.write(&mut outer);
                pages[0].words[0].store(5, Relaxed);
                let _guard = pages[1].seq.write(&mut inner);
                pages[1].words[0].store(5u64.wrapping_neg(), Relaxed);
            })
        };
        let outer = pages[0].seq.stamp();
        let inner = pages[1].seq.stamp();
        let sum = pages[0].words[0].load(Relaxed).wrapping_add(pages[1].words[0].load(Relaxed));
        let load = |word: &AtomicU64| word.load(Relaxed);
        let changed = pages[1].seq.change(inner, load) | pages[0].seq.change(outer, load);
        if changed == 0 {
            assert_eq!(sum, 0);
        }
        writer.join().unwrap();
    });
}
