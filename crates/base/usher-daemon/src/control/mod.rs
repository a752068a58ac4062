//! Control requests to the daemons, and their answers: one JSON line each way over a stream socket that only
//! root may use (file mode and peer credentials). A configuration may follow a request's line. A daemon sends
//! [`HEARD`] before its answer, which tells a busy daemon from one that hangs.
//!
//! [`roles!`](crate::roles!) says which role answers which request. [`ask_daemon`] asks one role, [`ask_each`] all
//! that answer.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::role::HasRole;

mod client;

pub use client::{ControlError, ask_daemon, ask_each, tell_of_waiting};

/// Largest request line, in bytes.
pub const MAX_REQUEST: usize = 4096;

/// The sign that a daemon has a request: an empty line.
pub const HEARD: u8 = b'\n';

/// Largest configuration that may follow a request, in bytes.
pub const MAX_CANDIDATE: u64 = 64 << 20;

/// A request. Its line is a JSON object of its fields and of `request`, its name.
pub trait Request: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The request's name.
    const NAME: &'static str;
    /// The answer, if the daemon has carried the request out.
    type Answer: Serialize + DeserializeOwned + Send;

    /// How many bytes follow the request's line.
    fn following(&self) -> u64 {
        0
    }

    /// The bytes that follow the request's line.
    fn attached(&self) -> &[u8] {
        &[]
    }

    /// Takes the bytes that have followed the request's line.
    fn attach(&mut self, _bytes: Vec<u8>) {}
}

/// A request that the role `R` answers.
pub trait AnsweredBy<R: HasRole>: Request {}

/// Declares requests: fields, name, answer. Their types derive the traits of `serde`.
#[macro_export]
macro_rules! requests {
    ($($(#[$doc:meta])* $request:ident {
        $($(#[$about:meta])* $field:ident: $type:ty),*
    } $name:literal -> $answer:ty,)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
            pub struct $request {
                $(
                    $(#[$about])*
                    pub $field: $type,
                )*
            }

            impl $crate::control::Request for $request {
                const NAME: &'static str = $name;
                type Answer = $answer;
            }
        )*
    };
}

crate::requests! {
    /// Asks for the state of the daemon.
    Status {} "status" -> StatusView,
}

/// The line of an answer.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Reply<A> {
    /// The request was carried out.
    Done(A),
    /// The request could not be carried out; nothing changed.
    Failed {
        /// The reason, for an administrator.
        reason: String,
    },
}

/// The state of a daemon.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct StatusView {
    /// Its role.
    pub role: String,
    /// Version of the program.
    pub version: String,
    /// Generation of the configuration in force; 0: the role has none, or none was applied and
    /// everything is refused.
    pub generation: u64,
    /// Named numbers: counters and table fill.
    pub numbers: BTreeMap<String, u64>,
    /// Troubles that keep the daemon from its work, each for people. `usher doctor` fails if there
    /// is any.
    #[serde(default)]
    pub troubles: Vec<String>,
}

/// The answer at a daemon's numbers socket: its numbers, without a text that could name a user or a host.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct NumbersView {
    /// Version of the program.
    pub version: String,
    /// As [`StatusView::generation`].
    pub generation: u64,
    /// As [`StatusView::numbers`].
    pub numbers: BTreeMap<String, u64>,
    /// How many troubles there are.
    pub troubles: u64,
}

impl From<StatusView> for NumbersView {
    fn from(status: StatusView) -> Self {
        Self {
            version: status.version,
            generation: status.generation,
            numbers: status.numbers,
            troubles: status.troubles.len() as u64,
        }
    }
}

impl StatusView {
    /// The state of a daemon of the role `R` with these numbers.
    #[must_use]
    pub fn new<'a, R: HasRole>(
        generation: u64,
        numbers: impl IntoIterator<Item = (&'a str, u64)>,
        troubles: Vec<String>,
    ) -> Self {
        let numbers = numbers.into_iter();
        Self {
            role: R::ROLE.name.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            generation,
            numbers: numbers.map(|(name, n)| (name.to_owned(), n)).collect(),
            troubles,
        }
    }
}
