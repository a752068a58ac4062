//! The statements of one block, by keyword and in the form that each has.

use super::unique::Unique;
use super::values;
use crate::error::{NameKind, PolicyErrorKind};
use crate::keywords::{BlockKind, Occurrence, StatementRule};
use crate::name::Name;
use crate::nearest::nearest;
use crate::report::Reporter;
use crate::tree::{Block, Item, Statement};

/// A block's statements; unknown, repeated and missing ones have been reported.
pub(super) struct Fields<'b> {
    kind: BlockKind,
    fields: Vec<Field<'b>>,
}

/// One statement with its rule; also one that stands outside of blocks.
#[derive(Clone, Copy)]
pub(super) struct Field<'b> {
    pub(super) rule: &'static StatementRule,
    pub(super) statement: &'b Statement,
}

impl<'b> Fields<'b> {
    pub(super) fn read(block: &'b Block, reporter: &mut Reporter<'_>) -> Self {
        let kind = block.kind;
        let mut fields: Vec<Field<'b>> = Vec::new();
        let mut singles = Unique::default();
        for statement in &block.statements {
            let Some(rule) = kind.rule(&statement.keyword) else {
                let found = statement.keyword.clone();
                let known = kind.rules().iter().map(|rule| rule.keyword);
                let nearest = nearest(&found, known);
                reporter.report(
                    statement.location,
                    PolicyErrorKind::UnknownStatement {
                        block: kind,
                        found,
                        nearest,
                    },
                );
                continue;
            };
            let single = matches!(
                rule.occurrence,
                Occurrence::ExactlyOnce | Occurrence::AtMostOnce
            );
            if single && let Some(first) = singles.claim(rule.keyword, statement.location) {
                reporter.report_repeated(statement.location, first, |first| {
                    PolicyErrorKind::RepeatedStatement {
                        statement: rule.keyword,
                        first,
                    }
                });
                continue;
            }
            fields.push(Field { rule, statement });
        }
        let fields = Self { kind, fields };
        for rule in kind.rules() {
            let needed = matches!(
                rule.occurrence,
                Occurrence::ExactlyOnce | Occurrence::AtLeastOnce
            );
            if needed && fields.all(rule.keyword).next().is_none() {
                reporter.report(
                    block.location,
                    PolicyErrorKind::MissingStatement {
                        block: kind,
                        statement: rule.keyword,
                        form: rule.form,
                    },
                );
            }
        }
        fields
    }

    /// The statement that may stand once.
    pub(super) fn one(&self, keyword: &str) -> Option<Field<'b>> {
        self.all(keyword).next()
    }

    /// All statements of a keyword in the order of the text.
    pub(super) fn all(&self, keyword: &str) -> impl Iterator<Item = Field<'b>> {
        debug_assert!(self.kind.rule(keyword).is_some(), "{keyword} is in no rule");
        self.fields
            .iter()
            .filter(move |field| field.rule.keyword == keyword)
            .copied()
    }
}

impl<'b> Field<'b> {
    /// `keyword VALUE;`
    pub(super) fn single(self, reporter: &mut Reporter<'_>) -> Option<&'b Item> {
        match self.sequence(reporter)? {
            [item] => Some(item),
            [_, second, ..] => self.unexpected(second, reporter),
            [] => None,
        }
    }

    /// `keyword NAME;`, where what keys are for is named.
    pub(super) fn key(self, reporter: &mut Reporter<'_>) -> Option<Name> {
        self.single(reporter)
            .and_then(|item| values::name(item, NameKind::Key, reporter))
    }

    /// `keyword VALUE VALUE ...;`, at least one.
    pub(super) fn sequence(self, reporter: &mut Reporter<'_>) -> Option<&'b [Item]> {
        match self.statement.groups.as_slice() {
            [group] => Some(group),
            [] => self.missing(reporter),
            [_, second, ..] => self.unexpected(&second[0], reporter),
        }
    }

    /// `keyword VALUE, VALUE, ...;`, at least one.
    pub(super) fn list(self, reporter: &mut Reporter<'_>) -> Option<Vec<&'b Item>> {
        if self.statement.groups.is_empty() {
            return self.missing(reporter);
        }
        let mut items = Vec::with_capacity(self.statement.groups.len());
        for group in &self.statement.groups {
            match group.as_slice() {
                [item] => items.push(item),
                [_, second, ..] => return self.unexpected(second, reporter),
                [] => {}
            }
        }
        Some(items)
    }

    /// Whether a list is the word `any`, which stands alone: none, and reported, when it does not.
    pub(super) fn is_any(self, items: &[&Item], reporter: &mut Reporter<'_>) -> Option<bool> {
        let Some(any) = items.iter().find(|item| item.is_word("any")) else {
            return Some(false);
        };
        if items.len() == 1 {
            return Some(true);
        }
        reporter.report(
            any.location,
            PolicyErrorKind::AnyIsNotAlone {
                statement: self.rule.keyword,
                form: self.rule.form,
            },
        );
        None
    }

    /// Reports that the statement has no value.
    pub(super) fn missing<T>(self, reporter: &mut Reporter<'_>) -> Option<T> {
        reporter.report(
            self.statement.location,
            PolicyErrorKind::MissingValue {
                statement: self.rule.keyword,
                form: self.rule.form,
            },
        );
        None
    }

    /// Reports a value that does not belong there.
    pub(super) fn unexpected<T>(self, item: &Item, reporter: &mut Reporter<'_>) -> Option<T> {
        reporter.report(
            item.location,
            PolicyErrorKind::UnexpectedValue {
                statement: self.rule.keyword,
                form: self.rule.form,
                found: item.shown(),
            },
        );
        None
    }
}
