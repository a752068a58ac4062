//! How the traffic of programs is protected by IPsec: the `application` blocks of the policy, and the
//! tables that are compiled from them.
//!
//! `usher-language` reads the text by [`dialect()`]; [`check_applications`] turns the blocks into
//! [`Application`]s; [`compile`] turns these, and the current addresses of [`Names`], into
//! [`Tables`]. The monitor and the IKE side use the tables. [`Tables::treat`] is the reference for
//! the kernel programs, and [`Application::traffic`] is the reference for the tables.
//!
//! No I/O and no clock: the caller reads files and resolves names.
//!
//! Room: touches nothing outside its arguments. usher-policy reads policies through it; it enforces
//! nothing.
#![forbid(unsafe_code)]

mod check;
mod class;
mod compile;
mod dialect;
mod ike_key;
mod limits;
mod marks;
mod mistake;
mod model;
mod names;
mod ports;
mod program;
mod report;
mod resolving;
mod tables;
mod warning;

pub use check::check_applications;
pub use class::{Class, Kind, LOWEST_CLASS_MARK, Level, Profile};
pub use compile::compile;
pub use dialect::{APPLICATION, IPSEC, PROTECTION, dialect};
pub use ike_key::{IkeAlgorithm, IkeKeyError, IkePublicKey, common_algorithm};
pub use limits::{
    MAXIMUM_ADDRESSES, MAXIMUM_APPLICATIONS, MAXIMUM_ITEMS, MAXIMUM_NAMES, MAXIMUM_NETWORKS,
    MAXIMUM_PROGRAMS,
};
pub use marks::{MarkMask, REQID_BASE, class_of, reqid};
pub use mistake::ProtectionMistake;
pub use model::{
    Application, Deciding, Network, NetworkType, Peers, Protection, ProtectionItem, Traffic,
};
pub use names::{Answer, Names};
pub use program::{ProgramName, SYSTEM_FOLDERS};
pub use report::{ClassReport, PeerReport, PeerState, Report};
pub use resolving::{MAXIMUM_RESOLVER_PACKET, ResolverReply, ResolverRequest};
pub use tables::{Destination, Item, ProtectedService, Rules, Tables, Treatment, Verdict};
pub use warning::{ProtectionWarning, warnings};
