//! The end of a service's program, as its client may learn it: a number and nothing that the program has
//! written.

use std::fmt;
use usher_base::codec::fields;

/// How a program has ended: by a signal, or with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramEnd {
    /// Whether a signal has ended it.
    pub by_signal: bool,
    /// The signal's number, or the exit status.
    pub number: u8,
}

fields! { ProgramEnd { by_signal: bool, number: u8 } }

impl ProgramEnd {
    /// The end with a status or, without one, by a signal, as waitid(2) reports them. None for a program
    /// that has succeeded, or whose end is unknown.
    #[must_use]
    pub fn failure(status: Option<i32>, signal: Option<i32>) -> Option<Self> {
        let by_signal = status.is_none();
        let number = u8::try_from(status.or(signal)?).ok()?;
        (by_signal || number != 0).then_some(Self { by_signal, number })
    }
}

impl fmt::Display for ProgramEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by_signal, number } = self;
        match by_signal {
            true => write!(formatter, "by signal {number}"),
            false => write!(formatter, "with status {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ProgramEnd;

    #[test]
    fn only_failures_have_an_end_to_tell() {
        let told = |status, signal| Some(ProgramEnd::failure(status, signal)?.to_string());
        assert_eq!(told(Some(89), None).as_deref(), Some("with status 89"));
        assert_eq!(told(None, Some(9)).as_deref(), Some("by signal 9"));
        assert_eq!(told(Some(0), None), None);
        assert_eq!(told(None, None), None);
    }
}
