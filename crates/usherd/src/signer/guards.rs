//! Guards. From before a connection is announced until the announcement is withdrawn, no other
//! socket's SYN with its endpoints leaves this host (bpf/authentication/ticket/guard.bpf.c). So an
//! announcement is useless to a process that gets the port, even while no signer runs.

use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use usher_base::{ConnectionTuple, HostName};
use usher_kernel::ticket::{Attempt, Guard, Guards, LeftGuard, TicketError};
use usher_policy::Host;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Signer;
use super::relay::{ANSWER, CONNECT};

/// The time that a guard stands after an announcing frame: the server may take [`ANSWER`] to
/// announce and admits for [`CONNECT`]; as much again allows for diverging clocks and transit.
const STANDS: Duration = Duration::from_secs(ANSWER.as_secs() + 2 * CONNECT.as_secs());

/// Pause before the next attempt to remove a guard, doubled each time, and its limit.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A connection to be announced, and the attempt that makes it.
#[derive(Debug, Clone, Copy)]
pub struct Guarded {
    /// Its endpoints.
    pub connection: ConnectionTuple,
    attempt: Option<Attempt>,
    released: bool,
    doubt: bool,
}

impl Guarded {
    /// A connection that `socket` will make.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] if it is not a socket.
    pub fn of_socket(connection: ConnectionTuple, socket: BorrowedFd<'_>) -> Result<Self, Refusal> {
        let attempt = Attempt::of_socket(socket).map_err(|_| Refusal::Malformed)?;
        Ok(Self {
            connection,
            attempt: Some(attempt),
            released: true,
            doubt: false,
        })
    }

    /// A held connection.
    pub fn held(connection: ConnectionTuple, attempt: Attempt) -> Self {
        Self {
            connection,
            attempt: Some(attempt),
            released: false,
            doubt: false,
        }
    }

    /// The same, permitted to begin now.
    pub fn released(self) -> Self {
        Self {
            released: true,
            ..self
        }
    }

    /// Records that an answer was lost. The connection may be announced as late as the server may
    /// answer, whatever is announced or withdrawn meanwhile.
    pub fn doubt(&mut self) {
        self.doubt = true;
    }

    /// Removes the guard once no announcement of this connection stands. The caller has already
    /// withdrawn those that it knows of.
    pub async fn lift(self, signer: &Signer) {
        if self.doubt {
            tokio::time::sleep(ANSWER + CONNECT).await;
        }
        lift(signer, &self.connection).await;
    }

    /// Sets the connection's guard, for [`STANDS`] from now. Call it before each frame that
    /// announces the connection, with the `session` if it is already open.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when there are too many.
    pub fn stand(&self, signer: &Signer, session: Option<SessionId>) -> Result<(), Refusal> {
        let (Some(guards), Some(attempt)) = (signer.tickets.guards(), self.attempt) else {
            return Ok(());
        };
        let guard = Guard {
            attempt,
            released: self.released,
            lifetime: STANDS,
            // In doubt, withdrawing one announcement is not enough: the clock ends it.
            session: session.filter(|_| !self.doubt),
        };
        guards
            .put(&self.connection, &guard)
            .map_err(|error| match error {
                TicketError::Full => Refusal::Overloaded,
                error => {
                    tracing::error!(%error, connection = %self.connection, "a guard is not entered");
                    Refusal::SignerUnavailable
                }
            })
    }
}

/// Whether another connection's guard stands for these endpoints.
pub fn stands(signer: &Signer, connection: &ConnectionTuple) -> bool {
    let stands = signer
        .tickets
        .guards()
        .map(|guards| guards.stands(connection));
    stands.is_some_and(|stands| {
        stands.unwrap_or_else(|error| {
            tracing::error!(%error, "looking for a guard");
            true
        })
    })
}

/// Removes the guard of a connection of which no announcement stands.
async fn lift(signer: &Signer, connection: &ConnectionTuple) {
    if let Some(guards) = signer.tickets.guards() {
        until_removed(connection, || guards.remove(connection)).await;
    }
}

/// Removes a guard, which would otherwise block connections with these endpoints: tries until it is
/// gone.
async fn until_removed<E: Display>(
    connection: &ConnectionTuple,
    mut remove: impl FnMut() -> Result<bool, E>,
) {
    let mut pause = PAUSE;
    let mut told = false;
    while let Err(error) = remove() {
        if !told {
            tracing::error!(%error, %connection, "a guard is not taken away: connections with these \
                ends are kept back until it is, which is tried again and again");
        }
        told = true;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    if told {
        tracing::info!(%connection, "the guard has been taken away");
    }
}

/// Withdraws the announcements that an earlier signer left, and removes their guards. A guard whose
/// withdrawal is not answered stands until its time is over.
pub async fn clear_up(signer: Arc<Signer>) {
    let left = signer
        .tickets
        .guards()
        .map(Guards::left)
        .unwrap_or_default();
    if left.is_empty() {
        return;
    }
    tracing::info!(
        guards = left.len(),
        "connections stand announced since before this signer"
    );
    let begun = Instant::now();
    let mut hosts: std::collections::HashMap<HostName, (Host, Vec<LeftGuard>)> =
        std::collections::HashMap::new();
    let configuration = signer.configuration.get();
    for guard in left {
        let address = guard.connection.server.ip();
        let mut known = configuration.checked.policy.hosts.values();
        // Without a session or a host there is no server to ask: the clock ends it.
        if guard.session.is_some()
            && let Some(host) = known.find(|host| host.addresses.contains(&address))
        {
            let all = hosts.entry(host.name.clone());
            let all = all.or_insert_with(|| (host.clone(), Vec::new()));
            all.1.push(*guard);
        }
    }
    // Hosts are handled in parallel, so that none delays another.
    let hosts = hosts.into_values().map(|(host, guards)| {
        let signer = Arc::clone(&signer);
        tokio::spawn(async move {
            for guard in guards {
                withdraw_left(&signer, &host, &guard, begun).await;
            }
        })
    });
    for host in hosts.collect::<Vec<_>>() {
        if let Err(error) = host.await {
            tracing::error!(%error, "clearing up guards");
        }
    }
}

async fn withdraw_left(signer: &Signer, host: &Host, guard: &LeftGuard, begun: Instant) {
    let Some(session) = guard.session else {
        return;
    };
    // The user is no longer known, so it counts to root's share.
    let relay = &signer.relay;
    while let Err(refusal) = relay.withdraw(host, 0, session, guard.connection).await {
        if begun.elapsed() >= guard.lifetime {
            return;
        }
        tracing::debug!(%refusal, connection = %guard.connection, "not withdrawn yet");
        tokio::time::sleep(PAUSE).await;
    }
    // Once it has expired, these endpoints may belong to another connection.
    if begun.elapsed() < guard.lifetime {
        lift(signer, &guard.connection).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_guard_is_tried_to_be_taken_away_until_it_has_gone() {
        let connection = ConnectionTuple {
            client: ([10, 77, 0, 1], 40_000).into(),
            server: ([10, 77, 0, 2], 143).into(),
        };
        let mut tries = 0;
        until_removed(&connection, || {
            tries += 1;
            if tries < 100 {
                Err("not now")
            } else {
                Ok(true)
            }
        })
        .await;
        assert_eq!(tries, 100);
        // A missing guard counts as removed.
        until_removed(&connection, || Ok::<_, &str>(false)).await;
    }
}
