//! The names to look up, and the look-ups under way.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use usher_base::HostName;
use usher_policy::protection::ResolverReply;

/// The time from the end of a look-up to the next one of the same name. The C library does not say how long
/// an answer is valid; so a program on this host may get a new address this much earlier than the protector.
const AGAIN: Duration = Duration::from_secs(15);

/// Limit of look-ups at one time. Each takes a thread. DNS servers that do not answer hold them up for as
/// long as resolv.conf(5) says, and then answers become older.
const AT_ONCE: usize = 8;

/// The time after which a look-up counts as hung: longer than the C library tries all servers.
pub const HUNG: Duration = Duration::from_secs(600);

/// The names to look up, and the look-ups under way.
#[derive(Debug, Default)]
pub struct LookUps {
    /// When each name is to be looked up next.
    due: BTreeMap<HostName, Instant>,
    /// Since when names are being looked up. Some may not be wanted any more.
    begun: BTreeMap<HostName, Instant>,
    threads: JoinSet<(HostName, io::Result<Vec<IpAddr>>)>,
}

impl LookUps {
    /// Takes these names in place of the former ones. New names are due at once.
    pub fn follow(&mut self, names: Vec<HostName>) {
        let now = Instant::now();
        let former = std::mem::take(&mut self.due);
        let names = names.into_iter().map(|name| {
            let due = former.get(&name).copied().unwrap_or(now);
            (name, due)
        });
        self.due = names.collect();
    }

    /// Begins look-ups that are due, as far as there is room; those that have been due longest come first.
    pub fn begin(&mut self) {
        let now = Instant::now();
        let is_due =
            |(name, due): &(&HostName, &Instant)| **due <= now && !self.begun.contains_key(*name);
        let mut due: Vec<(Instant, HostName)> = self
            .due
            .iter()
            .filter(is_due)
            .map(|(name, due)| (*due, name.clone()))
            .collect();
        due.sort_unstable();
        let room = AT_ONCE.saturating_sub(self.begun.len());
        for (_, name) in due.into_iter().take(room) {
            self.begun.insert(name.clone(), now);
            self.threads.spawn_blocking(move || {
                let found = look_up(&name);
                (name, found)
            });
        }
    }

    /// Waits for the answer of a look-up whose name is wanted; `None` if no look-up is under way. May be
    /// cancelled.
    pub async fn next(&mut self) -> Option<ResolverReply> {
        loop {
            let (name, found) = match self.threads.join_next().await? {
                Ok(done) => done,
                Err(error) => {
                    // The name is not looked up again: it counts as hung later, which ends this process.
                    tracing::error!(%error, "a look-up ended without an answer");
                    continue;
                }
            };
            self.begun.remove(&name);
            if let Some(due) = self.due.get_mut(&name) {
                *due = Instant::now() + AGAIN;
                return Some(match found {
                    Ok(addresses) => ResolverReply::found(name, addresses),
                    Err(error) => ResolverReply::failed(name, &error.to_string()),
                });
            }
        }
    }

    /// A name whose look-up hangs.
    pub fn hung(&self) -> Option<&HostName> {
        let mut begun = self.begun.iter();
        let hung = begun.find(|(_, since)| since.elapsed() >= HUNG);
        hung.map(|(name, _)| name)
    }
}

/// The addresses of a name, as programs of this host find them.
fn look_up(name: &HostName) -> io::Result<Vec<IpAddr>> {
    let found = (name.as_ref(), 0).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_name_is_answered_and_due_again_later() {
        let mut look_ups = LookUps::default();
        look_ups.follow(vec![name("127.0.0.9")]);
        look_ups.begin();
        let reply = look_ups.next().await.unwrap();
        let expected = ResolverReply::found(name("127.0.0.9"), vec![IpAddr::from([127, 0, 0, 9])]);
        assert_eq!(reply, expected);
        look_ups.begin();
        assert!(look_ups.next().await.is_none(), "not at once");
        tokio::time::pause();
        tokio::time::advance(AGAIN).await;
        look_ups.begin();
        assert_eq!(look_ups.next().await, Some(expected));
    }

    #[tokio::test]
    async fn names_that_are_not_wanted_any_more_are_not_answered() {
        let mut look_ups = LookUps::default();
        look_ups.follow(vec![name("127.0.0.9")]);
        look_ups.begin();
        look_ups.follow(vec![name("127.0.0.8")]);
        assert_eq!(look_ups.next().await, None);
        look_ups.begin();
        assert!(look_ups.next().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_that_hang_leave_no_room_and_are_found() {
        let mut look_ups = LookUps::default();
        // The look-ups never end, as far as this test sees: nothing waits for them.
        let names = (0..20).map(|number| name(&format!("127.0.0.{number}")));
        look_ups.follow(names.collect());
        look_ups.begin();
        assert_eq!(look_ups.begun.len(), AT_ONCE);
        look_ups.begin();
        assert_eq!(look_ups.begun.len(), AT_ONCE);
        assert_eq!(look_ups.hung(), None);
        tokio::time::advance(HUNG).await;
        assert!(look_ups.hung().is_some());
    }
}
