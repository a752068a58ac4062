//! The part of the language that a system adds: its blocks and statements, as tables.
//!
//! A [`Dialect`] is data. A system that is compiled in makes its tables in code; a module that is
//! loaded at run time brings the statements of its block as a [`Vec<StatementRule>`], which can be
//! deserialized, and [`Dialect::declare`] takes them up. From there on both are read, checked and
//! printed by the same code.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::item::Item;
use crate::kind::Kind;
use crate::name::{Name, is_keyword};
use crate::print::joined;

/// Limit of statements of one module.
pub const MAXIMUM_DECLARED: usize = 256;

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
    /// The word that opens it.
    pub keyword: String,
    /// Its head is a list of names instead of one name.
    pub has_names: bool,
    /// Its statements.
    pub statements: Vec<StatementRule>,
    /// Its keywords of which each block has exactly one.
    pub one_of: Vec<[&'static str; 2]>,
    /// The blocks inside. These have no blocks inside.
    pub inner: Vec<BlockRule>,
    /// The statements of blocks of one name, which modules declare.
    pub modules: Option<Modules>,
    /// The feature that a host must have to enforce it; none if Usher alone is enough.
    pub needs: Option<&'static str>,
}

/// The statements that modules declare for their blocks.
#[derive(Clone, Debug, Default)]
pub struct Modules {
    /// By the module's name, which is the block's.
    pub declared: BTreeMap<String, Vec<StatementRule>>,
    /// A block of a module that nothing declares is read without being understood; otherwise it is a
    /// mistake.
    pub open: bool,
}

/// How often a statement may stand in its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occurrence {
    /// Needed, and not twice.
    Once,
    /// Not twice.
    #[default]
    AtMostOnce,
    /// Needed, and as often as it takes.
    AtLeastOnce,
    /// As often as it takes.
    Any,
}

/// One kind of statement.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatementRule {
    /// The word that begins it. One that ends with `=` has its first value behind it.
    pub keyword: String,
    /// How often it may stand.
    #[serde(default)]
    pub occurrence: Occurrence,
    /// The values that follow.
    #[serde(default)]
    pub shape: Shape,
    /// A keyword, or a keyword and its value, without which it has no meaning: `style user`.
    #[serde(default)]
    pub beside: Option<String>,
    /// The feature that a host must have to enforce it; none if Usher alone is enough.
    #[serde(default)]
    pub needs: Option<String>,
    /// Its purpose, in one line.
    #[serde(default)]
    pub about: String,
    /// Beginnings of words by which people begin it mistakenly.
    #[serde(skip)]
    pub slips: &'static [&'static str],
}

/// The values of a statement.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// Something else, which the dialect's own check reads. How it is written, with backquotes.
    #[serde(skip)]
    Own(String),
}

/// A part of a [`Shape::Phrase`].
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A word that stands there.
    Word(String),
    /// A value.
    Value(Kind),
    /// A word and a value, or neither.
    Optional(String, Kind),
}

/// A fault of a module's declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are named for what they are")]
pub enum DeclarationFault {
    /// No block takes modules by this keyword.
    #[error("no block `{block}` takes the statements of modules")]
    NoSuchBlock { block: String },
    /// The module's name cannot be a block's.
    #[error("`{module}` cannot be the name of a module: {}", Name::RULE)]
    InvalidModule { module: String },
    /// The module is declared already.
    #[error("the module `{module}` is declared already")]
    DeclaredTwice { module: String },
    /// More than [`MAXIMUM_DECLARED`].
    #[error("a module declares {found} statements, more than {MAXIMUM_DECLARED}")]
    TooMany { found: usize },
    /// A keyword that cannot be read back, or that opens something else.
    #[error(
        "`{keyword}` cannot be a keyword: it is small letters, digits, `_` and `-`, begins with a \
         letter, has at most 32 of them and opens no block or statement of the language"
    )]
    InvalidKeyword { keyword: String },
    /// Two statements of one keyword.
    #[error("the statement `{keyword}` is declared twice")]
    RepeatedKeyword { keyword: String },
    /// Values that no text can have, or that could not be told apart.
    #[error(
        "the values of the statement `{keyword}` have no text: an empty range, or words that are none"
    )]
    NoValues { keyword: String },
    /// `beside` names no statement of the module.
    #[error(
        "the statement `{keyword}` stands beside `{beside}`, which the module does not declare"
    )]
    UnknownBeside { keyword: String, beside: String },
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

    /// The blocks and statements of both, this one's first: one text may have those of either. Nothing
    /// of the other may begin with a word that something of this one begins with.
    pub fn join(mut self, other: Self) -> Self {
        self.blocks.extend(other.blocks);
        self.statements.extend(other.statements);
        self
    }

    /// Takes up the statements that a module has for its block, `block module { ... }`.
    ///
    /// # Errors
    ///
    /// A [`DeclarationFault`]; the dialect is then what it was.
    pub fn declare(
        &mut self,
        block: &str,
        module: &str,
        statements: Vec<StatementRule>,
    ) -> Result<(), DeclarationFault> {
        self.check_declaration(module, &statements)?;
        let rule = self.blocks.iter_mut().find(|rule| rule.keyword == block);
        let Some(modules) = rule.and_then(|rule| rule.modules.as_mut()) else {
            let block = block.to_owned();
            return Err(DeclarationFault::NoSuchBlock { block });
        };
        let module = module.to_owned();
        if modules.declared.contains_key(&module) {
            return Err(DeclarationFault::DeclaredTwice { module });
        }
        modules.declared.insert(module, statements);
        Ok(())
    }

    fn check_declaration(
        &self,
        module: &str,
        statements: &[StatementRule],
    ) -> Result<(), DeclarationFault> {
        if module.parse::<Name>().is_err() {
            let module = module.to_owned();
            return Err(DeclarationFault::InvalidModule { module });
        }
        if statements.len() > MAXIMUM_DECLARED {
            let found = statements.len();
            return Err(DeclarationFault::TooMany { found });
        }
        let mut keywords = BTreeSet::new();
        for rule in statements {
            let keyword = rule.keyword.clone();
            if !is_keyword(&keyword) || self.begins(&keyword) {
                return Err(DeclarationFault::InvalidKeyword { keyword });
            }
            if !rule.shape.has_values() {
                return Err(DeclarationFault::NoValues { keyword });
            }
            if !keywords.insert(&rule.keyword) {
                return Err(DeclarationFault::RepeatedKeyword { keyword });
            }
        }
        for rule in statements {
            let beside = rule.beside.as_deref().unwrap_or(&rule.keyword);
            let stands = beside.split(' ').next().unwrap_or_default();
            if !keywords.iter().any(|keyword| *keyword == stands) {
                let (keyword, beside) = (rule.keyword.clone(), beside.to_owned());
                return Err(DeclarationFault::UnknownBeside { keyword, beside });
            }
        }
        Ok(())
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
    /// The statements of a block of this kind and name; none for a module that nothing declares.
    pub fn statements_of(&self, name: Option<&str>) -> Option<&[StatementRule]> {
        match &self.modules {
            None => Some(&self.statements),
            Some(modules) => modules.declared.get(name?).map(Vec::as_slice),
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

    /// The same, without a meaning where the block does not say this.
    pub fn beside(mut self, beside: &str) -> Self {
        self.beside = Some(beside.to_owned());
        self
    }

    /// The same, recognized where it begins with another of its words.
    pub fn slips(mut self, beginnings: &'static [&'static str]) -> Self {
        self.slips = beginnings;
        self
    }

    /// The same, enforced only by a host that has this.
    pub fn needs(mut self, needs: &str) -> Self {
        self.needs = Some(needs.to_owned());
        self
    }

    /// Whether a statement that begins with this word is of this kind.
    pub(crate) fn begins_with(&self, word: &str) -> bool {
        match self.keyword.ends_with('=') {
            true => word.starts_with(&self.keyword),
            false => word == self.keyword,
        }
    }

    /// Whether a word begins a statement of this kind by mistake.
    pub(crate) fn is_slip(&self, word: &str) -> bool {
        self.slips.iter().any(|slip| word.starts_with(slip))
    }

    /// Whether this word cannot be another value behind these of the last group: if it begins something
    /// else it does so, wherever it stands.
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

    /// How it is written, with backquotes.
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

impl Shape {
    /// Whether there are texts that have it, and a text says which values it means.
    fn has_values(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Own(_) => false,
            Self::One(kind) | Self::Sequence(kind) | Self::List(kind) | Self::AnyOr(kind) => {
                kind.has_values()
            }
            Self::Phrase(parts) => {
                !parts.is_empty()
                    && parts.iter().all(|part| match part {
                        Part::Word(word) => is_keyword(word),
                        Part::Value(kind) => kind.has_values(),
                        Part::Optional(word, kind) => is_keyword(word) && kind.has_values(),
                    })
            }
        }
    }
}
