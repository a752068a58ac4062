//! Control requests to the daemons, and their answers: one JSON line each way over a stream socket
//! that only root may use (file mode and peer credentials). A configuration may follow a request's
//! line. A daemon sends [`HEARD`] before its answer: a daemon that hangs then differs from a busy one.
//!
//! [`crate::roles`] says which role answers which request. [`ask`] asks one role, [`ask_each`] all
//! that answer.

mod client;
mod views;

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use usher_proto::name::UserName;

use crate::applied::Applied;
use crate::roles::HasRole;

pub use client::{ControlError, ask, ask_each};
pub use views::{
    AgentView, AgentsView, CertificateView, ConnectionView, EndedView, EndingView, RecentView,
    ReloadedView, SessionView, StatusView, TroubleView, TroublesView, WhoView, WorkerView,
    WouldEndView,
};

/// Largest request line, in bytes.
pub const MAX_REQUEST: usize = 4096;

/// The sign that a daemon has a request: an empty line.
pub const HEARD: u8 = b'\n';

/// Largest configuration that may follow a request, in bytes.
pub const MAX_CANDIDATE: u64 = 64 << 20;

/// A request. Its line is a JSON object of its fields and of `request`, its name.
pub trait Request: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Its name.
    const NAME: &'static str;
    /// The answer, where the daemon could carry it out.
    type Answer: Serialize + DeserializeOwned + Send;

    /// How many bytes follow its line.
    fn following(&self) -> u64 {
        0
    }

    /// The bytes that follow its line.
    fn attached(&self) -> &[u8] {
        &[]
    }

    /// Takes the bytes that have followed its line.
    fn attach(&mut self, _bytes: Vec<u8>) {}
}

/// A request that the role `R` answers.
pub trait AnsweredBy<R: HasRole>: Request {}

macro_rules! requests {
    ($($(#[$doc:meta])* $request:ident { $($field:ident: $type:ty),* } $name:literal -> $answer:ty,)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Serialize, Deserialize)]
            pub struct $request {
                $(
                    /// The user.
                    pub $field: $type,
                )*
            }

            impl Request for $request {
                const NAME: &'static str = $name;
                type Answer = $answer;
            }
        )*
    };
}

requests! {
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
    /// Asks for the state of the daemon.
    Status {} "status" -> StatusView,
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

/// The line of an answer.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Reply<A> {
    /// The request was carried out.
    Done(A),
    /// It could not be; nothing changed.
    Failed {
        /// The reason, for an administrator.
        reason: String,
    },
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
