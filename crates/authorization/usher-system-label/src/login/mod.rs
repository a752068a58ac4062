//! The label that a user gets at login, by mac.login(5) and the groups of the user's account.
//!
//! All that make processes of users ask here: pam_usher.so for sessions, the keeper for workers, and
//! `usher mac login` for people. The file counts only if root alone can write it, because its labels
//! are given with root's privileges.

mod file;
mod people;

pub use file::{MAC_LOGIN, read_login_labels};
pub use people::{Person, deciding_line, is_group, user_id};

use std::path::Path;

use nix::errno::Errno;
use usher_label::LoginLine;
use usher_language::Diagnostic;
use usher_system::roots_file::RootsFileError;

use crate::process::{ProcessLabelError, labels_processes, set_own};

/// A reason that a user has no session. Displays as an explanation with its remedy.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The file is not root's alone, or cannot be read.
    #[error(transparent)]
    File(#[from] RootsFileError),
    /// The file has mistakes, at least one.
    #[error("{}", first(.0))]
    Mistakes(Vec<Diagnostic>),
    /// There is no such account.
    #[error("there is no account {0:?}, so its label is unknown")]
    NoAccount(String),
    /// The name service does not answer.
    #[error(
        "the name service cannot look up {subject}: {error}; the label of {user} depends on it"
    )]
    NameService {
        /// The user or group that was looked up.
        subject: String,
        /// Whose label is wanted.
        user: String,
        /// The reason.
        error: Errno,
    },
    /// The kernel does not say whether modules label processes.
    #[error("cannot ask the kernel for labels: {0}")]
    Kernel(ProcessLabelError),
    /// A module refuses the label.
    #[error("{}", refused(.user, .line, .error))]
    Refused {
        /// The user.
        user: String,
        /// The line that decides.
        line: Box<LoginLine>,
        /// The reason.
        error: ProcessLabelError,
    },
}

/// The line that decides for a user by this host's file; `None` without a file or a line.
///
/// # Errors
///
/// The file cannot be used, or the name service does not know, and a module in force labels processes.
/// While none does, faults lock nobody out.
pub fn wanted(user: &str) -> Result<Option<LoginLine>, LoginError> {
    if_in_force(line_for(Path::new(MAC_LOGIN), || Person::of(user)))
}

/// As [`wanted`], for an account that the caller has looked up.
///
/// # Errors
///
/// As [`wanted`].
pub fn wanted_by(person: &Person) -> Result<Option<LoginLine>, LoginError> {
    if_in_force(line_for(Path::new(MAC_LOGIN), || Ok(person.clone())))
}

fn line_for(
    file: &Path,
    person: impl FnOnce() -> Result<Person, LoginError>,
) -> Result<Option<LoginLine>, LoginError> {
    let Some(labels) = read_login_labels(file)? else {
        return Ok(None);
    };
    Ok(deciding_line(&labels, &person()?)?.cloned())
}

fn if_in_force(
    found: Result<Option<LoginLine>, LoginError>,
) -> Result<Option<LoginLine>, LoginError> {
    let Err(error) = found else {
        return found;
    };
    if labels_processes().map_err(LoginError::Kernel)? {
        Err(error)
    } else {
        Ok(None)
    }
}

/// Gives the calling process the label of a user, for good.
///
/// # Errors
///
/// As [`wanted`]; a module refuses. The process has its former label then.
pub fn enter_login_label(user: &str) -> Result<(), LoginError> {
    let Some(line) = wanted(user)? else {
        return Ok(());
    };
    let Some(label) = &line.label else {
        return Ok(());
    };
    match set_own(label) {
        // No module in force labels processes.
        Ok(()) | Err(ProcessLabelError::NotSupported) => Ok(()),
        Err(error) => Err(LoginError::Refused {
            user: user.to_owned(),
            line: Box::new(line),
            error,
        }),
    }
}

fn refused(user: &str, line: &LoginLine, error: &ProcessLabelError) -> String {
    let label = line.label.as_ref().map(ToString::to_string);
    format!(
        "{user} gets the label {} by line {} of {MAC_LOGIN} (`{}`), and the kernel refuses it: {error}; change \
         the line, or load the module of the element (`usher mac list` shows the modules)",
        label.unwrap_or_default(),
        line.line,
        line.subject
    )
}

fn first(mistakes: &[Diagnostic]) -> String {
    let Some(first) = mistakes.first() else {
        return "a mistake".to_owned();
    };
    let rest = match mistakes.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let remedy = first.remedy();
    format!("{first}; {remedy}{rest} (`usher mac login` checks the file)")
}
