// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The totals of all events of a watch.

use std::ops::Index;
use std::sync::Arc;

use crate::total::Total;

/// The [`Total`]s of a [`Watched`](super::Watched)'s events, in their order and by their names.
///
/// ```
/// # fn print(totals: &perfctr::watch::Totals) {
/// for (name, total) in totals.iter() {
///     println!("{name}: {:?}", total.scaled());
/// }
/// println!("{}", totals["instructions"].count);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    pub(super) names: Arc<[String]>,
    pub(super) values: Vec<Total>,
}

impl Totals {
    /// Returns the total of the first event of this name.
    pub fn get(&self, name: &str) -> Option<&Total> {
        self.iter().find_map(|(other, total)| (other == name).then_some(total))
    }

    /// Iterates over the names and the totals.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Total)> {
        self.names.iter().map(String::as_str).zip(&self.values)
    }

    /// Returns the totals without their names.
    pub fn values(&self) -> &[Total] {
        &self.values
    }

    /// Consumes this and returns the totals without their names.
    pub fn into_values(self) -> Vec<Total> {
        self.values
    }
}

/// Returns the total of the first event of a name.
///
/// # Panics
///
/// There is no event of this name.
impl Index<&str> for Totals {
    type Output = Total;

    fn index(&self, name: &str) -> &Total {
        self.get(name).unwrap_or_else(|| panic!("no event is called {name:?}"))
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Totals {
    /// Serialises the totals as a map from names.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_found_by_name() {
        let values = vec![Total::of_ns(1, 0, 0), Total::of_ns(2, 0, 0)];
        let totals = Totals { names: ["a".to_owned(), "b".to_owned()].into(), values };
        assert_eq!(totals["b"].count, 2);
        assert_eq!(totals.get("c"), None);
        #[cfg(feature = "serde")]
        assert_eq!(serde_json::to_value(&totals).unwrap()["b"]["count"], 2);
        assert_eq!(totals.iter().map(|(name, _)| name).collect::<String>(), "ab");
    }

    #[test]
    fn a_name_that_begins_another_is_found_behind_it() {
        let values = [5, 7, 9].map(|count| Total::of_ns(count, 0, 0)).to_vec();
        let names = ["cycles:u", "cycles", "cycles:k"].map(str::to_owned).into();
        let totals = Totals { names, values };
        assert_eq!(["cycles", "cycles:u", "cycles:k"].map(|name| totals[name].count), [7, 5, 9]);
        assert_eq!(totals.get("cyc"), None);
    }
}
