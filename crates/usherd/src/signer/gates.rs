//! Gates. From before a connection is announced until the announcement is withdrawn, no other
//! socket's SYN with its endpoints leaves this host (bpf/authentication/ticket/gate.bpf.c). So an
//! announcement is useless to a process that gets the port, even while no signer runs.

use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use usher_base::{ConnectionTuple, HostName};
use usher_kernel::ticket::{Attempt, Gate, Gates, LeftGate, TicketError};
use usher_policy::Host;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Signer;
use super::relay::{ANSWER, CONNECT};
use crate::courier::DELIVERY;

/// The time that a gate stands after an announcing frame. The frame reaches the server within [`DELIVERY`];
/// the server may take [`ANSWER`] to announce the connection, and admits it for [`CONNECT`].
const STANDS: Duration =
    Duration::from_secs(DELIVERY.as_secs() + ANSWER.as_secs() + CONNECT.as_secs());

/// Pause before the next attempt to remove a gate, doubled each time, and its limit.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A connection to be announced, and the attempt that makes it.
#[derive(Debug, Clone, Copy)]
pub struct Gated {
    /// Its endpoints.
    pub connection: ConnectionTuple,
    attempt: Attempt,
    released: bool,
    doubt: bool,
}

impl Gated {
    /// A connection that `socket` will make.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] if it is not a socket.
    pub fn of_socket(connection: ConnectionTuple, socket: BorrowedFd<'_>) -> Result<Self, Refusal> {
        let attempt = Attempt::of_socket(socket).map_err(|_| Refusal::Malformed)?;
        Ok(Self::held(connection, attempt).released())
    }

    /// A held connection.
    pub fn held(connection: ConnectionTuple, attempt: Attempt) -> Self {
        Self {
            connection,
            attempt,
            released: false,
            doubt: false,
        }
    }

    /// This connection, permitted to begin now.
    pub fn released(self) -> Self {
        Self {
            released: true,
            ..self
        }
    }

    /// Records that an answer was lost. The server may announce the connection until its time to answer is
    /// over, whatever is announced or withdrawn meanwhile.
    pub fn doubt(&mut self) {
        self.doubt = true;
    }

    /// Removes the gate once no announcement of this connection stands. The caller has already
    /// withdrawn those that it knows of.
    pub async fn lift(self, signer: &Signer) {
        if self.doubt {
            // Wait as long as the last frame's gate stands.
            tokio::time::sleep(STANDS).await;
        }
        lift(signer, &self.connection).await;
    }

    /// Sets the connection's gate, for [`STANDS`] from now. Call it before each frame that
    /// announces the connection, with the `session` if it is already open.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when there are too many gates.
    pub fn stand(&self, signer: &Signer, session: Option<SessionId>) -> Result<(), Refusal> {
        let Some(gates) = signer.tickets.gates() else {
            return Ok(());
        };
        let gate = Gate {
            attempt: self.attempt,
            released: self.released,
            lifetime: STANDS,
            // In doubt, withdrawing one announcement is not enough: the gate stands until its time is over.
            session: session.filter(|_| !self.doubt),
        };
        gates
            .put(&self.connection, &gate)
            .map_err(|error| match error {
                TicketError::Full => Refusal::Overloaded,
                error => {
                    tracing::error!(%error, connection = %self.connection, "cannot enter a gate");
                    Refusal::SignerUnavailable
                }
            })
    }
}

/// Whether another connection's gate stands for these endpoints.
pub fn stands(signer: &Signer, connection: &ConnectionTuple) -> bool {
    let stands = signer.tickets.gates().map(|gates| gates.stands(connection));
    stands.is_some_and(|stands| {
        stands.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot look for a gate");
            true
        })
    })
}

/// Removes the gate of a connection that is not announced any more.
async fn lift(signer: &Signer, connection: &ConnectionTuple) {
    if let Some(gates) = signer.tickets.gates() {
        until_removed(connection, || gates.remove(connection)).await;
    }
}

/// Removes a gate, which would otherwise block connections with these endpoints: tries until it is
/// gone.
async fn until_removed<E: Display>(
    connection: &ConnectionTuple,
    mut remove: impl FnMut() -> Result<bool, E>,
) {
    let mut pause = PAUSE;
    let mut told = false;
    while let Err(error) = remove() {
        if !told {
            tracing::error!(%error, %connection, "cannot remove a gate: connections with these \
                endpoints are held until it is gone; the signer tries again");
        }
        told = true;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    if told {
        tracing::info!(%connection, "the gate has been taken away");
    }
}

/// Withdraws the announcements that an earlier signer left, and removes their gates. A gate whose
/// withdrawal is not answered stands until its time is over.
pub async fn clear_up(signer: Arc<Signer>) {
    let left = signer.tickets.gates().map(Gates::left).unwrap_or_default();
    if left.is_empty() {
        return;
    }
    tracing::info!(
        gates = left.len(),
        "withdrawing the announcements of an earlier signer"
    );
    let begun = Instant::now();
    let mut hosts: std::collections::HashMap<HostName, (Host, Vec<LeftGate>)> =
        std::collections::HashMap::new();
    let configuration = signer.configuration.get();
    for gate in left {
        let address = gate.connection.server.ip();
        let mut known = configuration.checked.policy.hosts.values();
        // Without a session or a host there is no server to ask: the gate stands until its time is over.
        if gate.session.is_some()
            && let Some(host) = known.find(|host| host.addresses.contains(&address))
        {
            let all = hosts.entry(host.name.clone());
            let all = all.or_insert_with(|| (host.clone(), Vec::new()));
            all.1.push(*gate);
        }
    }
    // Hosts are handled in parallel, so that none delays another.
    let hosts = hosts.into_values().map(|(host, gates)| {
        let signer = Arc::clone(&signer);
        tokio::spawn(async move {
            for gate in gates {
                withdraw_left(&signer, &host, &gate, begun).await;
            }
        })
    });
    for host in hosts.collect::<Vec<_>>() {
        if let Err(error) = host.await {
            tracing::error!(%error, "cannot remove gates that are over");
        }
    }
}

async fn withdraw_left(signer: &Signer, host: &Host, gate: &LeftGate, begun: Instant) {
    let Some(session) = gate.session else {
        return;
    };
    // The user is not known, so the request counts to root's share.
    let relay = &signer.relay;
    while let Err(refusal) = relay.withdraw(host, 0, session, gate.connection).await {
        if begun.elapsed() >= gate.lifetime {
            return;
        }
        tracing::debug!(%refusal, connection = %gate.connection, "not withdrawn yet");
        tokio::time::sleep(PAUSE).await;
    }
    // Once the gate has expired, these endpoints may belong to another connection.
    if begun.elapsed() < gate.lifetime {
        lift(signer, &gate.connection).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_gate_is_tried_to_be_taken_away_until_it_has_gone() {
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
        // A missing gate counts as removed.
        until_removed(&connection, || Ok::<_, &str>(false)).await;
    }
}
