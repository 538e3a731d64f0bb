// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Divides work that is too long for one run into parts, of which each day has its own.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};

/// A part of a list: the elements whose index is `number` modulo `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
}

impl Shard {
    /// The whole list.
    pub const WHOLE: Self = Self { number: 0, of: 1 };

    /// Returns the part that is today's, if there are this many.
    pub fn of_today(of: usize) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { number: (since.as_secs() / (24 * 60 * 60)) as usize % of, of }
    }

    /// Returns the elements of the list that are in this part.
    pub fn pick<T>(self, list: impl IntoIterator<Item = T>) -> Vec<T> {
        list.into_iter().skip(self.number).step_by(self.of).collect()
    }
}

impl FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (number, of) = text.split_once('/').context("a part is named as 0/8")?;
        let shard = Self { number: number.parse()?, of: of.parse()? };
        ensure!(shard.number < shard.of, "the parts of {of} are 0/{of} and so on");
        Ok(shard)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_list_and_share_nothing() {
        let pick = |text: &str| text.parse::<Shard>().unwrap().pick(1..=7);
        assert_eq!(pick("0/3"), [1, 4, 7]);
        assert_eq!(pick("1/3"), [2, 5]);
        assert_eq!(pick("2/3"), [3, 6]);
        assert_eq!(Shard::WHOLE.pick(1..=7), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for text in ["2/2", "2", "a/2", "0/0", "-1/2"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }

    #[test]
    fn todays_part_is_one_of_them() {
        let today = Shard::of_today(31);
        assert!(today.number < 31 && today.of == 31);
    }
}
