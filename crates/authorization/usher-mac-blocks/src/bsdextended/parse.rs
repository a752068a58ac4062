//! A rule's words to data.

use std::iter::Peekable;
use std::slice::Iter;

use usher_language::{Field, Found, Item, Location, Unique, is_plain_path, joined};

use super::model::{
    AccessMode, AccessRule, AccountRange, FileTypes, Membership, RuleObject, RuleSubject,
};
use super::text;
use crate::account::{id, is_account_name};
use crate::limits::MAXIMUM_RANGES;
use crate::mistake::MacMistake;

/// A rule; none where a mistake has been reported.
pub(super) fn rule(field: &Field<'_>) -> Option<AccessRule> {
    let items = field.sequence()?.iter().peekable();
    let at = field.statement.location;
    let mut words = Words { items, field, at };
    let mut rule = AccessRule {
        origin: field.origin(),
        ..AccessRule::default()
    };
    if let Some(subject) = words.take("subject") {
        rule.subject = words.subject(subject)?;
    }
    if let Some(object) = words.take("object") {
        rule.object = words.object(object)?;
    }
    let Some(keyword) = words.take("mode") else {
        return match words.items.next() {
            Some(other) => field.unexpected(other),
            None => field.missing(),
        };
    };
    words.at = keyword.location;
    let Some(mode) = words.items.next() else {
        return words.refuse_no_value("mode", "MODE");
    };
    let letters = mode.word().or_else(|| field.expected_word(mode))?;
    let Some(found) = AccessMode::parse(letters) else {
        let found = Found::from(letters);
        return field.refuse(mode, MacMistake::InvalidMode { found });
    };
    rule.mode = found;
    match words.items.next() {
        Some(excess) => field.unexpected(excess),
        None => Some(rule),
    }
}

/// The words of a rule that are not yet read.
struct Words<'t, 'f> {
    items: Peekable<Iter<'t, Item>>,
    field: &'f Field<'t>,
    /// The condition that is being read.
    at: Location,
}

/// A side of a rule while its conditions are read.
struct Side {
    name: &'static str,
    conditions: &'static [&'static str],
    taken: Unique<String>,
}

impl<'t> Words<'t, '_> {
    /// The next word, if it is this one.
    fn take(&mut self, word: &str) -> Option<&'t Item> {
        self.items.next_if(|item| item.is_word(word))
    }

    fn subject(&mut self, head: &Item) -> Option<RuleSubject> {
        let mut subject = RuleSubject::default();
        let mut side = Side::new("subject", &text::SUBJECT);
        while let Some((not, condition)) = self.condition(&mut side)? {
            match condition {
                "uid" => subject.users = Some(self.membership(not, condition, "user")?),
                _ => subject.groups = Some(self.membership(not, condition, "group")?),
            }
        }
        self.some(side, head).map(|()| subject)
    }

    fn object(&mut self, head: &Item) -> Option<RuleObject> {
        let mut object = RuleObject::default();
        let mut side = Side::new("object", &text::OBJECT);
        while let Some((not, condition)) = self.condition(&mut side)? {
            match condition {
                "uid" => object.users = Some(self.membership(not, condition, "user")?),
                "gid" => object.groups = Some(self.membership(not, condition, "group")?),
                "filesys" => object.file_system = Some((!not, self.file_system()?)),
                "suid" => object.suid = Some(!not),
                "sgid" => object.sgid = Some(!not),
                "uid_of_subject" => object.uid_of_subject = Some(!not),
                "gid_of_subject" => object.gid_of_subject = Some(!not),
                _ => object.types = Some((!not, self.types()?)),
            }
        }
        self.some(side, head).map(|()| object)
    }

    /// The next condition of a side, and whether `not` stands before it. `Some(None)` where the side ends,
    /// `None` where a mistake has been reported.
    #[expect(
        clippy::option_option,
        reason = "wrong, at an end and one more are three"
    )]
    fn condition(&mut self, side: &mut Side) -> Option<Option<(bool, &'static str)>> {
        let not = self.take("not").is_some();
        let ends = |item: &Item| !not && (item.is_word("object") || item.is_word("mode"));
        let Some(item) = self.items.next_if(|item| !ends(item)) else {
            return if not {
                self.field.missing()
            } else {
                Some(None)
            };
        };
        self.at = item.location;
        let word = item.word().or_else(|| self.field.expected_word(item))?;
        let known = side.conditions.iter().find(|condition| **condition == word);
        let Some(condition) = known else {
            let mistake = MacMistake::UnknownCondition {
                side: side.name,
                found: Found::from(word),
                conditions: joined(side.conditions, ", "),
            };
            return self.field.refuse(item, mistake);
        };
        let repeated = |first| MacMistake::RepeatedCondition {
            side: side.name,
            condition: word.to_owned(),
            first,
        };
        let key = word.to_owned();
        side.taken.take(key, item, self.field.reporter, repeated)?;
        Some(Some((not, condition)))
    }

    /// Reports a side without a condition.
    fn some(&self, side: Side, head: &Item) -> Option<()> {
        if !side.taken.into_keys().is_empty() {
            return Some(());
        }
        let mistake = MacMistake::NoCondition {
            side: side.name,
            conditions: joined(side.conditions, ", "),
        };
        self.field.refuse(head, mistake)
    }

    /// Users or groups, up to the next reserved word.
    fn membership(&mut self, not: bool, condition: &str, noun: &'static str) -> Option<Membership> {
        let is_value = |item: &&Item| !item.word().is_some_and(text::is_reserved);
        let mut items = Vec::new();
        while let Some(item) = self.items.next_if(is_value) {
            items.push(item);
        }
        let Some(first) = items.first() else {
            return self.refuse_no_value(condition, "NAME");
        };
        if items.len() > MAXIMUM_RANGES {
            let mistake = MacMistake::TooManyAccounts {
                condition: condition.to_owned(),
                found: items.len(),
            };
            return self.field.refuse(first, mistake);
        }
        let accounts: Vec<Option<AccountRange>> =
            items.iter().map(|item| self.account(item, noun)).collect();
        let accounts = accounts.into_iter().collect::<Option<_>>()?;
        Some(Membership { not, accounts })
    }

    fn account(&self, item: &Item, noun: &'static str) -> Option<AccountRange> {
        let word = item.word().or_else(|| self.field.expected_word(item))?;
        let found = || Found::from(word);
        let (first, last) = word.split_once(':').unwrap_or((word, word));
        match (id(first), id(last)) {
            (Some(first), Some(last)) if first > last => {
                let found = found();
                self.field
                    .refuse(item, MacMistake::AccountsBackwards { found })
            }
            (Some(first), Some(last)) => Some(AccountRange::Numbers(first, last)),
            _ if is_account_name(word) => Some(AccountRange::Name(word.to_owned())),
            _ => {
                let found = found();
                self.field
                    .refuse(item, MacMistake::InvalidAccount { found, noun })
            }
        }
    }

    fn file_system(&mut self) -> Option<String> {
        let is_value = |item: &&Item| !item.word().is_some_and(text::is_reserved);
        let Some(item) = self.items.next_if(is_value) else {
            return self.refuse_no_value("filesys", "\"/PATH\"");
        };
        match item.text() {
            Some(path) if path == "/" || is_plain_path(path) => Some(path.to_owned()),
            _ => {
                let found = Found(item.shown());
                self.field
                    .refuse(item, MacMistake::InvalidFileSystem { found })
            }
        }
    }

    fn types(&mut self) -> Option<FileTypes> {
        let is_value = |item: &&Item| !item.word().is_some_and(text::is_reserved);
        let Some(item) = self.items.next_if(is_value) else {
            return self.refuse_no_value("type", "rdbclsp");
        };
        let word = item.word().or_else(|| self.field.expected_word(item))?;
        FileTypes::parse(word).or_else(|| {
            let found = Found::from(word);
            self.field.refuse(item, MacMistake::InvalidTypes { found })
        })
    }

    fn refuse_no_value<T>(&self, condition: &str, form: &'static str) -> Option<T> {
        let condition = condition.to_owned();
        let mistake = MacMistake::NoValue { condition, form };
        self.field.reporter.refuse(self.at, mistake)
    }
}

impl Side {
    fn new(name: &'static str, conditions: &'static [&'static str]) -> Self {
        Self {
            name,
            conditions,
            taken: Unique::default(),
        }
    }
}
