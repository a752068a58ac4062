//! The part of the language that a system adds: its blocks and statements, as tables.
//!
//! A [`Dialect`] is data, which each system makes in code. The blocks of modules that are loaded at run time
//! are read as they are written: see [`crate::Setting`].

use std::collections::BTreeMap;

use crate::item::Item;
use crate::kind::Kind;
use crate::print::joined;

/// The blocks and statements that a text can have.
#[derive(Clone, Debug, Default)]
pub struct Dialect {
    /// The blocks that stand outside of others.
    pub blocks: Vec<BlockRule>,
    /// The statements that stand outside of blocks.
    pub statements: Vec<StatementRule>,
}

/// One kind of block.
#[derive(Clone, Debug, Default)]
pub struct BlockRule {
    /// The word that opens the block.
    pub keyword: String,
    /// The block's head is a list of names instead of one name.
    pub has_names: bool,
    /// The statements of the block.
    pub statements: Vec<StatementRule>,
    /// Pairs of keywords; each block has exactly one of the two.
    pub one_of: Vec<[&'static str; 2]>,
    /// A keyword and its value beside which a block may have both of [`one_of`](Self::one_of).
    pub both_beside: Option<[&'static str; 2]>,
    /// The blocks inside, which have no blocks inside themselves.
    pub inner: Vec<BlockRule>,
    /// The statements by the name of the block, if they depend on it. A block of another name is read, but
    /// not understood.
    pub modules: Option<BTreeMap<&'static str, Vec<StatementRule>>>,
    /// The feature that a host must have to enforce the block; none if Usher alone is enough.
    pub needs: Option<&'static str>,
}

/// How often a statement may stand in its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occurrence {
    /// Exactly once.
    Once,
    /// Once or not at all.
    #[default]
    AtMostOnce,
    /// Once or more.
    AtLeastOnce,
    /// Any number of times.
    Any,
}

/// One kind of statement.
#[derive(Clone, Debug, Default)]
pub struct StatementRule {
    /// The word that begins the statement. A word that ends with `=` has the first value directly after it.
    pub keyword: String,
    /// How often the statement may stand in its block.
    pub occurrence: Occurrence,
    /// The values that follow.
    pub shape: Shape,
    /// A keyword, or a keyword and its value, without which the statement has no meaning: `style user`.
    pub beside: Option<String>,
    /// The feature that a host must have to enforce the statement; none if Usher alone is enough.
    pub needs: Option<String>,
    /// The purpose of the statement, in one line.
    pub about: String,
    /// The beginnings of wrong words that people write for the keyword.
    pub slips: &'static [&'static str],
}

/// The values of a statement.
#[derive(Clone, Debug, Default)]
pub enum Shape {
    /// `keyword;`
    #[default]
    Nothing,
    /// `keyword VALUE;`
    One(Kind),
    /// `keyword VALUE VALUE ...;`
    Sequence(Kind),
    /// `keyword VALUE, VALUE, ...;`
    List(Kind),
    /// The word `any` alone, or a list.
    AnyOr(Kind),
    /// Values and words in a fixed order.
    Phrase(Vec<Part>),
    /// A form that the dialect's own check reads. The text shows that form, with backquotes.
    Own(String),
}

/// A part of a [`Shape::Phrase`].
#[derive(Clone, Debug)]
pub enum Part {
    /// A word that stands there.
    Word(String),
    /// A value.
    Value(Kind),
    /// A word and a value, or neither.
    Optional(String, Kind),
}

impl Dialect {
    /// The block that a keyword opens outside of others.
    pub fn block(&self, keyword: &str) -> Option<&BlockRule> {
        self.blocks.iter().find(|rule| rule.keyword == keyword)
    }

    /// The statement that begins with a word outside of blocks.
    pub fn statement(&self, keyword: &str) -> Option<&StatementRule> {
        self.statements
            .iter()
            .find(|rule| rule.begins_with(keyword))
    }

    /// A dialect with the blocks and statements of both; those of this one come first. No word may begin a
    /// block or statement in both.
    pub fn join(mut self, other: Self) -> Self {
        self.blocks.extend(other.blocks);
        self.statements.extend(other.statements);
        self
    }

    /// Whether a word begins something outside of blocks.
    pub(crate) fn begins(&self, word: &str) -> bool {
        self.block(word).is_some() || self.statement(word).is_some()
    }

    /// The words that may stand outside of blocks.
    pub(crate) fn outer_words(&self) -> impl Iterator<Item = &str> {
        let blocks = self.blocks.iter().map(|rule| rule.keyword.as_str());
        blocks.chain(self.statements.iter().map(|rule| rule.keyword.as_str()))
    }

    /// The block in which a keyword of a block or statement may stand.
    pub(crate) fn home_of(&self, keyword: &str) -> Option<&BlockRule> {
        let inner = |rule: &&BlockRule| rule.inner.iter().any(|inner| inner.keyword == keyword);
        let says = |rule: &&BlockRule| rule.statements.iter().any(|rule| rule.begins_with(keyword));
        let all = || {
            self.blocks
                .iter()
                .chain(self.blocks.iter().flat_map(|rule| &rule.inner))
        };
        self.blocks.iter().find(inner).or_else(|| all().find(says))
    }
}

impl BlockRule {
    /// The statements of a block of this kind and name; none for a block that is not understood.
    pub fn statements_of(&self, name: Option<&str>) -> Option<&[StatementRule]> {
        match &self.modules {
            None => Some(&self.statements),
            Some(modules) => modules.get(name?).map(Vec::as_slice),
        }
    }

    /// The kind of block that a keyword opens inside of this one.
    pub(crate) fn inner(&self, keyword: &str) -> Option<&Self> {
        self.inner.iter().find(|rule| rule.keyword == keyword)
    }
}

impl StatementRule {
    /// A statement with these values.
    pub fn new(keyword: &str, occurrence: Occurrence, shape: Shape, about: &str) -> Self {
        Self {
            keyword: keyword.to_owned(),
            occurrence,
            shape,
            about: about.to_owned(),
            ..Self::default()
        }
    }

    /// Gives the statement a meaning only in a block that also says `beside`.
    pub fn beside(mut self, beside: &str) -> Self {
        self.beside = Some(beside.to_owned());
        self
    }

    /// Also recognizes wrong words for the keyword, by these beginnings.
    pub fn slips(mut self, beginnings: &'static [&'static str]) -> Self {
        self.slips = beginnings;
        self
    }

    /// Requires a feature of the host that is to enforce the statement.
    pub fn needs(mut self, needs: &str) -> Self {
        self.needs = Some(needs.to_owned());
        self
    }

    /// Whether a statement that begins with this word is of this kind.
    pub(crate) fn begins_with(&self, word: &str) -> bool {
        if self.keyword.ends_with('=') {
            word.starts_with(&self.keyword)
        } else {
            word == self.keyword
        }
    }

    /// Whether a word begins a statement of this kind by mistake.
    pub(crate) fn is_slip(&self, word: &str) -> bool {
        self.slips.iter().any(|slip| word.starts_with(slip))
    }

    /// Whether the statement is complete before this word, because the word cannot be another value of its
    /// last group. If the word begins something else, it then does so even in the middle of a line.
    pub(crate) fn is_full(&self, group: &[Item], word: &str) -> bool {
        let longest = match &self.shape {
            Shape::Nothing => 0,
            Shape::One(Kind::Choice(words)) if words.iter().any(|own| own == word) => usize::MAX,
            Shape::One(_) | Shape::List(_) | Shape::AnyOr(_) => 1,
            Shape::Phrase(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Word(_) | Part::Value(_) => 1,
                    Part::Optional(..) => 2,
                })
                .sum(),
            Shape::Sequence(_) | Shape::Own(_) => usize::MAX,
        };
        group.len() >= longest
    }

    /// Whether a word that begins something else is a part of this statement.
    pub(crate) fn has_word(&self, word: &str) -> bool {
        let Shape::Phrase(parts) = &self.shape else {
            return false;
        };
        parts.iter().any(|part| match part {
            Part::Word(own) | Part::Optional(own, _) => own == word,
            Part::Value(_) => false,
        })
    }

    /// The form of the statement, with backquotes.
    pub fn form(&self) -> String {
        let keyword = &self.keyword;
        let forms = |kind: &Kind, rest: &str| {
            let forms = kind.placeholders().into_iter();
            joined(
                forms.map(|value| format!("`{keyword} {value}{rest};`")),
                " or ",
            )
        };
        match &self.shape {
            Shape::Own(form) => form.clone(),
            Shape::Nothing => format!("`{keyword};`"),
            Shape::One(kind) => forms(kind, ""),
            Shape::Sequence(kind) => forms(kind, " ..."),
            Shape::List(kind) => forms(kind, ", ..."),
            Shape::AnyOr(kind) => format!("{} or `{keyword} any;`", forms(kind, ", ...")),
            Shape::Phrase(parts) => {
                let value = |kind: &Kind| kind.placeholders().join("|");
                let parts = parts.iter().map(|part| match part {
                    Part::Word(word) => word.clone(),
                    Part::Value(kind) => value(kind),
                    Part::Optional(word, kind) => format!("[{word} {}]", value(kind)),
                });
                format!("`{keyword} {};`", joined(parts, " "))
            }
        }
    }
}
