//! A block's statements, checked by their declarations.
//!
//! [`Fields::read`] reports everything that the tables can tell: statements that do not belong, stand
//! twice or are missing, and values of the wrong kind. It returns the rest for the
//! dialect's own checks, without the values that it has reported.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::str::FromStr;

use crate::dialect::{Dialect, Occurrence, StatementRule};
use crate::faults::StatementMistake;
use crate::field::Field;
use crate::item::Item;
use crate::mistake::Found;
use crate::mistake::nearest;
use crate::name::{NameRule, listed};
use crate::print::joined;
use crate::report::Reporter;
use crate::tree::{Block, Statement, Tree};
use crate::unique::Unique;

/// A block's statements; unknown, repeated and missing ones have been reported.
#[derive(Debug)]
pub struct Fields<'t> {
    fields: Vec<Field<'t>>,
    one_of: &'t [[&'static str; 2]],
}

impl<'t> Fields<'t> {
    /// The statements of a block.
    pub fn read(block: &'t Block<'t>, reporter: &'t Reporter<'t>) -> Self {
        let name = block.name().and_then(Item::word);
        let rules = block.rule.statements_of(name).unwrap_or_default();
        let keyword = &block.rule.keyword;
        let slips = RefCell::new(BTreeSet::new());
        let unknown = |statement: &Statement| {
            if let Some(rule) = rules.iter().find(|rule| rule.is_slip(&statement.keyword)) {
                slips.borrow_mut().insert(rule.keyword.as_str());
                let mistake = StatementMistake::WrongBeginning {
                    found: Found(statement.keyword.clone()),
                    form: rule.form(),
                };
                return reporter.report(statement.location, mistake);
            }
            let known = || rules.iter().map(|rule| rule.keyword.as_str());
            let mistake = StatementMistake::UnknownStatement {
                block: keyword.clone(),
                found: Found(statement.keyword.clone()),
                nearest: nearest(&statement.keyword, known()),
                known: joined(known(), ", "),
            };
            reporter.report(statement.location, mistake);
        };
        let fields = Self {
            fields: fields(rules, &block.statements, "block", unknown, reporter),
            one_of: &block.rule.one_of,
        };
        for rule in rules {
            let needed = matches!(rule.occurrence, Occurrence::Once | Occurrence::AtLeastOnce);
            let is_meant = slips.borrow().contains(rule.keyword.as_str());
            if needed && !is_meant && fields.one(&rule.keyword).is_none() {
                let mistake = StatementMistake::MissingStatement {
                    block: keyword.clone(),
                    statement: rule.keyword.clone(),
                    form: rule.form(),
                    about: rule.about.clone(),
                };
                reporter.report(block.location, mistake);
            }
        }
        fields.check_one_of(block, rules, reporter);
        for field in &fields.fields {
            fields.check_beside(field);
        }
        fields
    }

    /// The statements outside of blocks; other dialects' statements are left out.
    pub fn outside(tree: &'t Tree<'_>, dialect: &'t Dialect, reporter: &'t Reporter<'t>) -> Self {
        let (rules, statements) = (&dialect.statements, &tree.statements);
        Self {
            fields: fields(rules, statements, "policy", |_| {}, reporter),
            one_of: &[],
        }
    }

    /// Reports a block that has both or neither of two statements of which it must have one.
    fn check_one_of(&self, block: &Block<'_>, rules: &[StatementRule], reporter: &Reporter<'_>) {
        for keywords in self.one_of {
            let found: Vec<&Field<'_>> =
                keywords.iter().filter_map(|word| self.one(word)).collect();
            match found.as_slice() {
                [] => {
                    let words = keywords.map(|word| format!("`{word}`"));
                    let forms = rules
                        .iter()
                        .filter(|rule| keywords.contains(&rule.keyword.as_str()));
                    let forms: Vec<String> = forms.map(StatementRule::form).collect();
                    let mistake = StatementMistake::NoneOf {
                        block: block.rule.keyword.clone(),
                        statements: words.join(" nor "),
                        forms: listed(forms.iter().map(String::as_str), "or"),
                    };
                    reporter.report(block.location, mistake);
                }
                [one, other] if !self.may_have_both(block) => {
                    let places = (one.statement.location, other.statement.location);
                    let (first, second) = if places.0 < places.1 {
                        (one, other)
                    } else {
                        (other, one)
                    };
                    let mistake = StatementMistake::BothOf {
                        statement: second.rule.keyword.clone(),
                        other: first.rule.keyword.clone(),
                        first: reporter.place(first.statement.location),
                        abouts: [second, first].map(|field| field.rule.about.clone()).into(),
                    };
                    reporter.report(second.statement.location, mistake);
                }
                _ => {}
            }
        }
    }

    /// Whether the block has the statement that permits both of two statements.
    fn may_have_both(&self, block: &Block<'_>) -> bool {
        let beside = block.rule.both_beside;
        beside.is_some_and(|[keyword, word]| self.word(keyword) == Some(word))
    }

    /// Reports a statement that has no meaning beside what the block says. Statements that
    /// the block lacks are reported separately.
    fn check_beside(&self, field: &Field<'t>) {
        let Some(beside) = &field.rule.beside else {
            return;
        };
        let (keyword, word) = beside.split_once(' ').unwrap_or((beside, ""));
        let found = match self.one(keyword) {
            Some(other) => match other.words().next() {
                Some((found, _)) if !word.is_empty() && found != word => {
                    format!("{keyword} {found}")
                }
                _ => return,
            },
            None => match self.other_of(keyword) {
                Some(other) => other.to_owned(),
                None => return,
            },
        };
        let mistake = StatementMistake::NotBeside {
            statement: field.rule.keyword.clone(),
            beside: beside.clone(),
            found,
        };
        field.reporter.report(field.statement.location, mistake);
    }

    /// The other statement of the keyword's pair in `one_of`, if the block has it.
    fn other_of(&self, keyword: &str) -> Option<&'static str> {
        let mut pairs = self.one_of.iter().filter(|pair| pair.contains(&keyword));
        pairs.find_map(|pair| {
            let mut others = pair.iter().filter(|other| **other != keyword);
            others.find(|other| self.one(other).is_some()).copied()
        })
    }

    /// The first statement of a keyword.
    pub fn one(&self, keyword: &str) -> Option<&Field<'t>> {
        self.all(keyword).next()
    }

    /// All statements of a keyword in the order of the text.
    pub fn all(&self, keyword: &str) -> impl Iterator<Item = &Field<'t>> {
        self.fields
            .iter()
            .filter(move |field| field.rule.keyword == keyword)
    }

    /// The number in this statement, which may stand once in its block.
    pub fn number<N: TryFrom<u64>>(&self, keyword: &str) -> Option<N> {
        N::try_from(self.one(keyword)?.number()?).ok()
    }

    /// The word in this statement, which may stand once in its block.
    pub fn word(&self, keyword: &str) -> Option<&str> {
        self.one(keyword)?.words().next().map(|(word, _)| word)
    }

    /// The name in this statement, which may stand once in its block.
    pub fn name<N: FromStr>(&self, keyword: &str, rule: &NameRule) -> Option<N> {
        self.one(keyword)?.names(rule).next().map(|(name, _)| name)
    }
}

/// Checks statements by their declarations. Reports a second statement of a kind that may stand once.
fn fields<'t>(
    rules: &'t [StatementRule],
    statements: &'t [Statement],
    within: &'static str,
    unknown: impl Fn(&Statement),
    reporter: &'t Reporter<'t>,
) -> Vec<Field<'t>> {
    let mut singles = Unique::default();
    let mut fields = Vec::new();
    for statement in statements {
        let mut declared = rules.iter();
        let Some(rule) = declared.find(|rule| rule.begins_with(&statement.keyword)) else {
            unknown(statement);
            continue;
        };
        let is_single = matches!(rule.occurrence, Occurrence::Once | Occurrence::AtMostOnce);
        let first = singles.claim(&rule.keyword, statement.location);
        match first.filter(|_| is_single) {
            None => fields.push(Field::read(rule, statement, reporter)),
            Some(first) => {
                let (statement, location) = (rule.keyword.clone(), statement.location);
                let first = reporter.place(first);
                let mistake = StatementMistake::RepeatedStatement {
                    statement,
                    within,
                    first,
                };
                reporter.report(location, mistake);
            }
        }
    }
    fields
}
