//! What Usher's processes on one host share.
//!
//! * [`paths`]: where files and sockets are.
//! * [`packet`]: `SOCK_SEQPACKET` sockets that carry descriptors and say who the peer is;
//!   [`packet_async`] is the same for tokio.
//! * [`roles`]: the daemons, one line of a table each.
//! * [`control`]: the command line's requests to the daemons, and their answers; [`control_server`]:
//!   the daemons' side of it, on tokio; [`configuration`]: the configuration in force in a daemon;
//!   [`watchdog`]: the sign of life for the service manager.
//! * [`signing_key`]: with what a user signs.
//! * [`applied`]: the configuration that is in force, one file, replaced atomically; [`checked`]:
//!   what it says, after all checks; `collect`: how it is made of what an administrator has
//!   written; [`files`]: how files are read and replaced;
//!   [`error`]: what can be wrong with it.
//! * [`includes`]: the files of a policy, and those that they include; [`copy`]: copies of hosts'
//!   configurations, which are not left; [`writers`]: who else may write what is read.
//! * [`lock_file`]: files that are there to be locked.
//! * [`messages`]: what the daemons write; [`probe`]: what they find that the kernel can do.
//! * [`clock`]: the time by which things expire.
//! * [`keys`]: the public keys by which users are known; [`key_options`]: what is said of them;
//!   `principals`: whom services admit by them.
#![forbid(unsafe_code)]

pub mod applied;
pub mod checked;
pub mod clock;
mod collect;
#[cfg(feature = "tokio")]
pub mod configuration;
#[cfg(feature = "tokio")]
pub mod control;
#[cfg(feature = "tokio")]
pub mod control_server;
pub mod copy;
pub mod error;
pub mod files;
pub mod includes;
pub mod key_options;
pub mod keys;
pub mod lock_file;
#[cfg(feature = "tokio")]
pub mod messages;
pub mod packet;
#[cfg(feature = "tokio")]
pub mod packet_async;
pub mod paths;
mod principals;
pub mod probe;
#[cfg(feature = "tokio")]
pub mod roles;
pub mod signing_key;
#[cfg(feature = "tokio")]
pub mod watchdog;
pub mod writers;
