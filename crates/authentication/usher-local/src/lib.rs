//! Code that Usher's processes on one host share.
//!
//! * [`paths`]: paths of files and sockets.
//! * [`packet`]: `SOCK_SEQPACKET` sockets that carry descriptors and name the peer;
//!   [`packet_async`] is the same for tokio.
//! * [`roles`]: the daemons, one line of a table each.
//! * [`control`]: the command line's requests to the daemons, and their answers; [`control_server`]:
//!   the daemons' side of it, on tokio; [`configuration`]: the configuration in force in a daemon;
//!   [`watchdog`]: the sign of life for the service manager.
//! * [`signing_key`]: the users' signing keys.
//! * [`applied`]: the configuration in force, one file that is replaced atomically; [`checked`]: the
//!   same after all checks; `collect`: makes it from the administrator's files; [`files`]: reads and
//!   replaces files; [`error`]: faults of a configuration.
//! * [`includes`]: the files of a policy, and those that they include; [`copy`]: copies of hosts'
//!   configurations, whose links lead nowhere else; [`writers`]: other accounts that may write files.
//! * [`lock_file`]: files for locks.
//! * [`messages`]: the daemons' log; [`probe`]: features of the kernel that they find.
//! * [`clock`]: the time for expiry.
//! * [`keys`]: the public keys that identify users; [`key_options`]: their options; `principals`:
//!   admission by the principals of certificates.
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
