//! Reasons that a module or its settings are not put in force.

use std::io;
use std::path::PathBuf;

use usher_local::paths;

use super::files::FileError;
use super::stored::MOST_TRIALS;
use crate::start::StartError;

/// A reason that statements for a module cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum StatementFault {
    /// A module without statements.
    #[error("the module takes no statements; remove `{0}`")]
    None(String),
    /// A statement that the module does not have.
    #[error("the module has no statement `{keyword}`; it has {known}")]
    Unknown {
        /// The word that begins it.
        keyword: String,
        /// The statements that it has.
        known: String,
    },
    /// A statement twice.
    #[error("`{0}` stands twice; make one statement of the two")]
    Twice(String),
    /// A statement with no value, or with more than it takes.
    #[error("`{keyword}` has {found} values; write {wanted}")]
    Count {
        /// The word that begins it.
        keyword: String,
        /// How many it has.
        found: usize,
        /// How many it takes.
        wanted: String,
    },
    /// A value of another kind.
    #[error("`{found}` is no value of `{keyword}`; write {wanted}")]
    Value {
        /// The word that begins the statement.
        keyword: String,
        /// The value.
        found: String,
        /// The values that the statement takes.
        wanted: String,
    },
}

/// A reason that something is not put in force.
#[derive(Debug, thiserror::Error)]
pub enum MacError {
    /// An error of the framework or the kernel.
    #[error(transparent)]
    Framework(#[from] usher_mac::Error),
    /// The kernel runs no modules.
    #[error(transparent)]
    Unsupported(#[from] usher_mac::Unsupported),
    /// There is no such module.
    #[error(
        "there is no module {0}; this version has {known}, and other modules are files \
         {folder}/NAME.bpf.o",
        known = usher_mac::NAMES.join(", "),
        folder = paths::MODULE_DIRECTORY
    )]
    NoModule(String),
    /// The file of a module cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file has the name of a built-in module.
    #[error(
        "there are two modules {name}: one of this version, and {path}; remove the file, or compile it \
         with another name"
    )]
    TwoModules {
        /// The name.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// A block of the policy names a module that cannot be found.
    #[error("{place}: {reason}")]
    NoModuleOf {
        /// The block.
        place: String,
        /// The error about the module.
        reason: Box<MacError>,
    },
    /// A statement that its module does not take.
    #[error("{place}: {module}: {fault}")]
    Statement {
        /// The statement.
        place: String,
        /// The module.
        module: String,
        /// The reason.
        fault: StatementFault,
    },
    /// The policy changes settings of a loaded module whose file was replaced, so its statements are unknown.
    #[error(
        "the settings of {name} stay as they are: {path} is not the file from which the module was loaded; \
         unload the module and load it again"
    )]
    FileChanged {
        /// The module.
        name: String,
        /// Its file.
        path: PathBuf,
    },
    /// Some files in the folder of modules are not listed.
    #[error(
        "{files} files of {folder} are not listed: their names are no names of modules, or there are \
         too many",
        folder = paths::MODULE_DIRECTORY
    )]
    NotListed {
        /// Their number.
        files: usize,
    },
    /// The labeller has ended each time that it loaded a module.
    #[error(
        "the labeller has ended {MOST_TRIALS} times while it loaded this module, so it does not try \
         again; `usher mac load {0}` does"
    )]
    Ends(String),
    /// The trials of modules cannot be noted. Without that, no module from a file is loaded.
    #[error("{path}: {0}; mend the file, or remove it", path = paths::MODULE_TRIALS)]
    Trials(io::Error),
    /// The list of the modules that are to be loaded cannot be read.
    #[error(
        "{path}: {0}; mend the file, or remove it: until then nothing is loaded or unloaded, because the \
         list would be lost",
        path = paths::LOADED_MODULES
    )]
    NotRead(io::Error),
    /// A policy is refused after it has replaced settings that only a former labeller knew.
    #[error(
        "the settings of a policy that was refused are in force, because the former ones are not known; they \
         are renewed as soon as those of the policy in force can be"
    )]
    FormerUnknown,
    /// The network namespace of the host's interfaces is not known.
    #[error(
        "cannot open /proc/self/ns/net, without which the names of interfaces mean nothing: {0}"
    )]
    Network(io::Error),
    /// A name in a rule is unknown.
    #[error("{place}: this host has no {noun} {name}; create it, or correct the name")]
    Unknown {
        /// The rule.
        place: String,
        /// `user` or `group`.
        noun: &'static str,
        /// The name.
        name: String,
    },
    /// A name in a rule cannot be looked up.
    #[error("{place}: cannot look up the {noun} {name}: {error}")]
    LookUp {
        /// The rule.
        place: String,
        /// `user` or `group`.
        noun: &'static str,
        /// The name.
        name: String,
        /// The reason.
        error: io::Error,
    },
    /// A file system that the policy names is not mounted, or cannot be told apart.
    #[error("{place}: {statement} {path}: {error}")]
    NotMounted {
        /// The rule, or the `mac framework` block.
        place: String,
        /// `filesys` or `multilabel`.
        statement: &'static str,
        /// The path.
        path: String,
        /// The reason.
        error: io::Error,
    },
    /// A rule is about a file system that is not mounted now.
    #[error("{0}; the rule waits, and covers no file until a file system is mounted there")]
    Waits(Box<MacError>),
    /// The file system of a rule is no longer mounted at its path, but is in use elsewhere.
    #[error(
        "{0}; the rule stays about the file system that was mounted there last, because it is still in use elsewhere \
         (another mount point or mount namespace, or an open file), until it ends or another one is mounted there"
    )]
    Stays(Box<MacError>),
    /// The labeller cannot tell which file systems are in use after they have been unmounted.
    #[error(
        "cannot follow the file systems of the policy: {0}; meanwhile, `filesys` rules and labels of files end when their \
         file system is unmounted at its path, even if it is in use elsewhere. The labeller tries again every 5 seconds; \
         if this stays, restart usher-labeller"
    )]
    NotFollowed(usher_mac::Error),
    /// The specification of the policy is not used.
    #[error("{place}: specification {path}: {reason}")]
    Specification {
        /// The statement.
        place: String,
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A program does not have the type by which a domain is entered.
    #[error(
        "{path} has the type {found}, and {specification} says {wanted}: what executes it starts without its domain; \
         `usher mac relabel` gives files their labels, then restart the service", path = .path.display()
    )]
    EntryPoint {
        /// The program.
        path: PathBuf,
        /// Its type.
        found: String,
        /// The type that it should have.
        wanted: String,
        /// The file that says so.
        specification: String,
    },
    /// The labeller cannot tell whether a program has the type by which a domain is entered.
    #[error("{path}: cannot read its type: {error}", path = .path.display())]
    EntryPointUnread {
        /// The program.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// New files of a file system are not watched.
    #[error("{path}: cannot write labels of new files: {reason}")]
    NotWatched {
        /// The mount point.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The thread that writes the labels of a file system hangs.
    #[error(
        "{path} does not answer (is it frozen, does its server hang, or does a process that waits for a FUSE file \
         system keep one of its files locked?): labels of its new files are not written until it does; other file \
         systems do not wait for it"
    )]
    Stuck {
        /// Its mount point.
        path: String,
    },
    /// Labels of new files are not written.
    #[error("cannot make labels of new files persistent: {0}")]
    NotPersistent(io::Error),
    /// The list of modules in force cannot be shown to programs.
    #[error("{path}: {0}", path = paths::SHOWN_MODULES)]
    NotShown(io::Error),
    /// The list of loaded modules cannot be kept.
    #[error("{path}: {0}; nothing has changed", path = paths::LOADED_MODULES)]
    NotStored(io::Error),
}

impl MacError {
    /// Whether the reason is a file system that does not answer.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self, Self::NotMounted { error, .. } if error.kind() == io::ErrorKind::TimedOut)
    }
}

impl From<MacError> for StartError {
    fn from(error: MacError) -> Self {
        Self::InForce(error.into())
    }
}
