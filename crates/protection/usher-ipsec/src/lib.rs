//! Puts the tables of protection ([`usher_protection::Tables`]) in force on this host.
//!
//! - The *monitor* ([`Monitor`], bpf/ipsec) marks the sockets of governed programs by the class of
//!   protection that their traffic is to have, and drops packets that do not have it.
//! - The *SPD* ([`Spd`]) turns marks into IPsec. Its entries do not change while connections come and
//!   go.
//! - *Sysctls* ([`Sysctls`]) let answers take the mark of the packet that they answer.
//!
//! [`Ipsec`] does all three: [`Ipsec::probe`], [`Ipsec::open`], [`Ipsec::apply`],
//! [`Ipsec::counters`], [`Ipsec::close`]. SAs are the business of `usher-ike`.
//!
//! docs/adr/0051-marks-and-spd.md has the reasons.
//!
//! Room: the BPF objects of `bpf/ipsec`, the SPD, and the sysctls that it names. Only the daemon that
//! owns protection uses it.
#![forbid(unsafe_code)]

mod error;
mod ipsec;
mod live;
mod marks;
mod monitor;
mod netlink;
mod plan;
mod programs;
mod shared;
mod spd;
mod sysctls;
mod way;

pub use error::IpsecError;
pub use ipsec::{Applied, Ipsec, Settings};
pub use live::{LiveSocket, LiveTreatment};
pub use marks::{DEFAULT_MASK, MarkMask, REQID_BASE, reqid};
pub use monitor::{Counters, Monitor};
pub use netlink::{Event, Watcher};
pub use programs::{Reason, Refused};
pub use spd::{Action, Entries, Entry, Selected, Spd};
pub use sysctls::Sysctls;
