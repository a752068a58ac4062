//! The connection to the resolver, which gets the names of the policy in force, and answers.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use usher_daemon::events;
use usher_daemon::packet_async::AsyncPacketSocket;
use usher_local::paths;
use usher_policy::protection::{MAXIMUM_RESOLVER_PACKET, ResolverReply, ResolverRequest};

use super::force::Force;

/// How long changed answers are gathered before they are put in force.
const GATHERING: Duration = Duration::from_millis(200);

/// The shortest time between two changes of the tables for new answers. A resolver, or a server, that keeps
/// changing its answers costs no more than one change in this time.
const RENEWING: Duration = Duration::from_secs(5);

/// The time between two attempts to reach the resolver.
const RETRYING: Duration = Duration::from_millis(250);

/// Sends the resolver the names of the policy in force, for ever. Without names there is no connection. While
/// the resolver is not reached, the last answers stay in force.
pub(super) async fn follow(force: &Force) {
    let (mut renewed, mut due) = (None, None);
    loop {
        force.some_names().await;
        match AsyncPacketSocket::connect(Path::new(paths::RESOLVER_NAMES)) {
            Ok(resolver) => {
                tracing::info!(name: events::DAEMON_CONNECTED, "connected to the resolver");
                force.resolver_is(true);
                let end = exchange(force, &resolver, &mut renewed, &mut due).await;
                force.resolver_is(false);
                // Put the last answers in force, but not before they are due: a resolver that ends after each
                // answer must cost no more than one that stays.
                if let Some(due) = due.take() {
                    sleep_until(due).await;
                    renewed = Some(Instant::now());
                    renew(force);
                }
                let reason = crate::link::how(&end);
                tracing::warn!(name: events::DAEMON_GONE, reason, "the resolver has gone; waiting for it");
            }
            Err(error) => tracing::debug!(%error, "no resolver yet"),
        }
        sleep(RETRYING).await;
    }
}

/// Tells the resolver the names and takes its answers, until one direction fails. `due`: when answers
/// that have come are to be put in force.
async fn exchange(
    force: &Force,
    resolver: &AsyncPacketSocket,
    renewed: &mut Option<Instant>,
    due: &mut Option<Instant>,
) -> io::Result<()> {
    let mut wanted = force.wanted_names();
    wanted.mark_changed();
    loop {
        tokio::select! {
            changed = wanted.changed() => {
                changed.map_err(io::Error::other)?;
                let names = wanted.borrow_and_update().iter().cloned().collect();
                resolver.send(&ResolverRequest::Follow(names).encode()).await?;
            }
            packet = resolver.receive(MAXIMUM_RESOLVER_PACKET) => {
                let packet = packet?.bytes;
                if packet.is_empty() {
                    return Ok(());
                }
                let reply = ResolverReply::decode(&packet).map_err(io::Error::other)?;
                if force.take_answer(reply) && due.is_none() {
                    let earliest = Instant::now() + GATHERING;
                    *due = renewed.map(|renewed| renewed + RENEWING).max(Some(earliest));
                }
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                *due = None;
                *renewed = Some(Instant::now());
                renew(force);
            }
        }
    }
}

/// Puts the answers in force, and saves them.
fn renew(force: &Force) {
    if let Err(error) = force.renew() {
        tracing::error!(%error, "cannot put new addresses of the policy's host names in force; the former ones \
            stay");
    }
    if let Err(error) = force.save_answers() {
        tracing::error!(%error, "cannot save the addresses of the policy's host names; a protector that starts \
            again begins with those saved before");
    }
}
