// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The calling thread's counters.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use perfctr::Error;
use perfctr::nested::{Calibration, Nested, Pieces, Progress, Source};

use crate::counts::Common;

/// The spans that a thread has entered, by their numbers.
pub(crate) type Spans = Pieces<u64>;

/// What a call of a subscriber does, as far as calibrating must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Enter,
    Exit,
    Other,
}

/// A thread that is counted for a subscriber, as long as the subscriber lives.
struct Thread {
    subscriber: Weak<Common>,
    /// The counters, or `None` if the thread cannot be counted.
    spans: Option<Nested<u64, Box<dyn Source>>>,
    /// It exists until the cost of an empty span is known.
    calibration: Option<Calibration>,
    progress: Progress,
}

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

/// Whether the counters have bracketed a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bracketed {
    /// They have, and the call was made.
    Yes,
    /// This thread is not counted for this subscriber yet, and the call was not made.
    NotYet,
    /// They have not, and the call was not made.
    No,
}

/// Makes a call of a subscriber, and leaves out what it counts.
#[inline(never)]
pub(crate) fn bracket(
    subscriber: &Arc<Common>,
    call: Call,
    inner: &mut dyn FnMut(&mut Spans),
) -> Bracketed {
    // It is borrowed if the call of a subscriber makes another one, or lost if the thread ends.
    THREAD
        .try_with(|thread| match thread.try_borrow_mut() {
            Ok(mut thread) => match thread.as_mut() {
                Some(thread) if thread.subscriber.as_ptr() == Arc::as_ptr(subscriber) => {
                    thread.bracket(subscriber, call, inner)
                }
                Some(thread) if thread.subscriber.strong_count() > 0 => Bracketed::No,
                _ => Bracketed::NotYet,
            },
            Err(_) => Bracketed::No,
        })
        .unwrap_or(Bracketed::No)
}

/// Has the calling thread be counted for this subscriber, if it can be. `empty` enters and leaves
/// a span without work.
pub(crate) fn open(
    subscriber: &Arc<Common>,
    source: &dyn Fn() -> Result<Box<dyn Source>, Error>,
    empty: &dyn Fn(),
) {
    let opened = replace(None)
        .and_then(|()| Nested::new(source()?, subscriber.events.len()))
        .and_then(|spans| {
            let calibration = Some(Calibration::default());
            replace(Some(Thread::new(subscriber, Some(spans), calibration)))?;
            Calibration::run(|| {
                empty();
                Ok(progress())
            })
        });
    if let Err(error) = opened {
        replace(Some(Thread::new(subscriber, None, None))).ok();
        (subscriber.on_error)(&error);
    }
}

/// Puts this in place of what is known of the calling thread. What is known of it for a subscriber
/// that is gone has a session, which is closed before another can be opened.
fn replace(with: Option<Thread>) -> Result<(), Error> {
    THREAD
        .try_with(|thread| thread.try_borrow_mut().map(|mut thread| *thread = with).ok())
        .ok()
        .flatten()
        .ok_or(Error::AlreadyOpen)
}

fn progress() -> Progress {
    THREAD.with_borrow(|thread| thread.as_ref().map_or(Progress::Disturbed, |one| one.progress))
}

impl Thread {
    fn new(
        subscriber: &Arc<Common>,
        spans: Option<Nested<u64, Box<dyn Source>>>,
        calibration: Option<Calibration>,
    ) -> Self {
        let subscriber = Arc::downgrade(subscriber);
        Self { subscriber, spans, calibration, progress: Progress::More }
    }

    #[inline(always)]
    fn bracket(
        &mut self,
        subscriber: &Common,
        call: Call,
        inner: &mut dyn FnMut(&mut Spans),
    ) -> Bracketed {
        let Self { spans: Some(spans), calibration, progress, .. } = self else {
            return Bracketed::No;
        };
        let mut made = false;
        let read = spans.aside(&mut |spans| {
            made = true;
            match calibration {
                None => inner(spans),
                Some(_) if call != Call::Exit => {}
                Some(first) => {
                    *progress = first.note(spans);
                    if *progress == Progress::Done {
                        *calibration = None;
                    }
                }
            }
        });
        match read {
            Ok(()) => Bracketed::Yes,
            Err(error) => self.lost(subscriber, &error, made),
        }
    }

    /// Gives up counting a thread whose counters cannot be read any more.
    #[cold]
    fn lost(&mut self, subscriber: &Common, error: &Error, made: bool) -> Bracketed {
        self.spans = None;
        self.progress = Progress::Disturbed;
        (subscriber.on_error)(error);
        if made { Bracketed::Yes } else { Bracketed::No }
    }
}
