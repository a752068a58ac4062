//! Where the connections of a queue may come from, and what PAM says about each of these addresses.
//!
//! Neither the keeper nor the starter ever holds a connection, so its address is not known before a
//! worker has accepted it. PAM is therefore asked about all addresses from which the user may connect:
//! those of the hosts that have opened sessions. The worker resets connections from refused ones. If
//! there are many addresses, or a PAM session needs exactly one, the connections that wait are looked up
//! in the kernel, and the order is for these only.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use usher_base::HostName;
use usher_kernel::admission::{AdmissionRow, AdmissionState};
use usher_policy::Style;
use usher_proto::refusal::Refusal;

use super::Queue;
use crate::keeper::host::accounts::Identity;

/// Limit of addresses about which PAM is asked without knowing which of them have waiting connections.
const FEW: usize = 8;
/// Limit of waiting connections that are looked up.
const LOOKED_UP: usize = 256;

/// PAM's permission for an order.
pub struct Admitted {
    /// The identity of the user's processes.
    pub identity: Arc<Identity>,
    /// The address for which PAM permits the order. If waiting connections were looked up, that of the first
    /// one that PAM permits. Unspecified for a shared queue.
    pub client: IpAddr,
    /// Addresses that PAM refuses.
    pub refused: Vec<IpAddr>,
    /// The only address from which connections are taken.
    pub only: Option<IpAddr>,
    /// The number of connections that the order is for; none: also for those to come.
    pub total: Option<u32>,
}

impl Admitted {
    /// An order for the process of a shared queue: PAM has been asked about each user when the user's session
    /// was opened, and the connections may come from anywhere.
    pub(super) fn as_service(identity: Arc<Identity>) -> Self {
        Self {
            identity,
            client: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            refused: Vec::new(),
            only: None,
            total: None,
        }
    }
}

/// The waiting connections that an order is for.
struct Choice {
    client: IpAddr,
    total: u32,
}

impl Queue {
    /// Notes that the user has opened a session from a host.
    pub fn note_host(&self, host: &HostName) {
        let mut hosts = self.hosts.lock();
        if !hosts.contains(host) {
            hosts.insert(host.clone());
        }
    }

    /// Asks PAM whether the user's processes may be started, for the connections that wait or come soon. With
    /// `one_client`, only for connections from one address, for which a PAM session is opened then.
    ///
    /// # Errors
    /// When PAM refuses all addresses, or the account has gone.
    pub(super) async fn ask_pam(
        &self,
        style: Style,
        one_client: bool,
    ) -> Result<Admitted, Refusal> {
        let possible = self.addresses();
        let is_exact = possible.len() > if one_client { 1 } else { FEW };
        let waiting = if is_exact {
            self.waiting_clients()
        } else {
            Vec::new()
        };
        let asked = if waiting.is_empty() {
            // Clients may have reset the connections that waited; only a process can find that out.
            possible.iter().copied().take(FEW).collect()
        } else {
            distinct(&waiting)
        };
        let answers = self.common.host.identities.of_each(&self.account, &asked);
        let (mut permitted, mut refused) = (Vec::new(), Vec::new());
        let mut refusal = Refusal::HostNotPermitted;
        for (client, answer) in answers.await {
            match answer {
                Ok(identity) => permitted.push((client, identity)),
                Err(reason) => {
                    refusal = reason;
                    refused.push(client);
                }
            }
        }
        // A process of style `user` accepts by itself, so refused connections must not reach it.
        if style == Style::User && !refused.is_empty() && !permitted.is_empty() {
            let left = self.reset_waiting(&refused);
            permitted.retain(|(client, _)| left.contains(client));
        }
        let Some((first, identity)) = permitted.first() else {
            return Err(refusal);
        };
        let choice = choose(&waiting, &refused, one_client).unwrap_or(Choice {
            client: *first,
            total: 1,
        });
        let identity = permitted
            .iter()
            .find(|(client, _)| *client == choice.client)
            .map_or(identity, |(_, identity)| identity);
        Ok(Admitted {
            identity: Arc::clone(identity),
            client: choice.client,
            only: (is_exact && one_client).then_some(choice.client),
            total: is_exact.then_some(choice.total),
            refused,
        })
    }

    /// The addresses, by the policy in force, of the hosts that have opened sessions.
    fn addresses(&self) -> Vec<IpAddr> {
        let configuration = self.common.host.configuration.get();
        let known = &configuration.checked.policy.hosts;
        let hosts = self.hosts.lock();
        let addresses = hosts.iter().filter_map(|host| known.get(host));
        let addresses: Vec<IpAddr> = addresses
            .flat_map(|host| host.addresses.iter().copied())
            .collect();
        distinct(&addresses)
    }

    /// The addresses of the connections that wait, oldest first.
    fn waiting_clients(&self) -> Vec<IpAddr> {
        self.waiting_connections()
            .iter()
            .map(|row| row.connection.client.ip())
            .collect()
    }

    /// Resets waiting connections from these addresses. Returns the addresses of all others.
    fn reset_waiting(&self, refused: &[IpAddr]) -> Vec<IpAddr> {
        let (out, left): (Vec<_>, Vec<_>) = self
            .waiting_connections()
            .into_iter()
            .map(|row| row.connection)
            .partition(|connection| refused.contains(&connection.client.ip()));
        for connection in out {
            if let Err(error) = usher_system::connections::destroy(&connection) {
                tracing::error!(client = %connection.client, %error,
                    "cannot reset a connection that PAM refuses");
            }
        }
        left.iter()
            .map(|connection| connection.client.ip())
            .collect()
    }

    /// The connections that wait, oldest first.
    pub(super) fn waiting_connections(&self) -> Vec<AdmissionRow> {
        let mut rows = match self.common.host.admissions() {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(%error, "cannot read the admission table");
                return Vec::new();
            }
        };
        rows.retain(|row| self.has(row) && row.state == AdmissionState::Established);
        rows.sort_by_key(|row| std::cmp::Reverse(row.established));
        rows.into_iter()
            .filter(|row| {
                let waits = usher_system::connections::is_unaccepted(&row.connection);
                waits.unwrap_or_else(|error| {
                    tracing::error!(%error, "cannot look for connections that wait");
                    false
                })
            })
            .take(LOOKED_UP)
            .collect()
    }
}

/// The waiting connections that an order is for. They are at the front of the queue and not refused; with
/// `one_client`, they come from one address. None if all are refused.
fn choose(waiting: &[IpAddr], refused: &[IpAddr], one_client: bool) -> Option<Choice> {
    let mut permitted = waiting.iter().filter(|client| !refused.contains(client));
    let client = *permitted.next()?;
    let more = permitted.take_while(|other| !one_client || **other == client);
    Some(Choice {
        client,
        total: u32::try_from(more.count() + 1).unwrap_or(u32::MAX),
    })
}

fn distinct(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut seen = Vec::new();
    for address in addresses {
        if !seen.contains(address) {
            seen.push(*address);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_for_the_front_of_the_queue() {
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let chosen = |waiting: &[IpAddr], refused: &[IpAddr], one_client| {
            choose(waiting, refused, one_client).map(|choice| (choice.client, choice.total))
        };
        let waiting = [a, a, b, a];
        assert_eq!(chosen(&waiting, &[], false), Some((a, 4)));
        assert_eq!(chosen(&waiting, &[], true), Some((a, 2)));
        assert_eq!(chosen(&waiting, &[b], true), Some((a, 3)));
        assert_eq!(chosen(&waiting, &[a, c], true), Some((b, 1)));
        assert_eq!(chosen(&waiting, &[a, b], false), None);
        assert_eq!(distinct(&waiting), [a, b]);
    }
}
