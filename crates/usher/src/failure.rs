//! Failures of commands: their messages and exit codes.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use usher_base::{HostName, ServiceName, UserName};
use usher_daemon::control::ControlError;
use usher_local::error::ConfigurationError;
use usher_local::requests::EndingView;
use usher_log::LogError;
use usher_policy::{PolicyError, Source};

use crate::ending;
use crate::excerpt::Excerpt;
use crate::output::{escaped, tell};

/// A failed command. Exit codes: 1 the request is refused or wrong, 2 the command line is wrong
/// (clap), 3 a daemon does not answer, 4 a file or the system fails, 5 a user has been cut off and
/// the administrator must act.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The policy has errors.
    #[error("the policy has errors; nothing has changed")]
    Policy {
        errors: Vec<PolicyError>,
        sources: Vec<Source>,
    },
    /// Files are not in the canonical form.
    #[error("{0} file(s) are not in canonical form; `usher policy fmt` rewrites them")]
    NotFormatted(usize),
    /// The configuration is wrong.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// A configuration could not be stored, and is not in force.
    #[error("{0}; nothing has changed")]
    Unstored(ConfigurationError),
    /// A daemon did not answer or refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A daemon would refuse the configuration.
    #[error(
        "{0}; nothing has changed. To continue without that daemon, stop it and apply again; only a \
         policy that protects traffic needs the protector, and one with `mac` blocks the labeller"
    )]
    NotPrepared(ControlError),
    /// A daemon refused the configuration; the former configuration is in force again.
    #[error(
        "{0}; the former configuration is in force again. To continue without that daemon, stop it \
         and apply again; only a policy that protects traffic needs the protector, and one with `mac` \
         blocks the labeller"
    )]
    RolledBack(ControlError, Vec<EndingView>),
    /// A daemon refused the configuration, and the rollback failed too.
    #[error("{0}; the rollback to the former configuration failed too ({1}): restart the daemons")]
    NotRolledBack(ControlError, String, Vec<EndingView>),
    /// Only the other daemons have taken the configuration.
    #[error(
        "configuration {0} is in force, but not every daemon has taken it: {1}; restart these \
         daemons, which makes them read it"
    )]
    NotTaken(u64, String, Vec<EndingView>),
    /// The configuration is in force, but live sessions could not be ended.
    #[error(
        "configuration {0} is in force, but {1}: live sessions and connections that it forbids \
         have NOT been ended; the keeper ends them when it starts (systemctl start usher-keeper)"
    )]
    KeeperUnreached(u64, ControlError),
    /// Daemons refuse a user, and the refusal is not stored.
    #[error(
        "{user} has been cut off, and these daemons refuse {user}: {}. This is NOT stored ({error}) \
         and ends when they restart. Make room, and disable {user} again", .daemons.join(", ")
    )]
    NotStored {
        user: UserName,
        daemons: Vec<String>,
        /// The reason why it is not stored.
        error: String,
        ended: Vec<EndingView>,
    },
    /// A user is disabled, and something of the user still runs.
    #[error("{user} is disabled, but not everything has ended: {}", .left.join("; "))]
    Unfinished {
        user: UserName,
        /// The parts left, for people.
        left: Vec<String>,
        ended: Vec<EndingView>,
    },
    /// A user is disabled, and the keeper has not ended the user's sessions.
    #[error(
        "{user} is disabled (configuration {generation}), but live sessions and connections of \
         {user} on this host have NOT been ended: {error}. The keeper ends them when it goes on, or the \
         next one when it starts"
    )]
    NotCut {
        user: UserName,
        generation: u64,
        error: ControlError,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}{}", needs_root(.error))]
    File { path: PathBuf, error: io::Error },
    /// The system refused an operation: "cannot listen".
    #[error("{what}: {error}")]
    Attempt {
        what: &'static str,
        error: io::Error,
    },
    /// This host does not know the user.
    #[error(
        "this host does not know the user {0}; `usher user list` shows whom it knows, and `usher user add \
         {0}` adds one"
    )]
    UnknownUser(UserName),
    /// A host with this name already exists.
    #[error("{0} already exists; edit it, or remove it first")]
    HostExists(PathBuf),
    /// Anything else that is wrong with the request, its files or this host: the fault and the remedy.
    #[error("{0}")]
    Refused(String),
    /// A connection could not be made.
    #[error(transparent)]
    Connect(#[from] usher::ConnectError),
    /// The keeper did not say whose a connection is.
    #[error(transparent)]
    Service(#[from] usher::ServiceError),
    /// A connection broke.
    #[error(
        "the connection broke before its end ({0}), so the received data may be incomplete. The \
         service or the network failed, or the user's access ended (`usher who --recent` on the \
         server)"
    )]
    Broken(io::Error),
    /// The service's program has failed before it has sent anything.
    #[error(
        "the service's program ended {end} at once, before it sent anything. The administrator of \
         {host} finds the reason in the journal there, and the failure in `usher who`: the program of \
         the service {service}, its arguments and its environment in the policy of {host} may be wrong"
    )]
    ProgramFailed {
        host: HostName,
        service: ServiceName,
        end: usher::ProgramEnd,
    },
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] usher_system::SystemError),
    /// The signed log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A record of the log has no valid signature.
    #[error(
        "record {index} of the log has no valid signature: {error}; `usher log verify` says more"
    )]
    LogRecord {
        index: u64,
        error: usher_log::RecordError,
    },
    /// ssh-keygen accepts no principal of a record's certificate.
    #[error(
        "record {index} of the log: every principal of its certificate has characters besides \
         letters, digits and `._@+-`, so no list of allowed signers can be written; `usher log \
         verify` checks the record"
    )]
    UnusablePrincipals { index: u64 },
    /// `usher doctor` found something missing that this host needs.
    #[error("this host lacks what is marked MISSING above")]
    Unhealthy,
}

fn needs_root(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if rustix::process::geteuid().is_root() => {
            "; root itself is refused: by the file system, or by a security module"
        }
        io::ErrorKind::PermissionDenied => "; run this as root",
        _ => "",
    }
}

/// Names the file of an I/O error, or what was attempted.
pub trait At<T> {
    /// Names the file.
    fn at(self, path: impl Into<PathBuf>) -> Result<T, Failure>;

    /// Says what failed: "cannot listen".
    fn attempt(self, what: &'static str) -> Result<T, Failure>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: impl Into<PathBuf>) -> Result<T, Failure> {
        self.map_err(|error| Failure::File {
            path: path.into(),
            error,
        })
    }

    fn attempt(self, what: &'static str) -> Result<T, Failure> {
        self.map_err(|error| Failure::Attempt { what, error })
    }
}

impl Failure {
    /// A refusal for this reason.
    pub fn refused(reason: impl ToString) -> Self {
        Self::Refused(reason.to_string())
    }

    /// A refusal for what is wrong with a file.
    pub fn of_file(path: &Path, reason: impl Display) -> Self {
        Self::Refused(format!("{}: {reason}", path.display()))
    }

    /// Reports the failure on standard error.
    pub fn report(&self, json: bool) -> ExitCode {
        if json {
            tell(&format!("{}\n", self.json()));
        } else {
            if let Self::Policy { errors, sources } = self {
                report_policy(errors, sources);
            }
            tell(&escaped(&ending::ending_lines("ended", self.ended())));
            tell(&format!("usher: {}\n", escaped(&self.to_string())));
        }
        ExitCode::from(self.code())
    }

    /// As [`Failure::report`], for a command whose exit status 1 is an answer: a wrong policy has the
    /// exit status of a wrong command line.
    pub fn report_unanswered(&self, json: bool) -> ExitCode {
        self.report(json);
        ExitCode::from(match self.code() {
            1 => 2,
            code => code,
        })
    }

    /// The sessions that were ended nevertheless.
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
            | Self::NotPrepared(ControlError::Hangs { .. } | ControlError::Broken { .. })
            | Self::NotCut { .. }
            | Self::KeeperUnreached(..)
            | Self::NotTaken(..)
            | Self::Connect(usher::ConnectError::NoSigner(_))
            | Self::Service(usher::ServiceError::NoKeeper(_)) => 3,
            Self::File { .. }
            | Self::Attempt { .. }
            | Self::Configuration(ConfigurationError::File { .. })
            | Self::Unstored(_)
            | Self::Log(LogError::File { .. })
            | Self::Kernel(_) => 4,
            _ => 1,
        }
    }

    fn json(&self) -> serde_json::Value {
        // JSON of `errors, on standard error`:
        //   error: The error, for people.
        //   policy_errors: List of [`policy_error`]; only of a policy with mistakes.
        //   ended: List of [`EndingView`]: the sessions that ended although the command failed; only if there are any.
        //   damage: Of a log that is damaged: the word for the fault, as docs/PROTOCOL.md has it.
        //   index: The index of the first record concerned, or null.
        let mut value = serde_json::json!({ "error": self.to_string() });
        if let Self::Policy { errors, .. } = self {
            value["policy_errors"] = errors
                .iter()
                .map(|error| {
                    // JSON object [`policy_error`]:
                    //   file: The file.
                    //   line: Its line, from 1.
                    //   column: The column in characters, from 1.
                    //   reason: The mistake, for people.
                    //   remedy: What to do.
                    serde_json::json!({
                        "file": error.place.file, "line": error.place.line, "column": error.place.column,
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
        // The report has colours on a terminal, so what others wrote is escaped first.
        let (reason, remedy) = (error.kind.to_string(), error.remedy());
        let mut diagnostic =
            miette::MietteDiagnostic::new(escaped(&reason)).with_help(escaped(&remedy));
        let source = sources
            .iter()
            .find(|source| source.name == error.place.file);
        let excerpt = source.map(|source| Excerpt::new(error, &source.text));
        if let Some(excerpt) = &excerpt {
            diagnostic = diagnostic.with_label(miette::LabeledSpan::underline(excerpt.span));
        }
        let report = miette::Report::new(diagnostic);
        let report = match excerpt {
            Some(excerpt) => report.with_source_code(excerpt),
            None => report,
        };
        // Editors and grep look for the first line.
        tell(&format!(
            "{}:\n{report:?}\n",
            escaped(&error.place.to_string())
        ));
    }
}
