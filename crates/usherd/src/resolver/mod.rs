//! The resolver: looks up the names in `network` statements for the protector, which parses nothing that
//! comes from the network. It asks as the programs of this host do, by the C library's getaddrinfo(3),
//! so it finds what they find: /etc/hosts, the name service's modules and the host's DNS servers.
//!
//! A look-up cannot be interrupted, and takes one of a few threads. When a look-up hangs for long, the
//! process ends, and the service manager starts it again.
//!
//! Room: the protector's connection, the configuration of the name service, datagram and TCP sockets. No
//! key, no capability.

mod look_ups;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use usher_daemon::events;
use usher_daemon::packet_async::{AsyncPacketSocket, PacketListener};
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_local::roles;
use usher_policy::protection::{MAXIMUM_RESOLVER_PACKET, ResolverRequest};

use crate::start::{self, Attempt, Start, StartError};
use look_ups::LookUps;

/// How often the resolver checks which names are due.
const LOOKING: Duration = Duration::from_millis(250);

/// Runs the resolver until the process ends.
pub fn run() -> Result<(), StartError> {
    let start = Start::<roles::Resolver>::begin()?;
    let protector = start::account_of(roles::Protector::ROLE)?;
    let control = start.control()?;
    let [listener] = start.sockets()?;
    start.give_up_root()?;
    start.confine()?;
    let runtime = start::runtime()?;
    let end = runtime.block_on(async {
        let control = control.serve(Arc::new(start));
        start::ready("usher-resolver");
        tracing::info!(name: events::DAEMON_READY, "resolver ready");
        tokio::select! {
            result = serve(listener, protector.uid) => result.attempt("cannot look up names"),
            result = control => result.attempt("the control socket failed"),
            () = watchdog() => Ok(()),
        }
    });
    // Do not wait for a look-up that hangs.
    runtime.shutdown_background();
    end
}

/// Serves the protector. There is only one, so its next connection waits until the former one has ended.
async fn serve(listener: OwnedFd, protector: u32) -> io::Result<()> {
    let listener = PacketListener::new(listener)?;
    let mut look_ups = LookUps::default();
    loop {
        let connection = listener.accept_of(protector, "protector").await?;
        tracing::info!(name: events::DAEMON_CONNECTED, "protector connected");
        look_ups.follow(Vec::new());
        let end = answer_protector(&connection, &mut look_ups).await;
        tracing::warn!(name: events::DAEMON_GONE, reason = crate::link::how(&end), "the protector has gone");
        if look_ups.hung().is_some() {
            return end;
        }
    }
}

/// Looks up the names that the protector has, and answers, until it closes the connection.
async fn answer_protector(protector: &AsyncPacketSocket, look_ups: &mut LookUps) -> io::Result<()> {
    let mut now = tokio::time::interval(LOOKING);
    now.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            packet = protector.receive(MAXIMUM_RESOLVER_PACKET) => {
                let packet = packet?.bytes;
                if packet.is_empty() {
                    return Ok(());
                }
                let request = ResolverRequest::decode(&packet).map_err(io::Error::other)?;
                let ResolverRequest::Follow(names) = request;
                look_ups.follow(names);
            }
            Some(reply) = look_ups.next() => {
                protector.send(&reply.encode()).await?;
            }
            _ = now.tick() => {
                if let Some(name) = look_ups.hung() {
                    return Err(io::Error::other(format!(
                        "the name service of this host hangs: it has been looking up {name} for more \
                         than {} s",
                        look_ups::HUNG.as_secs()
                    )));
                }
            }
        }
        look_ups.begin();
    }
}
