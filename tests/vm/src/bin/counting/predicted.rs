// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Predicts from the machine code by how much each reading of the workers has to differ from the
//! truth.

use anyhow::{Result, ensure};
use perfctr::Session;
use vm_tests::bodies::{Body, Does};
use vm_tests::expected::{Overhead, Stepped};
use vm_tests::region::{
    Region, measure, measure_body, measure_counts, measure_into, measure_read, total,
};
use vm_tests::step::Executed;

/// The shortest region.
const SHORT: Region = Region { first: 1, second: 1 };
const NOTHING: Executed = Executed { instructions: 0, branches: 0 };

/// The overheads of every kind of reading.
#[derive(Clone, Copy, Debug)]
pub struct Predicted {
    pub regions: Overhead,
    pub bodies: Overhead,
    pub faulting_reads: Overhead,
    /// The overhead of a read of one counter.
    pub reads_1: Overhead,
    /// The overhead of a read of one counter without the TSC.
    pub counts_1: Overhead,
    /// The overheads of the first and of the third counter in a read of four.
    pub reads_4: (Overhead, Overhead),
    pub totals: Totals,
}

/// What a thread executes from a start to a stop, without regions and retries.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    once: Executed,
    per_region: Executed,
}

impl Totals {
    /// Returns what is executed if there are this many regions.
    pub fn of(&self, regions: usize) -> Executed {
        self.once.plus(self.per_region.times(regions as u64))
    }

    /// Steps one, two and three regions.
    fn find() -> Result<Self> {
        let stepped = |regions: usize| -> Result<Executed> {
            let body = |session: &mut Session| {
                total::<4>(session, &vec![SHORT; regions], &mut 0).map(drop)
            };
            let trace = Stepped::new()?.trace(4, body, None)?;
            Ok(trace.from_start_to_stop(4 * regions)?.less(SHORT.executed().times(regions as u64)))
        };
        let [one, two, three] = [stepped(1)?, stepped(2)?, stepped(3)?];
        let per_region = two.less(one);
        ensure!(three.less(two) == per_region, "{one:?}, {two:?}, {three:?} are not linear");
        Ok(Self { once: one.less(per_region), per_region })
    }
}

impl Predicted {
    /// Steps through everything that the workers execute.
    pub fn find() -> Result<Self> {
        let regions =
            Overhead::of_all::<4>(SHORT.executed(), |session| measure(session, SHORT, &mut 0))?;
        let bodies = Overhead::of_all::<4>(NOTHING, |session| {
            measure_body(session, &Body::new(Does::Nothing, 1), &mut [0; 2 * 4096])
        })?;
        let faulting_reads = Overhead::of_all::<4>(SHORT.executed(), |session| {
            Ok(measure_into(session, SHORT, &mut 0, &mut [0; 4]).expect("copies can be read"))
        })?;
        let [reads_1] = Overhead::of::<1>(NOTHING, measure_read)?;
        let [counts_1] = Overhead::of::<1>(NOTHING, measure_counts)?;
        let [first, _, third, _] = Overhead::of::<4>(NOTHING, measure_read)?;
        let totals = Totals::find()?;
        let reads_4 = (first, third);
        Ok(Self { regions, bodies, faulting_reads, reads_1, counts_1, reads_4, totals })
    }
}
