//! The parts that Usher's processes on one host have in common, whatever system they belong to.
//!
//! * [`packet`]: `SOCK_SEQPACKET` sockets that carry descriptors and name the peer;
//!   [`packet_async`] is the same for tokio.
//! * [`role`]: what a role is; a system declares its roles by [`roles!`].
//! * [`control`]: root's requests to the daemons, and their answers; [`control_server`]: the daemons'
//!   side of it, on tokio, and the numbers for the account that watches the host. A system declares
//!   its requests by [`requests!`].
//! * [`messages`]: the daemons' log; [`events`](mod@events): their ids in the journal; [`watchdog`]: the sign of
//!   life for the service manager; [`probe`]: features of the kernel that they find.
//! * [`quota`]: places of which no user can take all.
//! * [`files`]: files that are replaced atomically; [`lock_file`]: files for locks; [`clock`]: the time
//!   for expiry.
//!
//! Room: local sockets, standard error, and files that its callers name. The daemons, the command
//! line and libusher use it.
#![forbid(unsafe_code)]

pub mod clock;
#[cfg(feature = "tokio")]
pub mod control;
#[cfg(feature = "tokio")]
pub mod control_server;
pub mod events;
pub mod files;
pub mod lock_file;
#[cfg(feature = "tokio")]
pub mod messages;
#[cfg(feature = "tokio")]
mod numbers;
pub mod packet;
#[cfg(feature = "tokio")]
pub mod packet_async;
pub mod probe;
#[cfg(feature = "tokio")]
pub mod quota;
#[cfg(feature = "tokio")]
pub mod role;
#[cfg(feature = "tokio")]
pub mod watchdog;
