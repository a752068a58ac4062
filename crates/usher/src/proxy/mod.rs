//! `usher proxy`: local addresses at which unmodified programs reach services of other hosts as the user
//! that they run as. The kernel names that user, as the owner of the local connection; the proxy hands the
//! connection to the signer, which asks the kernel itself.
//!
//! Room: listeners on 127.0.0.0/8, the signer's socket, the bytes of its connections. It runs as
//! `usher-proxy` in a sandbox.

mod imap;
mod listeners;
mod serve;

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, ControlSocket, Failed};
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_daemon::{events, messages};
use usher_local::configuration::{Configuration, Stamp};
use usher_local::following::{Follower, Following};
use usher_local::requests::{Prepare, PreparedView, Reload, ReloadedView};
use usher_local::roles;

use crate::accounts;
use crate::failure::{At, Failure};
use listeners::Listeners;
use serve::Server;

struct Proxy {
    following: Arc<Following>,
    /// The generation and the file of the configuration in force.
    in_force: Mutex<(u64, Stamp)>,
    listeners: Listeners,
    server: Arc<Server>,
}

/// Runs the proxy until the process ends.
pub fn run() -> Result<(), Failure> {
    use usher_system::privileges;
    let role = roles::Proxy::ROLE;
    messages::to_standard_error();
    usher_system::process::end_when_asked()?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::refused("`usher proxy` must be started by root"));
    }
    let account = accounts::account_of_role(role)?;
    let configuration = Configuration::load()?;
    let watcher = accounts::account_of_role(roles::Exporter::ROLE);
    let watcher = watcher.inspect_err(|error| tracing::info!(%error, "the exporter cannot read this daemon's numbers; if it should, run usher init and restart the daemon"));
    let watcher = watcher.ok().map(|user| user.uid.as_raw());
    let control = ControlSocket::<roles::Proxy>::bind(watcher).at(role.control_socket())?;
    privileges::become_user_keeping(
        account.uid.as_raw(),
        account.gid.as_raw(),
        &[],
        role.capabilities,
    )?;
    privileges::no_new_privileges()?;
    privileges::no_core_dumps()?;
    privileges::raise_descriptor_limit()?;
    if let Some(sandbox) = role.sandbox {
        sandbox.enter()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // One for each connection that is being opened, and some for other calls that block.
        .max_blocking_threads(serve::OPENING + 64)
        .enable_all()
        .build()
        .attempt("cannot start the runtime")?;
    let following = Following::new();
    runtime.block_on(async {
        let server = Arc::new(Server::new());
        let proxy = Arc::new(Proxy {
            following: Arc::clone(&following),
            in_force: Mutex::default(),
            listeners: Listeners::new(Arc::clone(&server)),
            server,
        });
        proxy.listen(&configuration).attempt("cannot listen")?;
        following.begin(Arc::clone(&proxy) as Arc<dyn Follower>);
        messages::have_fields("usher-proxy");
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
            tracing::warn!(%error, "cannot tell the service manager that the proxy is ready");
        }
        tracing::info!(name: events::DAEMON_READY, "proxy ready");
        tokio::select! {
            result = control.serve(proxy) => result.attempt("cannot answer control requests"),
            () = following.keep() => Ok(()),
            () = watchdog() => Ok(()),
        }
    })
}

impl Proxy {
    /// Listens at the addresses of the policy only.
    ///
    /// # Errors
    /// As [`Listeners::set`]; then nothing has changed.
    fn listen(&self, configuration: &Configuration) -> io::Result<()> {
        let wanted = configuration.checked.policy.proxy_listeners();
        self.listeners.set(wanted)?;
        *self.in_force.lock() = (configuration.generation(), configuration.stamp());
        Ok(())
    }
}

impl Follower for Proxy {
    fn in_force(&self) -> Option<Stamp> {
        Some(self.in_force.lock().1)
    }

    fn take(&self, stored: Configuration) -> Result<(), String> {
        self.listen(&stored)
            .map_err(|error| format!("cannot listen: {error}"))
    }
}

impl Answers<Prepare> for Proxy {
    async fn answer(&self, request: Prepare) -> Result<PreparedView, Failed> {
        Configuration::prepare(request).await
    }
}

impl Answers<Reload> for Proxy {
    async fn answer(&self, _: Reload) -> Result<ReloadedView, Failed> {
        let fresh = Configuration::load()?;
        let generation = fresh.generation();
        self.listen(&fresh)
            .map_err(|error| Failed::new(format!("cannot listen: {error}")))?;
        Ok(ReloadedView {
            generation,
            ..ReloadedView::default()
        })
    }
}

impl Answers<Status> for Proxy {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        let numbers = [
            ("listeners", self.listeners.len() as u64),
            ("connections", self.server.connections() as u64),
        ];
        let generation = self.in_force.lock().0;
        Ok(StatusView::new::<roles::Proxy>(
            generation,
            numbers,
            self.following.trouble().into_iter().collect(),
        ))
    }
}
