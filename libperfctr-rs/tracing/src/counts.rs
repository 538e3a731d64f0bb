// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What a span has counted, and who learns of it when the span is closed.

use std::fmt;
use std::sync::Arc;

use perfctr::nested::{Amount, Spent};
use perfctr::{Error, Event};
use tracing_core::span::Id;
use tracing_core::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// What a span has counted until it was left last. It is in the span's extensions.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SpanCounts {
    /// Everything that threads have counted between entering and leaving the span.
    pub total: Amount,
    /// What was not within another span that the thread had entered later.
    pub own: Amount,
    /// How often the span was left.
    pub entered: u64,
}

impl SpanCounts {
    pub(crate) const NONE: Self = Self { total: Amount::ZERO, own: Amount::ZERO, entered: 0 };

    /// Adds what was counted from entering the span to leaving it.
    pub(crate) fn add(&mut self, spent: &Spent) {
        self.own.add(&spent.own);
        if !spent.is_recursive {
            self.total.add(&spent.total);
        }
        self.entered += 1;
    }
}

/// A span that is closed, with its counts.
#[derive(Debug)]
pub struct Closed<'a> {
    metadata: &'static Metadata<'static>,
    events: &'a [Event],
    counts: &'a SpanCounts,
}

impl Closed<'_> {
    /// Returns the span's name.
    pub fn name(&self) -> &'static str {
        self.metadata.name()
    }

    /// Returns where the span is in the source, and what else is known of it.
    pub fn metadata(&self) -> &'static Metadata<'static> {
        self.metadata
    }

    /// Returns the events, in the order of the counts.
    pub fn events(&self) -> &[Event] {
        self.events
    }

    /// Returns what was counted while the span was entered, for each event.
    pub fn total(&self) -> &[u64] {
        self.used(&self.counts.total)
    }

    /// Returns what was counted while the span was entered and no other span within it was.
    pub fn own(&self) -> &[u64] {
        self.used(&self.counts.own)
    }

    /// Returns how often the span was entered and left.
    pub fn entered(&self) -> u64 {
        self.counts.entered
    }

    /// Returns how many readings were disturbed. Each adds a constant to the counts.
    pub fn retries(&self) -> u64 {
        self.counts.own.retries
    }

    fn used<'a>(&self, amount: &'a Amount) -> &'a [u64] {
        amount.counts.get(..self.events.len()).unwrap_or_default()
    }
}

type OnClose = dyn Fn(&Closed<'_>) + Send + Sync;
type OnError = dyn Fn(&Error) + Send + Sync;

/// What all threads of a subscriber have in common.
pub(crate) struct Common {
    pub(crate) events: Vec<Event>,
    pub(crate) on_close: Option<Box<OnClose>>,
    pub(crate) on_error: Box<OnError>,
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common").field("events", &self.events).finish_non_exhaustive()
    }
}

/// Reports spans that are closed. It is a layer, since only layers learn of that.
#[derive(Debug)]
pub(crate) struct Reporter(pub(crate) Arc<Common>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Reporter {
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(on_close) = &self.0.on_close else { return };
        let Some(span) = context.span(&id) else { return };
        let counts = span.extensions().get::<SpanCounts>().copied();
        if let Some(counts) = counts {
            on_close(&Closed {
                metadata: span.metadata(),
                events: &self.0.events,
                counts: &counts,
            });
        }
    }
}
