// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A metric that can be computed: its expression with the events that have to be counted.

use perfctr::Event;

use super::expression::{Choice, Expression, Operator, parse};
use super::refusal::{Kind, Refusal};
use super::{Modes, Tables};

/// The name of the elapsed time in expressions, which no counter counts. Unit: s.
const DURATION: &str = "duration_time";

/// A metric that is computed from counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    value: Value,
    /// The events with the tables' names for them. An event occurs once.
    pub events: Vec<(Event, String)>,
}

/// An expression whose names are known.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(f64),
    /// The count of the event with this index.
    Count(usize),
    /// The time that has passed.
    Seconds,
    Minus(Box<Value>),
    Binary(Operator, Box<Value>, Box<Value>),
    Call(Function, Vec<Value>),
    If(Box<[Value; 3]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Min,
    Max,
    /// A ratio, which is 0 if its divisor is 0.
    Ratio,
}

impl Function {
    fn apply(self, arguments: &[f64]) -> f64 {
        match (self, arguments) {
            (Self::Ratio, &[_, 0.0]) => 0.0,
            (Self::Ratio, &[of, by]) => of / by,
            (Self::Min, all) => all.iter().copied().fold(f64::INFINITY, f64::min),
            (Self::Max, all) => all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            (Self::Ratio, _) => f64::NAN,
        }
    }
}

impl Value {
    fn compute(&self, counts: &[f64], seconds: f64) -> f64 {
        let compute = |value: &Self| value.compute(counts, seconds);
        match self {
            Self::Number(number) => *number,
            Self::Count(n) => counts[*n],
            Self::Seconds => seconds,
            Self::Minus(inner) => -compute(inner),
            Self::Binary(operator, left, right) => operator.apply(compute(left), compute(right)),
            Self::Call(function, arguments) => {
                let arguments: Vec<f64> = arguments.iter().map(compute).collect();
                function.apply(&arguments)
            }
            Self::If(parts) => {
                let [condition, value, otherwise] = &**parts;
                if compute(condition) == 0.0 { compute(otherwise) } else { compute(value) }
            }
        }
    }
}

impl Formula {
    /// Finds out which events have to be counted for an expression. If the machine itself decides a
    /// choice (`#smt_on`), only the chosen side is counted.
    pub fn parse(tables: &Tables, metric: &str, text: &str, modes: Modes) -> Result<Self, Refusal> {
        let resolver = Resolver { tables, modes, events: Vec::new(), within: Vec::new() };
        resolver.formula(metric, text)
    }

    /// Computes the metric. `count` returns how often an event has occurred. A division by 0 has no
    /// value.
    pub fn compute(&self, count: impl Fn(Event) -> Option<f64>, seconds: f64) -> Option<f64> {
        let counts: Option<Vec<f64>> = self.events.iter().map(|(event, _)| count(*event)).collect();
        Some(self.value.compute(&counts?, seconds)).filter(|value| value.is_finite())
    }
}

struct Resolver<'a> {
    tables: &'a Tables,
    modes: Modes,
    events: Vec<(Event, String)>,
    /// The metrics that are being resolved.
    within: Vec<String>,
}

impl Resolver<'_> {
    fn formula(mut self, metric: &str, text: &str) -> Result<Formula, Refusal> {
        let value = self.metric(metric, text)?;
        Ok(Formula { value, events: self.events })
    }

    fn metric(&mut self, name: &str, text: &str) -> Result<Value, Refusal> {
        let name = name.to_lowercase();
        if self.within.contains(&name) {
            return Err(Kind::Circle.refusal(name));
        }
        self.within.push(name);
        let value = self.resolve(&parse(text).map_err(|why| Kind::Expression.refusal(why))?)?;
        self.within.pop();
        Ok(value)
    }

    fn resolve(&mut self, expression: &Expression) -> Result<Value, Refusal> {
        Ok(match expression {
            Expression::Number(number) => Value::Number(*number),
            Expression::Constant(name) => Value::Number(self.tables.constant(name)?),
            Expression::Name(name) => self.name(name)?,
            Expression::Minus(inner) => match self.resolve(inner)? {
                Value::Number(number) => Value::Number(-number),
                inner => Value::Minus(Box::new(inner)),
            },
            Expression::Binary(operator, left, right) => {
                match (self.resolve(left)?, self.resolve(right)?) {
                    (Value::Number(left), Value::Number(right)) => {
                        Value::Number(operator.apply(left, right))
                    }
                    (left, right) => Value::Binary(*operator, Box::new(left), Box::new(right)),
                }
            }
            Expression::Call(name, arguments) => self.call(name, arguments)?,
            Expression::If(choice) => self.choice(choice)?,
        })
    }

    fn choice(&mut self, choice: &Choice) -> Result<Value, Refusal> {
        let Choice { condition, value, otherwise } = choice;
        match self.resolve(condition)? {
            Value::Number(0.0) => self.resolve(otherwise),
            Value::Number(_) => self.resolve(value),
            condition => {
                let parts = [condition, self.resolve(value)?, self.resolve(otherwise)?];
                Ok(Value::If(Box::new(parts)))
            }
        }
    }

    fn call(&mut self, name: &str, arguments: &[Expression]) -> Result<Value, Refusal> {
        if let ("has_event", [Expression::Name(event)]) = (name, arguments) {
            let is_there = self.tables.event(event, self.modes).is_ok();
            return Ok(Value::Number(f64::from(is_there)));
        }
        let function = match (name, arguments.len()) {
            ("min", 2) => Function::Min,
            ("max", 2) => Function::Max,
            ("d_ratio", 2) => Function::Ratio,
            (_, number) => return Err(Kind::Function.refusal(format!("{name} of {number}"))),
        };
        let arguments = arguments.iter().map(|argument| self.resolve(argument));
        Ok(Value::Call(function, arguments.collect::<Result<_, _>>()?))
    }

    /// Resolves the name of another metric or of an event.
    fn name(&mut self, name: &str) -> Result<Value, Refusal> {
        if name == DURATION {
            return Ok(Value::Seconds);
        }
        if let Some(entry) = self.tables.entry(name) {
            return self.metric(name, entry.metric_expr.as_deref().unwrap_or_default());
        }
        let event = self.tables.event(name, self.modes)?;
        let known = self.events.iter().position(|(known, _)| *known == event);
        Ok(Value::Count(known.unwrap_or_else(|| {
            self.events.push((event, self.modes.label(name)));
            self.events.len() - 1
        })))
    }
}
