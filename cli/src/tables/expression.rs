// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Parses the expressions of metrics, in the language that Linux's perf has given them: arithmetic
//! as in C, `A if CONDITION else B` as in Python, calls, names of events and of other metrics, and
//! constants of the machine that begin with `#`.

/// An expression as it is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    Number(f64),
    /// A constant of the machine, without its `#`.
    Constant(String),
    /// An event or a metric.
    Name(String),
    Minus(Box<Expression>),
    Binary(Operator, Box<Expression>, Box<Expression>),
    Call(String, Vec<Expression>),
    If(Box<Choice>),
}

/// `value if condition else otherwise`.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub condition: Expression,
    pub value: Expression,
    pub otherwise: Expression,
}

/// An operator between two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Or,
    Xor,
    And,
    Less,
    Greater,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Operator {
    fn from_token(token: &Token) -> Option<Self> {
        let Token::Sign(sign) = token else { return None };
        Some(match sign {
            '|' => Self::Or,
            '^' => Self::Xor,
            '&' => Self::And,
            '<' => Self::Less,
            '>' => Self::Greater,
            '+' => Self::Add,
            '-' => Self::Subtract,
            '*' => Self::Multiply,
            '/' => Self::Divide,
            '%' => Self::Remainder,
            _ => return None,
        })
    }

    /// Returns how strongly it binds. A greater number binds more strongly.
    const fn strength(self) -> u32 {
        match self {
            Self::Or => 1,
            Self::Xor => 2,
            Self::And => 3,
            Self::Less | Self::Greater => 4,
            Self::Add | Self::Subtract => 5,
            Self::Multiply | Self::Divide | Self::Remainder => 6,
        }
    }

    /// Computes the result. A division by 0 gives a number that is not finite.
    pub fn apply(self, left: f64, right: f64) -> f64 {
        let bits = |apply: fn(i64, i64) -> i64| apply(left as i64, right as i64) as f64;
        match self {
            Self::Or => bits(|a, b| a | b),
            Self::Xor => bits(|a, b| a ^ b),
            Self::And => bits(|a, b| a & b),
            Self::Less => f64::from(left < right),
            Self::Greater => f64::from(left > right),
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide => left / right,
            Self::Remainder => left % right,
        }
    }
}

/// The deepest nesting that is parsed. Tables may have any contents.
const DEPTH_MAX: usize = 100;

/// Parses an expression. The error states what was found and what was expected.
pub fn parse(text: &str) -> Result<Expression, String> {
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0 };
    let expression = parser.choice()?;
    match parser.take() {
        None => Ok(expression),
        Some(token) => Err(format!("{} found, the end expected", token.describe())),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Constant(String),
    Name(String),
    Sign(char),
}

impl Token {
    fn describe(&self) -> String {
        match self {
            Self::Number(number) => format!("`{number}`"),
            Self::Constant(name) => format!("`#{name}`"),
            Self::Name(name) => format!("`{name}`"),
            Self::Sign(sign) => format!("`{sign}`"),
        }
    }
}

/// Splits a text. After a backslash, a sign is a part of a name: `topdown\-retiring`.
fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_ascii_digit() || first == '.' {
            let length = number_length(rest);
            let number = rest[..length].parse();
            tokens.push(Token::Number(number.map_err(|_| unexpected(first))?));
            length
        } else if first == '#' {
            let (name, length) = word(&rest[1..]);
            tokens.push(Token::Constant(name));
            1 + length
        } else if is_of_word(first) || first == '\\' {
            let (name, length) = word(rest);
            tokens.push(Token::Name(name));
            length
        } else if "|^&<>+-*/%(),".contains(first) {
            tokens.push(Token::Sign(first));
            1
        } else {
            0
        };
        if length == 0 {
            return Err(unexpected(first));
        }
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn unexpected(found: char) -> String {
    format!("`{found}` found, a number, a name or an operator expected")
}

const fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '@' | '?')
}

/// Returns the word at the beginning of a text without its backslashes, and its length with them.
fn word(text: &str) -> (String, usize) {
    let (mut word, mut length) = (String::new(), 0);
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        if c == '\\' {
            let Some(escaped) = characters.next() else { break };
            word.push(escaped);
            length += 1 + escaped.len_utf8();
        } else if is_of_word(c) {
            word.push(c);
            length += 1;
        } else {
            break;
        }
    }
    (word, length)
}

/// Returns the length of the number at the beginning of a text: digits, perhaps with a point and
/// with an exponent. Unit: bytes.
pub fn number_length(text: &str) -> usize {
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len()
    };
    let mut length = digits(0);
    if text[length..].starts_with('.') {
        length += 1;
        length += digits(length);
    }
    if text[length..].starts_with(['e', 'E']) {
        let sign = usize::from(text[length + 1..].starts_with(['+', '-']));
        let exponent = digits(length + 1 + sign);
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    length
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
}

impl Parser {
    fn take(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.next).cloned();
        self.next += 1;
        token
    }

    /// Takes the next token if it is this one.
    fn takes(&mut self, wanted: &Token) -> bool {
        let is_next = self.tokens.get(self.next) == Some(wanted);
        self.next += usize::from(is_next);
        is_next
    }

    fn takes_word(&mut self, wanted: &str) -> bool {
        self.takes(&Token::Name(wanted.to_owned()))
    }

    fn expect(&mut self, wanted: &Token) -> Result<(), String> {
        if self.takes(wanted) {
            return Ok(());
        }
        let found = self.take().map_or("the end".to_owned(), |token| token.describe());
        Err(format!("{found} found, {} expected", wanted.describe()))
    }

    /// Parses a whole expression. Each nested part is a whole expression, too.
    fn choice(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} expressions found within each other"));
        }
        let value = self.binary(0)?;
        let expression = if self.takes_word("if") {
            let condition = self.binary(0)?;
            self.expect(&Token::Name("else".to_owned()))?;
            let otherwise = self.choice()?;
            Expression::If(Box::new(Choice { condition, value, otherwise }))
        } else {
            value
        };
        self.depth -= 1;
        Ok(expression)
    }

    /// Parses operators that bind at least as strongly as this.
    fn binary(&mut self, least: u32) -> Result<Expression, String> {
        let mut left = self.operand()?;
        while let Some(operator) = self.tokens.get(self.next).and_then(Operator::from_token) {
            if operator.strength() < least {
                break;
            }
            self.next += 1;
            // Operators that bind equally are applied from left to right.
            let right = self.binary(operator.strength() + 1)?;
            left = Expression::Binary(operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn operand(&mut self) -> Result<Expression, String> {
        let expected = |found: &str| format!("{found} found, a value expected");
        match self.take().ok_or_else(|| expected("the end"))? {
            Token::Number(number) => Ok(Expression::Number(number)),
            Token::Constant(name) => Ok(Expression::Constant(name)),
            Token::Name(name) if matches!(&*name, "if" | "else") => {
                Err(expected(&Token::Name(name).describe()))
            }
            Token::Name(name) if self.takes(&Token::Sign('(')) => {
                Ok(Expression::Call(name, self.arguments()?))
            }
            Token::Name(name) => Ok(Expression::Name(name)),
            Token::Sign('(') => {
                let inner = self.choice()?;
                self.expect(&Token::Sign(')'))?;
                Ok(inner)
            }
            Token::Sign('-') => {
                self.depth += 1;
                let of = if self.depth > DEPTH_MAX { Err(expected("`-`")) } else { self.operand() };
                self.depth -= 1;
                Ok(Expression::Minus(Box::new(of?)))
            }
            sign @ Token::Sign(_) => Err(expected(&sign.describe())),
        }
    }

    fn arguments(&mut self) -> Result<Vec<Expression>, String> {
        let mut arguments = vec![self.choice()?];
        while self.takes(&Token::Sign(',')) {
            arguments.push(self.choice()?);
        }
        self.expect(&Token::Sign(')'))?;
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes an expression of numbers.
    fn value(text: &str) -> f64 {
        fn evaluate(expression: &Expression) -> f64 {
            match expression {
                Expression::Number(number) => *number,
                Expression::Minus(inner) => -evaluate(inner),
                Expression::Binary(operator, left, right) => {
                    operator.apply(evaluate(left), evaluate(right))
                }
                Expression::If(choice) if evaluate(&choice.condition) != 0.0 => {
                    evaluate(&choice.value)
                }
                Expression::If(choice) => evaluate(&choice.otherwise),
                other => panic!("{other:?}"),
            }
        }
        evaluate(&parse(text).unwrap())
    }

    #[test]
    fn operators_bind_as_in_c_and_the_first_of_equals_comes_first() {
        for (text, expected) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("8 - 4 - 2", 2.0),
            ("16 / 4 / 2", 2.0),
            ("7 % 4 + 1", 4.0),
            ("-2 + 5", 3.0),
            ("2 - -3", 5.0),
            ("1 + 1 > 1 & 3", 1.0),
            ("6 & 3 | 8 ^ 1", 11.0),
            ("1 < 2", 1.0),
            ("2 < 2", 0.0),
            ("6000000000", 6e9),
            ("1e-9 * 2.5E3 + .5 + 3.", 2.5e-6 + 3.5),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
        assert!(!value("1 / 0").is_finite());
    }

    #[test]
    fn choices_are_those_of_python() {
        assert_eq!(value("5 if 0 else 6 if 1 else 7"), 6.0);
        assert_eq!(value("5 + 1 if 2 > 1 else 7 + 1"), 6.0);
        assert_eq!(value("1 + (5 if 0 else 6)"), 7.0);
    }

    #[test]
    fn names_have_what_a_backslash_makes_theirs() {
        let name = |text: &str| Expression::Name(text.to_owned());
        assert_eq!(parse(r"topdown\-retiring"), Ok(name("topdown-retiring")));
        let text = r"cpu@UOPS.ANY\,cmask\=0x1\,edge@";
        assert_eq!(parse(text), Ok(name("cpu@UOPS.ANY,cmask=0x1,edge@")));
        let smt = Expression::Constant("SMT_on".to_owned());
        assert_eq!(parse("#SMT_on"), Ok(smt.clone()));
        let call = Expression::Call("min".to_owned(), vec![name("a.b:k"), smt]);
        assert_eq!(parse("min( a.b:k , #SMT_on )"), Ok(call));
    }

    #[test]
    fn what_is_no_expression_is_refused_by_what_was_found() {
        for (text, expected) in [
            ("", "the end found, a value expected"),
            ("1 +", "the end found, a value expected"),
            ("1 2", "`2` found, the end expected"),
            ("(1", "the end found, `)` expected"),
            ("1 if 2", "the end found, `else` expected"),
            ("if", "`if` found, a value expected"),
            ("min(1,)", "`)` found, a value expected"),
            ("1 ? 2 : 3", "`?` found, the end expected"),
            ("1 $ 2", "`$` found, a number, a name or an operator expected"),
            (".", "`.` found, a number, a name or an operator expected"),
            ("\\", "`\\` found, a number, a name or an operator expected"),
            ("ä", "`ä` found, a number, a name or an operator expected"),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()), "{text}");
        }
        let deep = "(".repeat(1_000_000);
        assert!(parse(&deep).unwrap_err().contains("within each other"));
        // As many beside each other are no problem.
        let beside = format!("(1){}", " + (1)".repeat(2 * DEPTH_MAX));
        assert_eq!(value(&beside), 2.0 * DEPTH_MAX as f64 + 1.0);
        assert!(parse(&"-".repeat(1_000_000)).is_err());
    }
}
