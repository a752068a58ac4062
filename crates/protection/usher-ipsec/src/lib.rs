//! Puts the tables of protection ([`usher_protection::Tables`]) in force on this host.
//!
//! - The *monitor* ([`Monitor`], bpf/ipsec) marks the sockets of governed programs by the class of
//!   protection that their traffic is to have, and drops packets that do not have it.
//! - The *SPD* ([`Spd`]) turns marks into IPsec. Its entries do not change while connections come and
//!   go.
//! - Where the kernel takes netfilter programs, those of bpf/ipsec/services.bpf.c drop plaintext of
//!   protected services, even while the SPD lacks Usher's entries.
//! - *Sysctls* ([`Sysctls`]) let answers take the mark of the packet that they answer.
//!
//! [`Ipsec`] does all of it: [`Ipsec::probe`], [`Ipsec::open`], [`Ipsec::apply`],
//! [`Ipsec::counters`], [`Ipsec::close`]. [`release`] removes what a process that has ended left in
//! force. SAs are the task of `usher-ike`.
//!
//! docs/adr/0051-marks-and-spd.md has the reasons.
//!
//! Room: the BPF objects of `bpf/ipsec`, the SPD, and the sysctls that it names. Only the daemon that
//! owns protection uses it.
#![forbid(unsafe_code)]

mod error;
mod esp;
mod ipsec;
mod live;
mod marks;
mod monitor;
mod netlink;
mod patience;
mod plan;
mod programs;
mod release;
mod sad;
mod services;
mod shared;
mod spd;
mod stale;
mod sysctls;
mod table;
mod way;

pub use error::IpsecError;
pub use esp::probe_esp;
pub use ipsec::{Applied, Ipsec, Visit};
pub use live::{LivePage, LiveSocket, LiveTreatment, Unheld, UnheldReason};
pub use marks::{MarkMask, class_of, reqid};
pub use monitor::Settings;
pub use monitor::{Counters, Monitor, SWITCHED_OFF};
pub use netlink::{Event, Ours, Taken, Watcher};
pub use programs::{Reason, Refused};
pub use release::{Released, release};
pub use sad::{OutboundSa, Sa, Sad, Sas};
pub use services::ServiceCounters;
pub use spd::{Action, Entries, Entry, Selected, Spd, asks_strangers};
pub use sysctls::Sysctls;
