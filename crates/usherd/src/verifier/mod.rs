//! The verifier: the server side's only process that parses network input. It holds no key (the keeper
//! signs its handshakes), no privilege, and no state that must outlive it. It passes valid requests to
//! the keeper as fixed-size records, followed by what the user has signed: the keeper does not trust
//! the verifier, and has the recorder check the signature.
//!
//! Room: the port of the control channel, the keeper's sockets. No key, no file but the
//! configuration in force.

mod authenticate;
mod channel;
mod half_open;
mod refused;
mod standing;

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, Failed};
use usher_daemon::events;
use usher_daemon::watchdog::watchdog;
use usher_local::configuration::{Configuration, InForce, Stamp};
use usher_local::following::{Follower, Following};
use usher_local::paths;
use usher_local::requests::{Disable, Enable, Prepare, PreparedView, Reload, ReloadedView};
use usher_local::roles;
use usher_proto::frame::ServerFrame;
use usher_proto::host_key::HostPublicKey;
use usher_proto::keeper_record::{KEEPER_RECORD_SIZE, KeeperBody, KeeperReply, KeeperRequest};
use usher_proto::refusal::Refusal;
use usher_proto::token::TokenSlot;

use crate::clocks::Clocks;
use crate::host_key::HostKeyHandle;
use crate::link::{Link, Pending};
use crate::start::{self, Attempt, Start, StartError};
use crate::tls;
use half_open::HalfOpen;
use refused::Refused;

/// Port of the control channel unless the policy names another for this host.
const DEFAULT_PORT: u16 = 3440;
/// The length of the kernel's accept queue.
const BACKLOG: i32 = 4096;
/// A key that ends within this time is counted, for people's monitoring.
const SOON: Duration = Duration::from_secs(14 * 86_400);

/// The state that all of the verifier's tasks share.
struct Verifier {
    host_key: HostPublicKey,
    configuration: InForce,
    following: Arc<Following>,
    /// The connection to the keeper, whose verdict grants a slot for requested tokens.
    keeper: Link<Option<TokenSlot>>,
    half_open: HalfOpen,
    clocks: Clocks,
    refused: Refused,
    channels: Mutex<HashMap<HostName, channel::OpenChannel>>,
}

impl Verifier {
    /// Sends the keeper a host's request, in the order of the calls.
    fn ask_keeper(
        &self,
        host: HostName,
        body: KeeperBody,
    ) -> Result<Pending<Option<TokenSlot>>, Refusal> {
        let packet = |request| {
            let asked = KeeperRequest {
                request,
                host,
                body,
            };
            asked.encode()
        };
        self.keeper.send(packet)
    }
}

/// Runs the verifier until the process ends.
pub fn run() -> Result<(), StartError> {
    let start = Start::<roles::Verifier>::begin()?;
    let host_key = start::public_host_key()?;
    let configuration = Configuration::load()?;
    let port = configuration
        .checked
        .policy
        .host_by_key(&host_key)
        .map_or(DEFAULT_PORT, |host| host.control);
    let control = start.control()?;
    let listener = listen(port).attempt(format!(
        "cannot listen at port {port}, where other hosts ask (`ss -ltnp` shows whose it is)"
    ))?;
    usher_system::privileges::raise_descriptor_limit()?;
    start.give_up_root()?;
    start.confine()?;
    let verifier = Arc::new(Verifier {
        host_key,
        configuration: InForce::new(configuration),
        following: Following::new(),
        keeper: Link::new(Refusal::KeeperUnavailable),
        half_open: HalfOpen::default(),
        clocks: Clocks::default(),
        refused: Refused::default(),
        channels: Mutex::default(),
    });
    let handle = Arc::new(HostKeyHandle::new(paths::KEEPER_HOST_KEY));
    let known = Arc::clone(&verifier);
    let is_known = move |key: &_| {
        let configuration = known.configuration.get();
        configuration.checked.policy.host_by_key(key).is_some()
    };
    let config = tls::server_config(&host_key, handle, Arc::new(is_known))?;
    // A thread that waits for the keeper's signatures, beside the one for all channels.
    let mut handshakes = tokio::runtime::Builder::new_multi_thread();
    handshakes
        .worker_threads(1)
        .thread_name("handshakes")
        .enable_time();
    let following = Arc::clone(&verifier.following);
    let handshakes = start::look_after_stalls(&mut handshakes, &following)
        .build()
        .attempt("cannot start the runtime of handshakes")?;
    let shaking = handshakes.handle().clone();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    following.begin(Arc::clone(&verifier) as Arc<dyn Follower>);
    start::runtime_following(&following)?
        .block_on(async {
            let listener = TcpListener::from_std(listener)?;
            let control = tokio::spawn(control.serve(Arc::clone(&verifier)));
            let keeper = tokio::spawn(hear_keeper(Arc::clone(&verifier)));
            start::ready("usher-verifier");
            tracing::info!(name: events::DAEMON_READY, port, "verifier ready");
            tokio::select! {
                result = channel::serve(verifier, acceptor, listener, shaking) => result,
                result = control => result?,
                result = keeper => result.map_err(std::io::Error::other),
                () = following.keep() => Ok(()),
                () = watchdog() => Ok(()),
            }
        })
        .attempt("a socket failed")
}

async fn hear_keeper(verifier: Arc<Verifier>) {
    let heard = |bytes: &[u8]| {
        match KeeperReply::decode(bytes).map_err(std::io::Error::other)? {
            KeeperReply::Answer { request, verdict } => verifier.keeper.settle(request, verdict),
            KeeperReply::Notice { host, notice } => {
                if let Some(channel) = verifier.channels.lock().get(&host) {
                    channel.tell(ServerFrame::Notice(notice));
                }
            }
        }
        Ok(())
    };
    let keeper = &verifier.keeper;
    keeper
        .keep_up("keeper", paths::KEEPER_RECORDS, KEEPER_RECORD_SIZE, heard)
        .await;
}

/// One dual-stack listener, because other hosts may use IPv4 and IPv6; IPv4 only if the kernel has no
/// IPv6.
fn listen(port: u16) -> std::io::Result<std::net::TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, address) =
        match rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None) {
            Ok(socket) => {
                sockopt::set_ipv6_v6only(&socket, false)?;
                (socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
            }
            Err(rustix::io::Errno::AFNOSUPPORT) => (
                rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?,
                SocketAddr::from(([0, 0, 0, 0], port)),
            ),
            Err(error) => return Err(error.into()),
        };
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Verifier {
    fn put_in_force(&self, fresh: Configuration) -> ReloadedView {
        let generation = fresh.generation();
        let fresh = self.configuration.put(fresh);
        // Close channels of hosts that are no longer known, or no longer have the key. The configuration
        // is in force first, so a channel entered later has been checked against it.
        self.channels.lock().retain(|name, channel| {
            fresh
                .checked
                .policy
                .hosts
                .get(name)
                .is_some_and(|host| host.keys.contains(&channel.key))
        });
        tracing::info!(name: events::CONFIGURATION_IN_FORCE, generation, "configuration in force");
        ReloadedView {
            generation,
            ..ReloadedView::default()
        }
    }
}

impl Follower for Verifier {
    fn in_force(&self) -> Option<Stamp> {
        Some(self.configuration.get().stamp())
    }

    fn take(&self, stored: Configuration) -> Result<(), String> {
        self.put_in_force(stored);
        Ok(())
    }
}

impl Answers<Prepare> for Verifier {
    async fn answer(&self, request: Prepare) -> Result<PreparedView, Failed> {
        Configuration::prepare(request).await
    }
}

impl Answers<Reload> for Verifier {
    async fn answer(&self, _: Reload) -> Result<ReloadedView, Failed> {
        Ok(self.put_in_force(Configuration::load()?))
    }
}

impl Answers<Disable> for Verifier {
    async fn answer(&self, Disable { user, given }: Disable) -> Result<ReloadedView, Failed> {
        Ok(self.put_in_force(self.configuration.disable(user, given)))
    }
}

impl Answers<Enable> for Verifier {
    async fn answer(&self, Enable { user, since }: Enable) -> Result<ReloadedView, Failed> {
        Ok(self.put_in_force(self.configuration.enable(&user, since)))
    }
}

impl Verifier {
    /// How many keys of users end soon.
    fn keys_ending(&self) -> u64 {
        let now = unix_time();
        let checked = &self.configuration.get().checked;
        checked.keys_ending(now, now + SOON.as_secs()) as u64
    }
}

impl Answers<Status> for Verifier {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        let is_connected = self.keeper.is_connected();
        let keeper = "not connected to the keeper, so every session is refused";
        let missing = (!is_connected).then(|| keeper.to_owned());
        let clocks = self.clocks.troubles(unix_time());
        let numbers = [
            ("channels", self.channels.lock().len() as u64),
            ("half_open", self.half_open.len() as u64),
            ("half_open_dropped", self.half_open.dropped()),
            ("keeper_connected", u64::from(is_connected)),
            ("clocks_apart", clocks.len() as u64),
            ("keys_ending", self.keys_ending()),
        ];
        let mut status = StatusView::new::<roles::Verifier>(
            self.configuration.get().generation(),
            numbers,
            missing
                .into_iter()
                .chain(clocks)
                .chain(self.following.trouble())
                .chain(self.configuration.trouble())
                .collect(),
        );
        status.numbers.extend(self.refused.numbers());
        Ok(status)
    }
}
