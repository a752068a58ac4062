//! Control requests to the daemons, and their answers: one JSON line each way over a stream socket
//! that only root may use (file mode and peer credentials). A configuration may follow a request's
//! line. A daemon sends [`HEARD`] before its answer: a daemon that hangs then differs from a busy one.
//!
//! [`roles!`](crate::roles!) says which role answers which request. [`ask`] asks one role, [`ask_each`] all
//! that answer.

mod client;
mod status;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::role::HasRole;

pub use client::{ControlError, ask, ask_each, tell_of_waiting};
pub use status::StatusView;

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
    /// It could not be; nothing changed.
    Failed {
        /// The reason, for an administrator.
        reason: String,
    },
}
