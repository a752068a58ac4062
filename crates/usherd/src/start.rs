//! Steps of every role before it serves: account, runtime folder, sockets, privileges, sandbox. The
//! table of roles ([`usher_local::roles`]) defines them.

use std::fmt::Display;
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, ControlSocket, Failed};
use usher_daemon::packet::{self, Connectable, Senders};
use usher_daemon::role::{Connectors, HasRole, RUNTIME_DIRECTORY, Role, Socket};
use usher_local::error::ConfigurationError;
use usher_local::following::Following;
use usher_local::paths;
use usher_local::roles;
use usher_proto::host_key::HostPublicKey;
use usher_system::privileges;
use zeroize::Zeroizing;

/// A description of host keys, for the reader of an error.
pub const HOST_KEY: &str = "the host key is an unencrypted Ed25519 key in OpenSSH's format";

/// Reasons that a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A system account is missing.
    #[error("there is no account {0}; run `usher init`")]
    NoAccount(&'static str),
    /// The account data base cannot be read.
    #[error("cannot look up the account {0}: {1}")]
    Accounts(&'static str, nix::Error),
    /// A key of this host is unusable.
    #[error("{path}: {reason}; {wanted}: make one with `usher init`")]
    Key {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
        /// The key that it should be.
        wanted: &'static str,
    },
    /// The configuration in force is unusable.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] usher_kernel::KernelError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] usher_system::SystemError),
    /// The fence around service accounts and connections cannot be set up.
    #[error(transparent)]
    Ownership(#[from] usher_kernel::ownership::OwnershipError),
    /// A file or socket cannot be made.
    #[error("{0}: {1}")]
    File(String, io::Error),
    /// The role needs root's rights to start.
    #[error("usherd {0} must be started by root")]
    NotRoot(&'static str),
    /// The log cannot be continued.
    #[error(transparent)]
    Log(#[from] usher_log::LogError),
    /// An error of the kernel's IPsec.
    #[error(transparent)]
    Ipsec(#[from] usher_ipsec::IpsecError),
    /// Protection, or modules of mandatory access control, cannot be put in force.
    #[error(transparent)]
    InForce(Box<dyn std::error::Error + Send + Sync>),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl StartError {
    /// The error of a key that should be what `wanted` says.
    pub fn key(path: &Path, wanted: &'static str, reason: impl Display) -> Self {
        Self::Key {
            path: path.into(),
            reason: reason.to_string(),
            wanted,
        }
    }
}

/// Adds the attempted operation to an I/O error.
pub trait Attempt<T> {
    /// Adds the attempted operation.
    ///
    /// # Errors
    /// The same error, with the operation.
    fn attempt(self, what: impl Into<String>) -> Result<T, StartError>;
}

impl<T, E: Into<io::Error>> Attempt<T> for Result<T, E> {
    fn attempt(self, what: impl Into<String>) -> Result<T, StartError> {
        self.map_err(|error| StartError::File(what.into(), error.into()))
    }
}

/// A system account.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

/// Looks up the account of a role.
pub fn account_of(role: &'static Role) -> Result<Account, StartError> {
    account(role.account.unwrap_or("root"))
}

fn account(name: &'static str) -> Result<Account, StartError> {
    if name == "root" {
        return Ok(Account { uid: 0, gid: 0 });
    }
    let user = nix::unistd::User::from_name(name)
        .map_err(|error| StartError::Accounts(name, error))?
        .ok_or(StartError::NoAccount(name))?;
    Ok(Account {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
    })
}

/// The uid that may read the numbers of a role: the exporter's. `None` for the exporter itself, and if its
/// account cannot be found, which keeps no daemon from its work.
fn watcher(role: &Role) -> Option<u32> {
    let exporter = roles::Exporter::ROLE;
    if role.name == exporter.name {
        return None;
    }
    let account = account_of(exporter);
    let account = account.inspect_err(|error| tracing::info!(%error, "the exporter cannot read this daemon's numbers; if it should, run usher init and restart the daemon"));
    account.ok().map(|account| account.uid)
}

/// Reads this host's public key.
pub fn public_host_key() -> Result<HostPublicKey, StartError> {
    let path = Path::new(paths::HOST_PUBLIC_KEY);
    let problem = |error: &dyn Display| StartError::key(path, HOST_KEY, error);
    let text = std::fs::read_to_string(path).map_err(|error| problem(&error))?;
    HostPublicKey::from_openssh(text.trim()).map_err(|error| problem(&error))
}

/// Reads a private key of this host, which should be what `wanted` says.
pub fn private_key(path: &Path, wanted: &'static str) -> Result<ssh_key::PrivateKey, StartError> {
    let problem = |error: &dyn Display| StartError::key(path, wanted, error);
    let text = Zeroizing::new(std::fs::read(path).map_err(|error| problem(&error))?);
    ssh_key::PrivateKey::from_openssh(text.as_slice()).map_err(|error| problem(&error))
}

/// The runtime of a daemon: one thread for all its tasks, because each hand-over to another one costs a
/// connection time.
pub fn runtime() -> Result<Runtime, StartError> {
    build(Builder::new_current_thread().enable_all())
}

/// The runtime of a daemon that has a configuration in force: when its thread wakes after a stall, it takes
/// the stored configuration before it runs a task.
pub fn runtime_following(following: &Arc<Following>) -> Result<Runtime, StartError> {
    let mut builder = Builder::new_current_thread();
    build(look_after_stalls(builder.enable_all(), following))
}

/// Makes the threads of a runtime look at the stored configuration when they wake after a stall.
pub fn look_after_stalls<'b>(
    builder: &'b mut Builder,
    following: &Arc<Following>,
) -> &'b mut Builder {
    let following = Arc::clone(following);
    builder.on_thread_unpark(move || following.after_stall())
}

fn build(builder: &mut Builder) -> Result<Runtime, StartError> {
    builder.build().attempt("cannot start the runtime")
}

/// A process of the role `R`.
#[derive(Debug)]
pub struct Start<R> {
    /// The role's account.
    pub account: Account,
    role: PhantomData<R>,
}

impl<R: HasRole> Start<R> {
    /// Looks up the role's account, and makes the folder of its sockets. Root owns the folder, so the role
    /// cannot replace the sockets.
    ///
    /// # Errors
    /// When root has not started the process, the account is missing, or the folder cannot be made.
    pub fn begin() -> Result<Self, StartError> {
        require_root(R::ROLE.name)?;
        let account = account_of(R::ROLE)?;
        if R::ROLE.is_daemon() {
            let root = Path::new(RUNTIME_DIRECTORY);
            let folder = root.join(R::ROLE.name);
            std::fs::create_dir_all(&folder)
                .attempt(format!("cannot make {}", folder.display()))?;
            for folder in [root, &folder] {
                std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
                    .attempt(format!("cannot set the mode of {}", folder.display()))?;
            }
        }
        Ok(Self {
            account,
            role: PhantomData,
        })
    }

    /// Binds the control socket. Fails for a second daemon of the role.
    ///
    /// # Errors
    /// When the socket cannot be made, or another daemon of the role runs.
    pub fn control(&self) -> Result<ControlSocket<R>, StartError> {
        ControlSocket::bind(watcher(R::ROLE)).attempt("cannot make the control socket")
    }

    /// Makes the other sockets, in the order of the table.
    pub fn sockets<const N: usize>(&self) -> Result<[OwnedFd; N], StartError> {
        const { assert!(R::ROLE.sockets.len() == N) };
        let sockets: Result<Vec<_>, _> = R::ROLE.sockets.iter().map(listen).collect();
        let sockets = sockets?.try_into();
        Ok(sockets.unwrap_or_else(|_| unreachable!("as many as the table has")))
    }

    /// Gives up root for the role's account, for good.
    pub fn give_up_root(&self) -> Result<(), StartError> {
        privileges::become_user(self.account.uid, self.account.gid, &[])?;
        privileges::no_new_privileges()?;
        privileges::no_core_dumps()?;
        Ok(())
    }

    /// Confines the process by its profile in the table.
    pub fn confine(&self) -> Result<(), StartError> {
        match R::ROLE.sandbox {
            Some(sandbox) => Ok(sandbox.enter()?),
            None => Ok(()),
        }
    }
}

/// The status of a daemon that reports only that it runs.
impl<R: HasRole> Answers<Status> for Start<R> {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        Ok(StatusView::new::<R>(0, [], Vec::new()))
    }
}

/// Makes a listening packet socket. Its first barrier is the file's mode, its second the peer
/// credentials.
fn listen(socket: &Socket) -> Result<OwnedFd, StartError> {
    let Socket { path, connectors } = *socket;
    let (connectable, senders) = match connectors {
        Connectors::Account(name) => (Connectable::By(account(name)?.uid), Senders::Untold),
        Connectors::Everybody => (Connectable::ByEverybody, Senders::Untold),
        Connectors::Processes => (Connectable::ByEverybody, Senders::Told),
    };
    packet::listen(Path::new(path), senders, connectable)
        .attempt(format!("cannot listen at {path}"))
}

/// Fails without root's rights.
pub fn require_root(role: &'static str) -> Result<(), StartError> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(StartError::NotRoot(role))
    }
}

/// Notifies the service manager that the daemon is ready (`sd_notify(3)`); does nothing without a service
/// manager. From now on the daemon's messages have fields, under the identifier of its unit.
pub fn ready(identifier: &'static str) {
    usher_daemon::messages::have_fields(identifier);
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(%error, "cannot tell the service manager that the daemon is ready");
    }
}
