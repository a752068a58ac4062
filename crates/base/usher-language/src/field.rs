//! One statement: its values by its declaration.

use std::str::FromStr;

use crate::dialect::{Part, Shape, StatementRule};
use crate::faults::StatementMistake;
use crate::item::{Item, Value};
use crate::kind::{Checked, Kind};
use crate::mistake::{Found, Mistake};
use crate::name::NameRule;
use crate::report::Reporter;
use crate::source::Origin;
use crate::tree::Statement;
use crate::unique::Unique;

/// One statement with its declaration; also one that stands outside of blocks.
#[derive(Clone, Debug)]
pub struct Field<'t> {
    /// The statement's declaration.
    pub rule: &'t StatementRule,
    /// The statement in the text of the policy.
    pub statement: &'t Statement,
    /// Collects mistakes.
    pub reporter: &'t Reporter<'t>,
    /// The values in their order; none stands for a part of a phrase that is left out. Empty if a mistake has
    /// been reported, and for a [`Shape::Own`].
    values: Vec<Option<(&'t Item, Checked)>>,
}

impl<'t> Field<'t> {
    /// Checks the values of a statement by its declaration.
    pub(crate) fn read(
        rule: &'t StatementRule,
        statement: &'t Statement,
        reporter: &'t Reporter<'t>,
    ) -> Self {
        let mut field = Self {
            rule,
            statement,
            reporter,
            values: Vec::new(),
        };
        field.values = field.read_values().unwrap_or_default();
        field
    }

    fn read_values(&self) -> Option<Vec<Option<(&'t Item, Checked)>>> {
        let value = |kind: &Kind, item: &'t Item| {
            kind.read(item, self.reporter)
                .map(|checked| Some((item, checked)))
        };
        match &self.rule.shape {
            Shape::Own(_) => None,
            Shape::Nothing => match self.statement.groups.iter().flatten().next() {
                Some(excess) => self.unexpected(excess),
                None => None,
            },
            Shape::One(kind) => match self.sequence()? {
                [item] => Some(vec![value(kind, item)?]),
                [_, second, ..] => self.unexpected(second),
                [] => None,
            },
            // If one value of a list is wrong, the others still count, so that names that stand twice are
            // found.
            Shape::Sequence(kind) => {
                let items = self.sequence()?.iter();
                // Behind a string that does not end, no value is at its place.
                let items = items.take_while(|item| !matches!(item.value, Value::Broken));
                Some(items.filter_map(|item| value(kind, item)).collect())
            }
            Shape::List(kind) => {
                let items = self.list()?.into_iter();
                Some(items.filter_map(|item| value(kind, item)).collect())
            }
            Shape::AnyOr(kind) => {
                let items = self.list()?;
                if let Some(any) = items.iter().find(|item| item.is_word("any")) {
                    return match items.len() {
                        1 => Some(vec![Some((any, Checked::Word("any".to_owned())))]),
                        _ => self.not_alone(any),
                    };
                }
                let items = items.into_iter();
                Some(items.filter_map(|item| value(kind, item)).collect())
            }
            Shape::Phrase(parts) => self.phrase(parts),
        }
    }

    fn phrase(&self, parts: &[Part]) -> Option<Vec<Option<(&'t Item, Checked)>>> {
        let mut items = self.sequence()?.iter().peekable();
        let mut found = Vec::new();
        for part in parts {
            let kind = match part {
                Part::Word(word) => match items.next() {
                    Some(item) if item.is_word(word) => continue,
                    Some(item) => return self.unexpected(item),
                    None => return self.missing(),
                },
                Part::Optional(word, kind) => match items.next_if(|item| item.is_word(word)) {
                    Some(_) => kind,
                    None => {
                        found.push(Some(None));
                        continue;
                    }
                },
                Part::Value(kind) => kind,
            };
            let Some(item) = items.next() else {
                return self.missing();
            };
            let checked = kind.read(item, self.reporter);
            found.push(checked.map(|checked| Some((item, checked))));
        }
        match items.next() {
            Some(excess) => self.unexpected(excess),
            None => found.into_iter().collect(),
        }
    }

    /// The values.
    pub fn items(&self) -> impl Iterator<Item = &'t Item> {
        self.values.iter().flatten().map(|(item, _)| *item)
    }

    /// The words among the values.
    pub fn words(&self) -> impl Iterator<Item = (&'t str, &'t Item)> {
        self.items().filter_map(|item| Some((item.word()?, item)))
    }

    /// The strings among the values.
    pub fn texts(&self) -> impl Iterator<Item = (&'t str, &'t Item)> {
        self.items().filter_map(|item| Some((item.text()?, item)))
    }

    /// The values as names. A value that is no name is reported and left out.
    pub fn names<N: FromStr>(&self, rule: &NameRule) -> impl Iterator<Item = (N, &'t Item)> {
        self.items()
            .filter_map(|item| Some((self.name_of(item, rule)?, item)))
    }

    /// A value as a name; reports a value that is no name.
    pub fn name_of<N: FromStr>(&self, item: &Item, rule: &NameRule) -> Option<N> {
        match rule.parse(item.word()?) {
            Ok(name) => Some(name),
            Err(mistake) => self.refuse(item, mistake),
        }
    }

    /// The place of the statement.
    pub fn origin(&self) -> Origin {
        self.reporter
            .origin(self.statement.location, self.statement.last)
    }

    /// The words of values that may have blanks between them, as one. Reports a string, and returns none.
    pub fn together(&self, items: &[Item]) -> Option<String> {
        items
            .iter()
            .map(|item| item.word().or_else(|| self.expected_word(item)))
            .collect()
    }

    /// Reports a string where a word belongs.
    pub fn expected_word<T>(&self, item: &Item) -> Option<T> {
        let found = Found(item.shown());
        match item.value {
            Value::Broken => None,
            _ => self.refuse(item, StatementMistake::ExpectedWord { found }),
        }
    }

    /// Reports what is wrong with a value.
    pub fn refuse<T>(&self, item: &Item, mistake: impl Mistake) -> Option<T> {
        self.reporter.refuse(item.location, mistake)
    }

    /// The names of a list. A name that stands twice is reported, and left out the second time.
    pub fn unique_names<N: FromStr + Ord + Clone>(
        &self,
        rule: &NameRule,
        listed: &mut Unique<N>,
    ) -> Vec<(N, &'t Item)> {
        let mut names = Vec::new();
        for (name, item) in self.names::<N>(rule) {
            if listed.list(name.clone(), item, self.reporter).is_some() {
                names.push((name, item));
            }
        }
        names
    }

    /// The first number among the values.
    pub fn number(&self) -> Option<u64> {
        self.values
            .iter()
            .flatten()
            .find_map(|(_, checked)| match checked {
                Checked::Number(number) => Some(*number),
                Checked::Word(_) | Checked::Text(_) => None,
            })
    }

    /// The values of a phrase; none in the place of a value that is left out. Returns none if a mistake has
    /// been reported.
    pub fn parts<const N: usize>(&self) -> Option<[Option<&'t Item>; N]> {
        debug_assert!(
            [0, N].contains(&self.values.len()),
            "{} parts",
            self.rule.keyword
        );
        let parts = self
            .values
            .iter()
            .map(|value| value.as_ref().map(|(item, _)| *item));
        parts.collect::<Vec<_>>().try_into().ok()
    }

    /// Whether the statement is the word `any`.
    pub fn is_any(&self) -> bool {
        matches!(self.rule.shape, Shape::AnyOr(_)) && self.items().any(|item| item.is_word("any"))
    }

    /// The values of `keyword VALUE VALUE ...;`, at least one. Reports any other form.
    pub fn sequence(&self) -> Option<&'t [Item]> {
        match self.statement.groups.as_slice() {
            [group] => Some(group),
            [] => self.missing(),
            [_, second, ..] => self.unexpected(&second[0]),
        }
    }

    /// The values of `keyword VALUE, VALUE, ...;`, at least one. Reports any other form.
    fn list(&self) -> Option<Vec<&'t Item>> {
        if self.statement.groups.is_empty() {
            return self.missing();
        }
        let items = self
            .statement
            .groups
            .iter()
            .map(|group| match group.as_slice() {
                [_, second, ..] => {
                    let statement = self.rule.keyword.clone();
                    let found = Found(second.shown());
                    let mistake = StatementMistake::ValueWithoutComma { statement, found };
                    self.reporter.refuse(second.location, mistake)
                }
                group => group.first(),
            });
        items.collect()
    }

    /// Reports that the statement lacks a value.
    pub fn missing<T>(&self) -> Option<T> {
        let mistake = StatementMistake::MissingValue {
            statement: self.rule.keyword.clone(),
            form: self.rule.form(),
        };
        self.reporter.refuse(self.statement.location, mistake)
    }

    /// Reports a value that does not belong there.
    pub fn unexpected<T>(&self, item: &Item) -> Option<T> {
        let mistake = StatementMistake::UnexpectedValue {
            statement: self.rule.keyword.clone(),
            form: self.rule.form(),
            found: Found(item.shown()),
        };
        self.reporter.refuse(item.location, mistake)
    }

    /// Reports a word that stands for all or nothing, beside other values.
    pub fn not_alone<T>(&self, item: &Item) -> Option<T> {
        let mistake = StatementMistake::NotAlone {
            word: item.shown(),
            statement: self.rule.keyword.clone(),
            form: self.rule.form(),
        };
        self.reporter.refuse(item.location, mistake)
    }

    /// Reports a statement with more than `most` values between its commas, and returns whether it has more.
    pub fn has_too_many(&self, most: usize, hint: &'static str) -> bool {
        let found = self.statement.groups.len();
        if found > most {
            let mistake = StatementMistake::TooManyValues {
                statement: self.rule.keyword.clone(),
                found,
                most,
                hint,
            };
            self.reporter.report(self.statement.location, mistake);
        }
        found > most
    }
}
