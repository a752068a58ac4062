//! `usher proxy`: local addresses at which unmodified programs reach services of other hosts as the user
//! that they run as. The kernel names that user, as the owner of the local connection; the proxy hands the
//! connection to the signer, which asks the kernel itself.
//!
//! Room: listeners on 127.0.0.0/8, the signer's socket, the bytes of its connections. It runs as
//! `usher-proxy` in a sandbox.

mod carrier;
mod imap;
mod relay;
mod serve;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddrV4, TcpListener};
use std::sync::Arc;

use parking_lot::Mutex;
use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, ControlSocket, Failed};
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_local::configuration::{Configuration, Stamp};
use usher_local::following::{Follower, Following};
use usher_local::requests::{Prepare, PreparedView, Reload, ReloadedView};
use usher_local::roles;
use usher_policy::ProxyListener;

use crate::accounts;
use crate::failure::{At, Failure};
use serve::Server;

struct Proxy {
    following: Arc<Following>,
    /// Of the configuration in force: its generation, and its file.
    in_force: Mutex<(u64, Stamp)>,
    listeners: Mutex<BTreeMap<SocketAddrV4, (ProxyListener, tokio::task::AbortHandle)>>,
    server: Arc<Server>,
}

/// Runs the proxy until the process ends.
pub fn run() -> Result<(), Failure> {
    use usher_system::privileges;
    let role = roles::Proxy::ROLE;
    usher_daemon::messages::to_standard_error();
    usher_system::process::end_when_asked()?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::refused("`usher proxy` must be started by root"));
    }
    let account = accounts::of(role)?;
    let configuration = Configuration::load()?;
    let control = ControlSocket::<roles::Proxy>::bind().at(role.control_socket())?;
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
        let proxy = Arc::new(Proxy {
            following: Arc::clone(&following),
            in_force: Mutex::default(),
            listeners: Mutex::default(),
            server: Arc::new(Server::new()),
        });
        proxy.listen(&configuration).attempt("cannot listen")?;
        following.begin(Arc::clone(&proxy) as Arc<dyn Follower>);
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
            tracing::warn!(%error, "cannot tell the service manager that the proxy is ready");
        }
        tracing::info!("proxy ready");
        tokio::select! {
            result = control.serve(proxy) => result.attempt("cannot answer control requests"),
            () = following.keep() => Ok(()),
            () = watchdog() => Ok(()),
        }
    })
}

impl Proxy {
    /// Listens at the addresses of the policy only. All new listeners are made before an old one is
    /// closed; if one cannot be made nothing changes.
    fn listen(&self, configuration: &Configuration) -> io::Result<()> {
        let policy = &configuration.checked.policy;
        let wanted: BTreeMap<SocketAddrV4, ProxyListener> = policy
            .proxy_listeners()
            .into_iter()
            .map(|found| (found.address, found))
            .collect();
        let mut present = self.listeners.lock();
        let mut fresh = Vec::new();
        for (address, listener) in &wanted {
            if !present.contains_key(address) {
                fresh.push((listener.clone(), bind(*address)?));
            }
        }
        present.retain(|address, (listener, task)| {
            let stays = wanted.get(address) == Some(listener);
            if !stays {
                task.abort();
            }
            stays
        });
        // An address whose service has changed: its former listener has just been closed.
        for (address, listener) in &wanted {
            let is_new = fresh.iter().any(|(found, _)| found.address == *address);
            if !is_new && !present.contains_key(address) {
                fresh.push((listener.clone(), bind(*address)?));
            }
        }
        for (listener, socket) in fresh {
            tracing::info!(address = %listener.address, host = %listener.host, service = %listener.service, "serving");
            let task = tokio::spawn(serve::listen(
                tokio::net::TcpListener::from_std(socket)?,
                listener.clone(),
                Arc::clone(&self.server),
            ));
            present.insert(listener.address, (listener, task.abort_handle()));
        }
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
            ("listeners", self.listeners.lock().len() as u64),
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

fn bind(address: SocketAddrV4) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
