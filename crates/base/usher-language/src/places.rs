//! The places of a policy's statements, for explanations. The model of a policy keeps the places of
//! a few statements only ([`Origin`](crate::Origin)): the daemons have no use for them.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::item::{Value, shown_together};
use crate::source::{Location, Place, Source};
use crate::tree::Block;

/// A block, a statement of it, or one value of the statement, named by what it says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Clause {
    /// The keyword of its block.
    pub block: String,
    /// The block's name.
    pub name: String,
    /// The statement's keyword; empty for the block itself.
    pub keyword: String,
    /// One value of the statement's list, its words joined by single spaces
    /// (`imap at mailhost port 143`); empty for the statement as a whole.
    pub value: String,
}

impl Clause {
    /// A block.
    pub fn block(block: impl fmt::Display, name: impl fmt::Display) -> Self {
        Self::statement(block, name, "")
    }

    /// A statement.
    pub fn statement(block: impl fmt::Display, name: impl fmt::Display, keyword: &str) -> Self {
        Self::value(block, name, keyword, "")
    }

    /// One value of a statement.
    pub fn value(
        block: impl fmt::Display,
        name: impl fmt::Display,
        keyword: &str,
        value: impl fmt::Display,
    ) -> Self {
        Self {
            block: block.to_string(),
            name: name.to_string(),
            keyword: keyword.to_owned(),
            value: value.to_string(),
        }
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            block,
            name,
            keyword,
            value,
        } = self;
        match (keyword.as_str(), value.as_str()) {
            ("", _) => write!(formatter, "{block} {name}"),
            (_, "") => write!(formatter, "{block} {name}: {keyword}"),
            _ => write!(formatter, "{block} {name}: {keyword} {value}"),
        }
    }
}

/// The places of a policy's clauses.
#[derive(Clone, Debug)]
pub struct Places<'s> {
    sources: &'s [Source],
    /// For each source, the bytes at which its lines begin: thousands of places may be asked for.
    lines: Vec<Vec<usize>>,
    clauses: BTreeMap<Clause, Location>,
}

impl<'s> Places<'s> {
    /// The places of blocks that were read from these sources.
    pub fn of(sources: &'s [Source], blocks: &[Block<'_>]) -> Self {
        let mut clauses = BTreeMap::new();
        for block in blocks {
            let Some(name) = block.name() else { continue };
            let (kind, name) = (&block.rule.keyword, name.shown());
            clauses.insert(Clause::block(kind, &name), block.location);
            for statement in &block.statements {
                // Where a statement may stand several times, the first one speaks for all.
                clauses
                    .entry(Clause::statement(kind, &name, &statement.keyword))
                    .or_insert(statement.location);
                for group in &statement.groups {
                    let mut items = group.iter();
                    let first = items.find(|item| !matches!(item.value, Value::Broken));
                    if let Some(first) = first {
                        let value = shown_together(group);
                        let clause = Clause::value(kind, &name, &statement.keyword, value);
                        clauses.entry(clause).or_insert(first.location);
                    }
                }
            }
        }
        let lines = sources.iter().map(|source| {
            let ends = source.text.match_indices('\n').map(|(end, _)| end);
            std::iter::once(0).chain(ends.map(|end| end + 1)).collect()
        });
        Self {
            sources,
            lines: lines.collect(),
            clauses,
        }
    }

    /// The place of a clause; none for a clause that the policy does not contain, such as a
    /// default.
    pub fn place(&self, clause: &Clause) -> Option<Place> {
        let Location { source, span } = *self.clauses.get(clause)?;
        let lines = &self.lines[source];
        let line = lines.partition_point(|begin| *begin <= span.offset);
        let Source { name, text } = &self.sources[source];
        let before = &text[lines[line - 1]..span.offset];
        Some(Place {
            file: name.clone(),
            line,
            column: before.chars().count() + 1,
        })
    }

    /// The place of a clause, or of the block in which it would have to stand.
    pub fn nearest(&self, clause: &Clause) -> Option<Place> {
        let block = Clause::block(&clause.block, &clause.name);
        self.place(clause).or_else(|| self.place(&block))
    }
}
