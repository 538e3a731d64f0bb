// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The subscriber that counts around another one.
#![expect(unsafe_code, reason = "a downcast to what the subscriber inside has")]

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use perfctr::nested::Source;
use perfctr::{Error, Event, Session};
use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::subscriber::Interest;
use tracing_core::{Dispatch, LevelFilter, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Layered;
use tracing_subscriber::registry::LookupSpan;

use crate::counts::{Closed, Common, Reporter, SpanCounts};
use crate::thread::{Bracketed, Call, Spans, bracket, open};

type Open = dyn Fn() -> Result<Box<dyn Source>, Error> + Send + Sync;

/// What spans count, and who learns of it.
pub struct SpanCounter {
    common: Common,
    open: Box<Open>,
}

impl SpanCounter {
    /// Counts these events. Each thread opens its counters when it enters its first span.
    pub fn new(events: &[Event]) -> Self {
        let list = events.to_vec();
        let open = move || {
            let mut session = Session::open()?;
            session.start(&list)?;
            Ok(Box::new(session) as Box<dyn Source>)
        };
        let said = AtomicBool::new(false);
        let on_error = Box::new(move |error: &Error| {
            // ATOMICS: one of several threads prints, whichever it is.
            if !said.swap(true, Ordering::Relaxed) {
                eprintln!("spans are not counted: {error}");
            }
        });
        let common = Common { events: events.to_vec(), on_close: None, on_error };
        Self { common, open: Box::new(open) }
    }

    /// Calls `report` with each span that is closed and has been counted, in the thread that closes
    /// it. What it executes is in no span.
    #[must_use]
    pub fn on_close(mut self, report: impl Fn(&Closed<'_>) + Send + Sync + 'static) -> Self {
        self.common.on_close = Some(Box::new(report));
        self
    }

    /// Calls `report` in each thread that cannot be counted, in place of printing the first error.
    #[must_use]
    pub fn on_error(mut self, report: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.common.on_error = Box::new(report);
        self
    }

    /// Counts by other counters than the library's own. Each thread calls `open` when it enters
    /// its first span, and the source then counts the events of that thread.
    #[must_use]
    pub fn source(
        mut self,
        open: impl Fn() -> Result<Box<dyn Source>, Error> + Send + Sync + 'static,
    ) -> Self {
        self.open = Box::new(open);
        self
    }

    /// Returns a subscriber that has this one do everything, and counts its spans.
    pub fn around<S>(self, subscriber: S) -> CountingSubscriber<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let Self { common, open } = self;
        let common = Arc::new(common);
        let inner = Reporter(common.clone()).with_subscriber(subscriber);
        CountingSubscriber { inner, common, open }
    }
}

impl fmt::Debug for SpanCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanCounter").field("common", &self.common).finish_non_exhaustive()
    }
}

/// A subscriber that counts the spans of another one, made by [`SpanCounter::around`].
pub struct CountingSubscriber<S> {
    inner: Layered<Reporter, S>,
    common: Arc<Common>,
    open: Box<Open>,
}

impl<S: fmt::Debug> fmt::Debug for CountingSubscriber<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingSubscriber").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> CountingSubscriber<S> {
    /// Makes a call of the subscriber inside, and leaves out what it counts.
    fn aside<T>(&self, inner: impl Fn(&Layered<Reporter, S>) -> T) -> T {
        let mut result = None;
        bracket(&self.common, Call::Other, &mut |_| result = Some(inner(&self.inner)));
        result.unwrap_or_else(|| inner(&self.inner))
    }

    fn opened(&self) {
        // As a program calls it: through a table of functions.
        let this: &dyn Subscriber = std::hint::black_box(self);
        let any = Id::from_u64(u64::MAX);
        let empty = || {
            this.enter(&any);
            this.exit(&any);
        };
        open(&self.common, &*self.open, &empty);
    }

    /// Adds what was counted to the span.
    fn left(&self, span: &Id, spans: &mut Spans) {
        let Some(spent) = spans.stop(&span.into_u64()) else { return };
        let Some(span) = self.inner.span(span) else { return };
        let mut extensions = span.extensions_mut();
        let mut counts = extensions.remove().unwrap_or(SpanCounts::NONE);
        counts.add(&spent);
        extensions.insert(counts);
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Subscriber for CountingSubscriber<S> {
    fn on_register_dispatch(&self, subscriber: &Dispatch) {
        self.inner.on_register_dispatch(subscriber);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.aside(|inner| inner.register_callsite(metadata))
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.aside(|inner| inner.enabled(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.inner.max_level_hint()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.aside(|inner| inner.new_span(span))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.aside(|inner| inner.record(span, values));
    }

    fn record_follows_from(&self, span: &Id, follows: &Id) {
        self.aside(|inner| inner.record_follows_from(span, follows));
    }

    fn event_enabled(&self, event: &tracing_core::Event<'_>) -> bool {
        self.aside(|inner| inner.event_enabled(event))
    }

    fn event(&self, event: &tracing_core::Event<'_>) {
        self.aside(|inner| inner.event(event));
    }

    fn enter(&self, span: &Id) {
        let mut enter = |spans: &mut Spans| {
            self.inner.enter(span);
            spans.start(span.into_u64());
        };
        let first = bracket(&self.common, Call::Enter, &mut enter);
        if first == Bracketed::Yes {
            return;
        }
        if first == Bracketed::NotYet {
            self.opened();
            if bracket(&self.common, Call::Enter, &mut enter) == Bracketed::Yes {
                return;
            }
        }
        self.inner.enter(span);
    }

    fn exit(&self, span: &Id) {
        let mut exit = |spans: &mut Spans| {
            self.left(span, spans);
            self.inner.exit(span);
        };
        if bracket(&self.common, Call::Exit, &mut exit) != Bracketed::Yes {
            self.inner.exit(span);
        }
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.aside(|inner| inner.clone_span(id))
    }

    fn try_close(&self, id: Id) -> bool {
        self.aside(|inner| inner.try_close(id.clone()))
    }

    fn current_span(&self) -> Current {
        self.aside(Subscriber::current_span)
    }

    unsafe fn downcast_raw(&self, id: TypeId) -> Option<*const ()> {
        if id == TypeId::of::<Self>() {
            return Some(std::ptr::from_ref(self).cast());
        }
        // SAFETY: the caller promises for its reference to this subscriber what holds for that to
        // the one inside, which lives as long.
        unsafe { self.inner.downcast_raw(id) }
    }
}

impl<'a, S> LookupSpan<'a> for CountingSubscriber<S>
where
    S: Subscriber + LookupSpan<'a>,
{
    type Data = <S as LookupSpan<'a>>::Data;

    fn span_data(&'a self, id: &Id) -> Option<Self::Data> {
        self.inner.span_data(id)
    }
}
