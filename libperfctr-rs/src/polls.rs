// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts what a future executes in its own polls.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::counting::Counting;
use crate::error::Error;
use crate::session::Counts;

/// A future whose own polls are counted, see [`Counting::polls`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Polls<'counting, F, const N: usize> {
    counting: &'counting Counting<N>,
    future: Pin<Box<F>>,
    /// The sum of the polls so far.
    sum: Counts<N>,
}

impl<const N: usize> Counting<N> {
    /// Counts what a future executes in its own polls, and not what the thread executes between
    /// them.
    ///
    /// The future that this returns gives the other one's value and the sum of its polls. Each
    /// poll is [measured](Self::measure) like a closure. After an error the future is not polled
    /// any more.
    ///
    /// Counters belong to a thread, so the future cannot be sent to another thread. An executor
    /// of one thread has to poll it, such as tokio's `LocalSet`.
    ///
    /// ```no_run
    /// # fn block_on<F: Future>(_: F) -> F::Output { unimplemented!() }
    /// # async fn answer(_: u32) -> u32 { 0 }
    /// # fn main() -> Result<(), perfctr::Error> {
    /// let counting = perfctr::start([perfctr::Event::INSTRUCTIONS.user()])?;
    /// let (answer, spent) = block_on(counting.polls(answer(7)))?;
    /// println!("{answer} after {} instructions", spent.counts[0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn polls<F: Future>(&self, future: F) -> Polls<'_, F, N> {
        let sum = Counts { counts: [0; N], retries: 0, direct: true };
        Polls { counting: self, future: Box::pin(future), sum }
    }
}

impl<F: Future, const N: usize> Polls<'_, F, N> {
    /// Returns the counts of the polls until now, for example of a future that will be dropped.
    pub fn counts(&self) -> Counts<N> {
        self.sum
    }
}

impl<F: Future, const N: usize> Future for Polls<'_, F, N> {
    type Output = Result<(F::Output, Counts<N>), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { counting, future, sum } = self.get_mut();
        let mut polled = Poll::Pending;
        let counted = counting.measure(|| polled = future.as_mut().poll(context));
        *sum = match counted {
            Ok(counted) => sum.plus(counted),
            Err(error) => return Poll::Ready(Err(error)),
        };
        polled.map(|output| Ok((output, *sum)))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;
    use crate::counting::start;

    /// Returns a future that is ready at its third poll.
    fn third() -> impl Future<Output = u32> {
        let mut polls = 0;
        std::future::poll_fn(move |_| {
            polls += 1;
            if polls < 3 { Poll::Pending } else { Poll::Ready(polls) }
        })
    }

    #[test]
    fn what_earlier_polls_have_counted_is_kept() {
        let counting = start([]).unwrap();
        let mut polls = counting.polls(third());
        (polls.sum.retries, polls.sum.direct) = (5, false);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut polls).poll(&mut context).is_pending());
        let Counts { retries, direct, .. } = polls.counts();
        assert!(retries >= 5 && !direct, "{retries} retries, direct: {direct}");
    }

    #[test]
    fn a_future_is_polled_once_by_each_poll_and_its_value_is_kept() {
        let counting = start([]).unwrap();
        let (mut one, mut other) = (pin!(counting.polls(third())), pin!(counting.polls(third())));
        let mut context = Context::from_waker(Waker::noop());
        // The thread polls the two futures in turn.
        for _ in 0..2 {
            assert!(one.as_mut().poll(&mut context).is_pending());
            assert!(other.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(one.counts().counts, [0_u64; 0]);
        for future in [one, other] {
            let Poll::Ready(Ok((value, _))) = future.poll(&mut context) else {
                panic!("not ready")
            };
            assert_eq!(value, 3);
        }
    }
}
