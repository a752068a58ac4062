//! Mistakes: what is wrong with a text, and what to do about it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use strsim::osa_distance;

use crate::source::{Location, Origin, Place, Source, Span, place_of};

/// One thing that is wrong. Displays as an explanation.
///
/// Every dialect declares its own mistakes with [`mistakes!`](crate::mistakes).
pub trait Mistake: Any + fmt::Debug + fmt::Display + Send + Sync {
    /// The remedy: one sentence for the administrator.
    fn remedy(&self) -> String;
}

/// Declares mistakes: each with its fields, its text and, beside the text, its remedy. Both are
/// format strings over the fields.
///
/// ```
/// usher_language::mistakes! {
///     /// Mistakes about a door.
///     pub enum DoorMistake {
///         /// No key opens it.
///         NoKey { door: String }
///             => "no key opens the door `{door}`"; "write `key \"...\";` for {}", door.to_uppercase();
///     }
/// }
/// use usher_language::Mistake;
/// let mistake = DoorMistake::NoKey { door: "cellar".to_owned() };
/// assert_eq!(mistake.to_string(), "no key opens the door `cellar`");
/// assert_eq!(mistake.remedy(), "write `key \"...\";` for CELLAR");
/// ```
#[macro_export]
macro_rules! mistakes {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $variant:ident $({ $($field:ident: $type:ty),+ $(,)? })?
            => $text:literal $(, $argument:expr)*; $remedy:literal $(, $remedy_argument:expr)*;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each field is the value that its text shows")]
        pub enum $name {
            $($(#[$doc])* $variant $({ $($field: $type),+ })?,)+
        }

        #[allow(unused_variables, reason = "a text shows some fields, a remedy others")]
        impl ::std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),+ })? => write!(formatter, $text $(, $argument)*),)+
                }
            }
        }

        #[allow(unused_variables, reason = "a text shows some fields, a remedy others")]
        impl $crate::Mistake for $name {
            fn remedy(&self) -> String {
                match self {
                    $(Self::$variant $({ $($field),+ })? => format!($remedy $(, $remedy_argument)*),)+
                }
            }
        }
    };
}

/// One mistake and where it is. Displays as `file:line:column: reason`.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// The place of the mistake.
    pub place: Place,
    /// The text at fault, in bytes of its source.
    pub span: Span,
    /// The reason.
    pub kind: Arc<dyn Mistake>,
}

impl Diagnostic {
    /// A mistake of a statement that was read without one.
    pub fn at(origin: &Origin, kind: impl Mistake) -> Self {
        Self {
            place: origin.place.clone(),
            span: origin.span,
            kind: Arc::new(kind),
        }
    }

    pub(crate) fn of(sources: &[Source], location: Location, kind: Arc<dyn Mistake>) -> Self {
        let (place, span) = (place_of(sources, location), location.span);
        Self { place, span, kind }
    }

    /// The remedy: one sentence for the administrator.
    pub fn remedy(&self) -> String {
        self.kind.remedy()
    }

    /// The reason as a mistake of type `M`, if it is one.
    pub fn is<M: Mistake>(&self) -> Option<&M> {
        (&*self.kind as &dyn Any).downcast_ref()
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.kind)
    }
}

impl std::error::Error for Diagnostic {}

impl PartialEq for Diagnostic {
    fn eq(&self, other: &Self) -> bool {
        (self.span, self.to_string()) == (other.span, other.to_string())
    }
}

impl Eq for Diagnostic {}

/// Text of a policy. Its display is fit for a terminal: on one line, short, without invisible characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found(pub String);

impl From<&str> for Found {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Found {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&shown(60, &self.0))
    }
}

/// A text that others wrote, made safe to print on a terminal, and cut to so many characters.
pub fn shown(longest: usize, text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars().take(longest) {
        let is_plain = character == ' '
            || if character.is_ascii() {
                character.is_ascii_graphic()
            } else {
                character.is_alphanumeric()
            };
        if is_plain {
            shown.push(character)
        } else {
            shown.extend(character.escape_default())
        }
    }
    if text.chars().nth(longest).is_some() {
        shown.push_str("...");
    }
    shown
}

/// A remedy that first asks whether another word was meant.
pub fn did_you_mean(nearest: &Option<String>, otherwise: impl fmt::Display) -> String {
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`? otherwise {otherwise}"),
        None => otherwise.to_string(),
    }
}

/// The candidate that a slip of the fingers most likely meant, or none when no candidate is near
/// enough (a third of the word's letters, at least one, at most three). Letter case does not count.
pub fn nearest<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // Longer than any keyword or name can be: not a slip, and not worth the work.
    if found.len() > 64 {
        return None;
    }
    let limit = (found.chars().count() / 3).clamp(1, 3);
    let lowercase = found.to_lowercase();
    candidates
        .into_iter()
        .filter(|candidate| candidate.len().abs_diff(found.len()) <= limit * 4)
        .map(|candidate| {
            (
                osa_distance(&lowercase, &candidate.to_lowercase()),
                candidate,
            )
        })
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_word_that_was_meant() {
        let words = ["listen", "style", "session", "hosts"];
        assert_eq!(nearest("lisen", words), Some("listen".to_owned()));
        assert_eq!(nearest("lsiten", words), Some("listen".to_owned()));
        assert_eq!(nearest("HOSTS", words), Some("hosts".to_owned()));
        assert_eq!(nearest("frobnicate", words), None);
        assert_eq!(nearest("", words), None);
    }

    #[test]
    fn counts_single_slips_as_one() {
        assert_eq!(osa_distance("abcd", "abcd"), 0);
        assert_eq!(osa_distance("abcd", "abd"), 1);
        assert_eq!(osa_distance("abcd", "acbd"), 1);
        assert_eq!(osa_distance("abcd", "axcd"), 1);
        assert_eq!(osa_distance("", "abc"), 3);
    }
}
