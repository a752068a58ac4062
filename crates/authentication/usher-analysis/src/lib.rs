//! Who reaches what, by the policies of one or many hosts together.
//!
//! A connection of user U from host C to service V of host S at port P is permitted when C's policy
//! lets U authenticate to V of S at P (`client` block), S's policy offers V at P to U from C, and
//! the two know each other: key, addresses and control port agree. A [`Network`] holds the policies;
//! [`Network::decide`] answers for one user and gives the clauses that decide; a [`Universe`] has
//! the sets of users, and [`Universe::rights`] all that is permitted.
//!
//! A service may also admit whoever has a certificate that names a principal. No policy says who has
//! one, so such users are told apart, with the principal, wherever somebody is permitted.
//!
//! Answers are exact: nothing is sampled, and what is not known is said to be not known. That they
//! are what the daemons enforce, tests/agreement.rs shows on random policies and
//! tests/lab/tests/policy_analysis.rs with real connections.
//!
//! No I/O and no clock: the caller reads the files, and says which keys are good now.
#![forbid(unsafe_code)]

mod asked_user;
mod certificates;
mod decision;
mod difference;
mod disagreement;
mod expectation;
mod graph;
mod how;
mod network;
mod objection;
mod rights;
mod sets;

pub use certificates::ByCertificate;
pub use decision::{Decision, Ground, NothingKnown, Question, Verdict};
pub use difference::{CertificateChange, Change, difference};
pub use disagreement::{Disagreement, Matter};
pub use expectation::{Expected, MAXIMUM_EXAMPLES, Outcome};
pub use graph::graph;
pub use how::{How, Offer, Request, Route};
pub use network::{FormerKey, HostPolicy, KeyFault, Network, NetworkError, UserState};
pub use objection::{Objection, Reason};
pub use rights::{Known, Right};
pub use sets::{Sample, SetId, Universe};
