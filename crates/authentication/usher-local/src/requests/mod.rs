//! The requests that the daemons of authentication answer on their control sockets, besides
//! [`Status`](usher_daemon::control::Status).

mod protection;
mod views;

use std::io;

use serde::{Deserialize, Serialize};
use usher_base::UserName;
use usher_policy::protection::Report;

use crate::applied::Applied;
use usher_daemon::control::{MAX_CANDIDATE, Request};

pub use protection::{ApplicationView, ProtectionView};
pub use views::{
    AgentView, AgentsView, CertificateView, ConnectionView, EndedView, EndingView, RecentView,
    ReloadedView, SessionView, TroubleView, TroublesView, WhoView, WorkerView, WouldEndView,
};

usher_daemon::requests! {
    /// Reads the applied configuration again and puts it in force.
    Reload {} "reload" -> ReloadedView,
    /// Refuses this user from now on, whatever the applied configuration says. Needs no disk. Holds
    /// until [`Enable`], or as long as the daemon lives.
    Disable { user: UserName } "disable" -> ReloadedView,
    /// Takes [`Disable`] back: the applied configuration decides about the user again.
    Enable { user: UserName } "enable" -> ReloadedView,
    /// Asks for live sessions, connections and workers.
    Who {} "who" -> WhoView,
    /// Asks for the users who sign by an ssh-agent.
    Agents {} "agents" -> AgentsView,
    /// Asks for the sessions that have ended last.
    Recent {} "recent" -> RecentView,
    /// Asks what keeps services from serving their users.
    Troubles {} "troubles" -> TroublesView,
    /// Asks how the traffic of programs is protected.
    Protection {} "protection" -> ProtectionView,
    /// Asks with which hosts SAs are negotiated, and how far that is.
    Peers {} "peers" -> Report,
}

/// Asks which sessions a configuration would end if it were put in force. Nothing changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WouldEnd {
    bytes: u64,
    #[serde(skip)]
    candidate: Vec<u8>,
}

impl WouldEnd {
    /// A question about this configuration.
    ///
    /// # Errors
    /// When it is larger than [`MAX_CANDIDATE`] or has no JSON form.
    pub fn new(candidate: &Applied) -> io::Result<Self> {
        let candidate = serde_json::to_vec(candidate)?;
        let bytes = candidate.len() as u64;
        if bytes > MAX_CANDIDATE {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("the configuration has {bytes} bytes; the keeper takes {MAX_CANDIDATE}"),
            ));
        }
        Ok(Self { bytes, candidate })
    }

    /// The configuration, as [`crate::applied::read_checked`] takes it.
    #[must_use]
    pub fn into_candidate(self) -> Vec<u8> {
        self.candidate
    }
}

impl Request for WouldEnd {
    const NAME: &'static str = "would_end";
    type Answer = WouldEndView;

    fn following(&self) -> u64 {
        self.bytes
    }

    fn attached(&self) -> &[u8] {
        &self.candidate
    }

    fn attach(&mut self, bytes: Vec<u8>) {
        self.candidate = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_has_a_limit_and_up_to_it_is_sent() {
        let asked = |size: usize| {
            let mut candidate = Applied {
                user_authorities: Some(String::new()),
                ..Applied::default()
            };
            let rest = serde_json::to_vec(&candidate).unwrap().len();
            candidate.user_authorities = Some("x".repeat(size - rest));
            WouldEnd::new(&candidate)
        };
        let limit = usize::try_from(MAX_CANDIDATE).unwrap();
        let request = asked(limit).unwrap();
        assert_eq!(request.following(), MAX_CANDIDATE);
        assert_eq!(request.into_candidate().len(), limit);
        let refused = asked(limit + 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
    }
}
