//! Computes which users reach which services, by the policies of one or many hosts together.
//!
//! A connection of user U from host C to service V of host S at port P is permitted if C's policy
//! lets U authenticate to V of S at P (`client` block), S's policy offers V at P to U from C, and
//! the two know each other: key, addresses and control port agree. Where V demands `protection`, C's
//! policy protects a program's traffic with it.
//!
//! A [`Network`] holds the policies. [`Network::decide`] answers for one user and returns the
//! deciding clauses. A [`Universe`] has the sets of users, and [`Universe::rights`] all that is
//! permitted.
//!
//! A service may also admit users whose certificate names a principal. No policy says which users
//! have one, so they are listed separately, with the principal, in every result.
//!
//! Answers are exact: nothing is sampled, and unknown facts are reported as unknown.
//! tests/agreement.rs shows on random policies, and tests/lab/tests/policy_analysis.rs with real
//! connections, that the daemons enforce the same.
//!
//! No I/O and no clock: the caller reads the files and determines which keys are valid now.
//!
//! Room: touches nothing outside its arguments. Only the command line uses it; it enforces nothing.
#![forbid(unsafe_code)]

mod certificates;
mod decision;
mod difference;
mod disagreement;
mod expectation;
mod graph;
mod how;
mod network;
mod objection;
mod protection;
mod question;
mod rights;
mod sets;
mod traffic;

pub use certificates::ByCertificate;
pub use decision::{Decision, Ground, NothingKnown, Verdict};
pub use difference::{CertificateChange, Change, difference};
pub use difference::{ModuleChange, module_changes};
pub use disagreement::{Disagreement, Matter};
pub use expectation::{Expected, MAXIMUM_EXAMPLES, Outcome};
pub use graph::graph;
pub use how::{How, Offer, Request, Route};
pub use network::{FormerKey, HostPolicy, KeyFault, Network, NetworkError, UserState};
pub use objection::{Objection, Reason};
pub use question::Question;
pub use rights::{Known, Right};
pub use sets::{Sample, SetId, Universe};
pub use traffic::{TrafficChange, traffic_changes};
