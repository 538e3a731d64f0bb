// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The reasons for which a metric cannot be computed here.

use std::fmt;

use serde::Serialize;

/// A reason, and the part of the metric that it concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    pub kind: Kind,
    /// The event, the constant or the function, or what is wrong with the expression.
    pub what: String,
}

/// The kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The expression breaks the language's rules.
    Expression,
    /// A constant of the machine that is not known here.
    Constant,
    /// A function that does not exist here.
    Function,
    /// There is neither an event nor a metric of this name.
    Unknown,
    /// A metric that is computed from itself.
    Circle,
    /// Another unit than a core counts the event: memory, caches of several cores, power, time.
    OtherUnit,
    /// The event needs registers beside the event select: off-core responses, latencies.
    FurtherRegisters,
    /// The event is for PEBS only, which writes its own samples.
    Pebs,
    /// The event also counts the other thread of the same core.
    OtherThread,
    /// Only a fixed counter that nobody provides counts the event.
    Fixed,
    /// The event's mode is not the requested one.
    Mode,
    /// The event's numbers do not fit into an event select.
    Encoding,
}

impl Kind {
    /// Makes a reason of this kind.
    pub fn refusal(self, what: impl Into<String>) -> Refusal {
        Refusal { kind: self, what: what.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        match self.kind {
            Kind::Expression => write!(f, "malformed expression: {what}"),
            Kind::Constant => write!(f, "the constant #{what} is not known here"),
            Kind::Function => write!(f, "the function {what} is not supported"),
            Kind::Unknown => write!(f, "the tables have no event and no metric {what}"),
            Kind::Circle => write!(f, "the metric {what} is computed from itself"),
            Kind::OtherUnit => write!(f, "{what} is counted by another unit than a core"),
            Kind::FurtherRegisters => {
                write!(f, "{what} needs registers beside the event select, which nobody provides")
            }
            Kind::Pebs => write!(f, "{what} is an event for PEBS only, which nobody provides"),
            Kind::OtherThread => {
                write!(f, "{what} also counts the core's other thread (AnyThread)")
            }
            Kind::Fixed => {
                write!(f, "{what} has a fixed counter of its own, which nobody provides")
            }
            Kind::Mode => write!(f, "{what} has another mode than the one that was asked for"),
            Kind::Encoding => write!(f, "{what} does not fit into an event select"),
        }
    }
}
