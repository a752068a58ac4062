//! Drives an unmodified charon (strongSwan 5.9.8 and later) over its VICI socket: it negotiates the
//! security associations that the policy asks for.
//!
//! [`Ike::start`] runs one task, which keeps charon's connections equal to the [`Configuration`] that it
//! was given last. There is one connection a peer and one child a class; charon installs no policies
//! and no traps. The task negotiates by itself: ahead of need, so that the first packet of a program
//! finds its SAs, and at once when the kernel asks ([`Ike::acquire`]).
//!
//! Every wait for charon has a limit. Every answer is bounded in size and in time. A charon
//! that is absent, stopped, hung or talks nonsense is an [`IkeError`] in [`Report::trouble`], and the
//! task connects again. SAs that are in force stay in force meanwhile: the kernel holds them.
//!
//! Room: charon's VICI socket, the files of the host's IKE keys. Only the daemon that owns protection
//! uses it.
//!
//! Source: strongSwan's `src/libcharon/plugins/vici/README.md` (version 5.9.8).
#![forbid(unsafe_code)]

mod charon;
mod configuration;
mod driver;
mod error;
mod explain;
mod key;
mod paths;
mod sas;
pub mod vici;

pub use configuration::{Configuration, Peer, PeerClass, SetMark};
pub use driver::{Acquire, Ike, KernelSad, Notice};
pub use error::IkeError;
pub use key::{IkeKey, KeyError};
pub use sas::{KernelSas, Placed};
pub use usher_protection::{
    ClassReport, IkeAlgorithm, IkePublicKey, PeerReport, PeerState, Report,
};
