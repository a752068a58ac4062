//! The statements of the framework itself, which is no module: what holds for the labels of all modules.
//!
//! ```text
//! mac framework { multilabel "/srv", "/home"; }
//! ```

use std::collections::BTreeSet;

use usher_language::{
    Fields, Found, Kind, Occurrence, Quoted, Reporter, Shape, StatementRule, Unique, is_plain_path,
    joined,
};

use crate::mistake::MacMistake;

/// The name of the framework's block. No module has it.
pub const FRAMEWORK_BLOCK: &str = "framework";

/// Most file systems of `multilabel`.
pub const MAXIMUM_MULTILABEL: usize = 16;

const MULTILABEL: &str = "multilabel";

/// The settings of the framework.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameworkSettings {
    /// Mount points of the file systems whose files have labels of their own, in their attributes.
    /// Attributes on other file systems are ignored.
    pub multilabel: BTreeSet<String>,
}

/// The statements of its block.
pub(crate) fn statements() -> Vec<StatementRule> {
    let shape = Shape::List(Kind::Text("\"/PATH\"".to_owned()));
    let about = "file systems whose files have labels of their own";
    vec![StatementRule::new(
        MULTILABEL,
        Occurrence::AtMostOnce,
        shape,
        about,
    )]
}

/// The settings of a block; paths with mistakes are left out.
pub(crate) fn settings(fields: &Fields<'_>, reporter: &Reporter<'_>) -> FrameworkSettings {
    let mut listed = Unique::default();
    for field in fields.all(MULTILABEL) {
        let hint = "a host has few file systems whose files need labels of their own";
        if field.has_too_many(MAXIMUM_MULTILABEL, hint) {
            continue;
        }
        for (path, item) in field.texts() {
            if path != "/" && !is_plain_path(path) {
                let found = Found(item.shown());
                let _: Option<()> = field.refuse(item, MacMistake::InvalidFileSystem { found });
                continue;
            }
            listed.list(path.to_owned(), item, reporter);
        }
    }
    FrameworkSettings {
        multilabel: listed.into_keys(),
    }
}

impl FrameworkSettings {
    /// The statements in their canonical form, without `;`.
    pub(crate) fn lines(&self) -> Vec<String> {
        if self.multilabel.is_empty() {
            return Vec::new();
        }
        let paths = self.multilabel.iter().map(|path| Quoted(path));
        vec![format!("{MULTILABEL} {}", joined(paths, ", "))]
    }
}
