//! The requests that the daemons of authentication answer on their control sockets, besides
//! [`Status`](usher_daemon::control::Status).

mod mac;
mod protection;
mod views;

use std::io;

use serde::{Deserialize, Serialize};
use usher_base::UserName;
use usher_policy::protection::Report;

use crate::applied::Applied;
use usher_daemon::control::{MAX_CANDIDATE, Request};

pub use mac::{
    InterfaceView, MacView, ModuleView, MultilabelView, RefusalView, RefusalsView,
    UNREADABLE_NOTES, digest_of,
};
pub use protection::{
    ApplicationView, FormerAddress, NameView, ProtectionView, SaView, SocketView, SocketsView,
    TreatmentView,
};
pub use views::{
    AgentView, AgentsView, CertificateView, ConnectionView, EndedView, EndingView, FailureView,
    FailuresView, PreparedView, RecentView, ReloadedView, SessionView, TroubleView, TroublesView,
    WhoView, WorkerView, WouldEndView,
};

usher_daemon::requests! {
    /// Reads the applied configuration again and puts it in force.
    Reload {} "reload" -> ReloadedView,
    /// Refuses this user from now on, whatever the applied configuration says. Needs no disk. Holds
    /// until [`Enable`], or as long as the daemon lives.
    Disable {
        /// The user.
        user: UserName,
        /// When the order was given, in seconds since 1970: a daemon that has stalled takes it late.
        given: u64
    } "disable" -> ReloadedView,
    /// Takes [`Disable`] back: the applied configuration decides about the user again.
    Enable {
        /// The user.
        user: UserName,
        /// Only in a daemon that has this generation in force, or a later one: the others must refuse the
        /// user from memory until they have.
        since: u64
    } "enable" -> ReloadedView,
    /// Asks for live sessions, connections and workers.
    Who {} "who" -> WhoView,
    /// Asks for the users who sign by an ssh-agent.
    Agents {} "agents" -> AgentsView,
    /// Asks for connections of this host's users whose program on the server has failed at once.
    Failures {} "failures" -> FailuresView,
    /// Asks for the sessions that have ended last.
    Recent {} "recent" -> RecentView,
    /// Asks what keeps services from serving their users.
    Troubles {} "troubles" -> TroublesView,
    /// Asks how the traffic of programs is protected.
    Protection {} "protection" -> ProtectionView,
    /// Asks for a page of the live sockets of governed programs.
    Sockets {
        /// [`SocketsView::next`] of the page before; 0: the first page.
        after: u64,
        /// How many sockets the page has at most; [`SocketsView::MOST`] limits it as well.
        most: u64
    } "sockets" -> SocketsView,
    /// Asks with which hosts SAs are negotiated, and how far that is.
    Peers {} "peers" -> Report,
    /// Asks for the modules of mandatory access control.
    Mac {} "mac" -> MacView,
    /// Loads a module with the settings of the policy in force.
    MacLoad {
        /// The module.
        module: String
    } "mac_load" -> MacView,
    /// Unloads a module.
    MacUnload {
        /// The module.
        module: String
    } "mac_unload" -> MacView,
    /// Has the labeller look at all files of multilabel file systems again, and give them what it sets unasked.
    MacLook {} "mac_look" -> MacView,
    /// Asks for what modules have refused.
    MacRefusals {} "mac_refusals" -> RefusalsView,
}

/// Declares requests about a configuration that is not stored. Its bytes follow the request's line. The
/// requests change nothing.
macro_rules! requests_about_candidates {
    ($($(#[$doc:meta])* $request:ident $name:literal -> $answer:ty,)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub struct $request {
            bytes: u64,
            #[serde(skip)]
            candidate: Vec<u8>,
        }

        impl $request {
            /// A question about this configuration.
            ///
            /// # Errors
            /// When it is larger than [`MAX_CANDIDATE`] or has no JSON form.
            pub fn new(candidate: &Applied) -> io::Result<Self> {
                let candidate = encode(candidate)?;
                let bytes = candidate.len() as u64;
                Ok(Self { bytes, candidate })
            }

            /// The configuration, as [`crate::configuration::Configuration::read`] takes it.
            #[must_use]
            pub fn into_candidate(self) -> Vec<u8> {
                self.candidate
            }
        }

        impl Request for $request {
            const NAME: &'static str = $name;
            type Answer = $answer;

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
    )*};
}

requests_about_candidates! {
    /// Asks which sessions a configuration would end if it were put in force.
    WouldEnd "would_end" -> WouldEndView,
    /// Asks whether the daemon would take a configuration. The daemon checks everything that it can
    /// check without a change, and fails with the reason if it would refuse.
    Prepare "prepare" -> PreparedView,
}

fn encode(candidate: &Applied) -> io::Result<Vec<u8>> {
    let candidate = serde_json::to_vec(candidate)?;
    let bytes = candidate.len() as u64;
    if bytes > MAX_CANDIDATE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("the configuration has {bytes} bytes; daemons take {MAX_CANDIDATE}"),
        ));
    }
    Ok(candidate)
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
