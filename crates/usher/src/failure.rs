//! What can go wrong on the command line, how it reads, and the exit code it gives.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use usher_local::control::{ControlError, EndingView};
use usher_local::error::ConfigurationError;
use usher_log::LogError;
use usher_policy::{PolicyError, Source};
use usher_proto::name::UserName;

use crate::commands::ending;
use crate::excerpt::Excerpt;
use crate::output::{escaped, tell};

/// Why a command failed. Exit codes: 1 the thing asked for is refused or wrong, 2 the command
/// line (clap), 3 a daemon does not answer, 4 a file or the system, 5 a user has been cut off and
/// something is left to be done about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The policy has errors.
    #[error("the policy has errors; nothing has changed")]
    Policy {
        /// The errors.
        errors: Vec<PolicyError>,
        /// Texts they point into.
        sources: Vec<Source>,
    },
    /// Files are not in the canonical form.
    #[error("{0} file(s) are not in the canonical form; `usher policy fmt` writes them in it")]
    NotFormatted(usize),
    /// Keys or files of the configuration are wrong.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// A daemon did not answer or refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A daemon refused the configuration; the former one is in force again.
    #[error(
        "{0}; the former configuration is in force again. To go on without that daemon, stop it and \
         apply again"
    )]
    RolledBack(ControlError, Vec<EndingView>),
    /// A daemon refused the configuration, and going back failed as well.
    #[error(
        "{0}; going back to the former configuration failed as well ({1}): restart the daemons"
    )]
    NotRolledBack(ControlError, String, Vec<EndingView>),
    /// The configuration is in force with the other daemons.
    #[error(
        "configuration {0} is in force, but not with every daemon: {1}; restart the ones that are \
         named, they read it when they start"
    )]
    NotTaken(u64, String, Vec<EndingView>),
    /// The configuration is in force, but live sessions could not be ended.
    #[error(
        "configuration {0} is in force, but {1}: live sessions and connections that it forbids \
         have NOT been ended; they are as soon as the keeper runs (systemctl start usher-keeper)"
    )]
    KeeperUnreached(u64, ControlError),
    /// A user is refused by daemons and that is not stored.
    #[error(
        "{user} has been cut off and is refused by: {}. This is NOT stored ({error}): it ends when \
         these daemons are restarted. Make room, and disable {user} again", .daemons.join(", ")
    )]
    NotStored {
        /// The user.
        user: UserName,
        /// The daemons.
        daemons: Vec<String>,
        /// Why it is not stored.
        error: String,
        /// What was ended.
        ended: Vec<EndingView>,
    },
    /// A user is disabled, and something of the user's is still there.
    #[error("{user} is disabled, but not all has ended: {}", .left.join("; "))]
    Unfinished {
        /// The user.
        user: UserName,
        /// What is left, in words.
        left: Vec<String>,
        /// What was ended.
        ended: Vec<EndingView>,
    },
    /// A user is disabled, and the keeper has not ended what the user has open.
    #[error(
        "{user} is disabled (configuration {generation}), but live sessions and connections of \
         {user} on this host have NOT been ended: {error}. The next keeper ends them when it starts"
    )]
    NotCut {
        /// The user.
        user: UserName,
        /// The configuration's number.
        generation: u64,
        /// What the keeper says, or that it says nothing.
        error: ControlError,
    },
    /// A file.
    #[error("{path}: {error}{}", needs_root(.error))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The user is not known here.
    #[error("no user {0} is known on this host; make one known with `usher user add {0}`")]
    UnknownUser(UserName),
    /// A private key cannot be kept.
    #[error("{path}: {reason}")]
    PrivateKey {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A public key cannot be taken.
    #[error("{0}")]
    PublicKey(String),
    /// A host with this name is already there.
    #[error("{0} exists already; edit it, or remove it first")]
    HostExists(PathBuf),
    /// A question about policies that cannot be answered.
    #[error("{0}")]
    Question(String),
    /// Something this host lacks.
    #[error("{0}")]
    Host(String),
    /// There is no ssh-agent to lend.
    #[error("{0}")]
    Agent(String),
    /// No connection.
    #[error(transparent)]
    Connect(#[from] usher::ConnectError),
    /// A connection that did not come to its end.
    #[error(
        "the connection broke before its end ({0}); what was received may be a part only. The \
         service, the network, or an end of the user's access (`usher who --recent` on the server) \
         has done it"
    )]
    Broken(io::Error),
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] usher_system::SystemError),
    /// The signed log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A record of the log is not a client's.
    #[error("nobody has signed record {index} of the log: {error}; `usher log verify` says more")]
    LogRecord {
        /// The record.
        index: u64,
        /// What is wrong with it.
        error: usher_log::RecordError,
    },
    /// A record whose certificate names nobody whom ssh-keygen can be told.
    #[error(
        "record {index} of the log: no principal of its certificate is of letters, digits and \
         `._@+-` only, so no list of allowed signers is written; `usher log verify` checks it"
    )]
    UnusablePrincipals {
        /// The record.
        index: u64,
    },
    /// `usher doctor` found something that the main job needs.
    #[error("this host lacks what is marked above")]
    Unhealthy,
}

fn needs_root(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run this as root",
        _ => "",
    }
}

/// Names the file of an I/O error.
pub trait At<T> {
    /// Names the file.
    ///
    /// # Errors
    /// The same error, with its file.
    fn at(self, path: impl Into<PathBuf>) -> Result<T, Failure>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: impl Into<PathBuf>) -> Result<T, Failure> {
        self.map_err(|error| Failure::File {
            path: path.into(),
            error,
        })
    }
}

impl Failure {
    /// Writes to standard error what went wrong.
    pub fn report(&self, json: bool) -> ExitCode {
        if json {
            tell(&format!("{}\n", self.json()));
        } else {
            if let Self::Policy { errors, sources } = self {
                report_policy(errors, sources);
            }
            tell(&escaped(&ending::lines("ended", self.ended())));
            tell(&format!("usher: {}\n", escaped(&self.to_string())));
        }
        ExitCode::from(self.code())
    }

    /// As [`Failure::report`], for a command whose exit status 1 is an answer: what is wrong with
    /// what is asked about has that of a wrong command line.
    pub fn report_unanswered(&self, json: bool) -> ExitCode {
        self.report(json);
        ExitCode::from(match self.code() {
            1 => 2,
            code => code,
        })
    }

    /// What was ended all the same.
    fn ended(&self) -> &[EndingView] {
        match self {
            Self::RolledBack(_, ended)
            | Self::NotRolledBack(_, _, ended)
            | Self::NotTaken(_, _, ended)
            | Self::NotStored { ended, .. }
            | Self::Unfinished { ended, .. } => ended,
            _ => &[],
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::NotStored { .. } | Self::Unfinished { .. } => 5,
            Self::Control(
                ControlError::NotRunning { .. }
                | ControlError::Hangs { .. }
                | ControlError::Broken { .. },
            )
            | Self::NotCut { .. }
            | Self::KeeperUnreached(..)
            | Self::NotTaken(..)
            | Self::Connect(usher::ConnectError::NoSigner(_)) => 3,
            Self::File { .. }
            | Self::Configuration(ConfigurationError::File { .. })
            | Self::Log(LogError::File { .. })
            | Self::Kernel(_) => 4,
            _ => 1,
        }
    }

    fn json(&self) -> serde_json::Value {
        let mut value = serde_json::json!({ "error": self.to_string() });
        if let Self::Policy { errors, .. } = self {
            value["policy_errors"] = errors
                .iter()
                .map(|error| {
                    serde_json::json!({
                        "file": error.file, "line": error.line, "column": error.column,
                        "reason": error.kind.to_string(), "remedy": error.remedy(),
                    })
                })
                .collect();
        }
        if !self.ended().is_empty() {
            value["ended"] = serde_json::json!(self.ended());
        }
        match self {
            Self::Log(LogError::Damaged(damage)) => {
                value["damage"] = damage.kind().into();
                value["index"] = damage.index().into();
            }
            Self::LogRecord { index, .. } => {
                value["damage"] = "forged".into();
                value["index"] = (*index).into();
            }
            _ => {}
        }
        value
    }
}

fn report_policy(errors: &[PolicyError], sources: &[Source]) {
    for error in errors {
        // On a terminal the report has colours: what others wrote is escaped before.
        let (reason, remedy) = (error.kind.to_string(), error.remedy());
        let mut diagnostic =
            miette::MietteDiagnostic::new(escaped(&reason)).with_help(escaped(&remedy));
        let source = sources.iter().find(|source| source.name == error.file);
        let excerpt = source.map(|source| Excerpt::new(error, &source.text));
        if let Some(excerpt) = &excerpt {
            diagnostic = diagnostic.with_label(miette::LabeledSpan::underline(excerpt.span));
        }
        let report = miette::Report::new(diagnostic);
        let report = match excerpt {
            Some(excerpt) => report.with_source_code(excerpt),
            None => report,
        };
        // The first line is what editors and people with grep look for.
        tell(&format!(
            "{}:{}:{}:\n{report:?}\n",
            escaped(&error.file),
            error.line,
            error.column
        ));
    }
}
