//! What every role does before it serves: accounts, runtime folder, privileges.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use usher_local::error::ConfigurationError;
use usher_local::packet::{self, Senders};
use usher_local::paths;
use usher_proto::host_key::HostPublicKey;

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A system account is missing.
    #[error("there is no account {0}; run `usher init`")]
    NoAccount(&'static str),
    /// The account data base cannot be read.
    #[error("cannot look up the account {0}: {1}")]
    Accounts(&'static str, nix::Error),
    /// The host key cannot be used.
    #[error(
        "{path}: {reason}; the host key is an unencrypted Ed25519 key in OpenSSH's format: make one with `usher init`"
    )]
    HostKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The configuration in force cannot be used.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] usher_kernel::KernelError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] usher_system::SystemError),
    /// The fence around service accounts and connections cannot be put up.
    #[error(transparent)]
    Ownership(#[from] usher_kernel::ownership::OwnershipError),
    /// A file or socket cannot be made.
    #[error("{what}: {error}")]
    File {
        /// What was attempted.
        what: String,
        /// What the system says.
        error: io::Error,
    },
    /// The role has to be started by root, or as its own account.
    #[error("usherd {role} is started by root, which it gives up, or as {account}")]
    WrongUser {
        /// The role.
        role: &'static str,
        /// Its account.
        account: &'static str,
    },
    /// The log's key cannot be used.
    #[error(
        "{path}: {reason}; the log's key is an unencrypted Ed25519 key in OpenSSH's format with the log's name as its comment: make one with `usher init`"
    )]
    LogKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The log cannot be gone on with.
    #[error(transparent)]
    Log(#[from] usher_log::LogError),
    /// TLS settings.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Adds what was attempted to an I/O error.
pub trait Attempt<T> {
    /// Says what was attempted.
    ///
    /// # Errors
    /// The same error, with its place.
    fn attempt(self, what: impl Into<String>) -> Result<T, StartError>;
}

impl<T, E: Into<io::Error>> Attempt<T> for Result<T, E> {
    fn attempt(self, what: impl Into<String>) -> Result<T, StartError> {
        self.map_err(|error| StartError::File {
            what: what.into(),
            error: error.into(),
        })
    }
}

/// The system accounts, one a role, so that no process can touch another.
pub const VERIFIER: &str = "usher-verifier";
/// See [`VERIFIER`].
pub const RECORDER: &str = "usher-recorder";
/// See [`VERIFIER`].
pub const SIGNER: &str = "usher-signer";
/// See [`VERIFIER`].
pub const COURIER: &str = "usher-courier";
/// See [`VERIFIER`].
pub const PROXY: &str = "usher-proxy";

/// A system account.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

/// Looks up a system account.
///
/// # Errors
/// When it is missing or cannot be looked up.
pub fn account(name: &'static str) -> Result<Account, StartError> {
    let user = nix::unistd::User::from_name(name)
        .map_err(|error| StartError::Accounts(name, error))?
        .ok_or(StartError::NoAccount(name))?;
    Ok(Account {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
    })
}

/// Reads this host's public key.
///
/// # Errors
/// When it is missing or no Ed25519 key.
pub fn public_host_key() -> Result<HostPublicKey, StartError> {
    let path = Path::new(paths::HOST_PUBLIC_KEY);
    let problem = |reason: String| StartError::HostKey {
        path: path.into(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
    HostPublicKey::from_openssh(text.trim()).map_err(|error| problem(error.to_string()))
}

/// Makes `/run/usher/ROLE`, owned by root so that a role cannot replace its own sockets.
///
/// # Errors
/// When the folder cannot be made.
pub fn runtime_directory(role: &str) -> Result<PathBuf, StartError> {
    let path = Path::new(paths::RUNTIME_DIRECTORY).join(role);
    std::fs::create_dir_all(&path).attempt(format!("cannot make {}", path.display()))?;
    for folder in [Path::new(paths::RUNTIME_DIRECTORY), &path] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
            .attempt(format!("cannot set the mode of {}", folder.display()))?;
    }
    Ok(path)
}

/// Who may connect to a socket.
#[derive(Debug, Clone, Copy)]
pub enum Connectors {
    /// One account (and root).
    One(Account),
    /// Everybody on this host.
    Everybody,
    /// Everybody on this host, and each packet says which process has sent it.
    Processes,
}

/// Makes a listening packet socket for `connectors`. File modes are the first barrier, peer
/// credentials the second.
///
/// # Errors
/// When the socket cannot be made.
pub fn packet_listener(path: &str, connectors: Connectors) -> Result<OwnedFd, StartError> {
    let senders = match connectors {
        Connectors::Processes => Senders::Told,
        Connectors::One(_) | Connectors::Everybody => Senders::Untold,
    };
    let listener =
        packet::listen(Path::new(path), senders).attempt(format!("cannot listen at {path}"))?;
    open_to(path, connectors)?;
    Ok(listener)
}

/// Sets owner and mode of a socket's file.
///
/// # Errors
/// When owner or mode cannot be set.
pub fn open_to(path: &str, connectors: Connectors) -> Result<(), StartError> {
    let (owner, mode) = match connectors {
        Connectors::One(account) => (Some(account.uid), 0o600),
        Connectors::Everybody | Connectors::Processes => (None, 0o666),
    };
    std::os::unix::fs::chown(path, owner, None).attempt(format!("cannot give away {path}"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .attempt(format!("cannot set the mode of {path}"))
}

/// Gives up root for the role's account. Started as that account already: nothing to give up.
///
/// # Errors
/// When started as somebody else, or the kernel refuses the change.
pub fn become_account(
    role: &'static str,
    name: &'static str,
    account: Account,
) -> Result<(), StartError> {
    let present = rustix::process::geteuid().as_raw();
    if present == 0 {
        usher_system::privileges::become_user(account.uid, account.gid, &[])?;
    } else if present != account.uid {
        return Err(StartError::WrongUser {
            role,
            account: name,
        });
    }
    usher_system::privileges::no_new_privileges()?;
    usher_system::privileges::no_core_dumps()?;
    Ok(())
}

/// Whether this process was started with root's rights, which binding its sockets needs.
///
/// # Errors
/// When it was not.
pub fn require_root(role: &'static str, account: &'static str) -> Result<(), StartError> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(StartError::WrongUser { role, account })
    }
}

/// Tells the service manager that the daemon serves (`sd_notify(3)`); nobody listening is fine.
pub fn ready() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(%error, "cannot tell the service manager that the daemon is ready");
    }
}

/// Confines the process: files by Landlock, system calls by seccomp. A kernel without Landlock is
/// said plainly and not silently passed over.
///
/// # Errors
/// When a filter cannot be set although the kernel has it.
pub fn confine(
    read: &[&Path],
    write: &[&Path],
    profile: usher_system::sandbox::Profile,
) -> Result<(), StartError> {
    let status = usher_system::sandbox::landlock(read, write)?;
    tracing::info!(?status, "file access confined");
    usher_system::sandbox::seccomp(profile)?;
    Ok(())
}
