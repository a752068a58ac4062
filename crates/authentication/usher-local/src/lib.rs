//! The parts that authentication's processes on one host share.
//!
//! * [`paths`]: paths of files and sockets.
//! * [`roles`]: the daemons, one line of a table each; [`requests`]: the command line's requests to
//!   them, and their answers.
//! * [`configuration`]: the configuration in force in a daemon; [`following`]: a daemon
//!   looks by its own clock whether another one is stored.
//! * [`signing_key`]: the users' signing keys.
//! * [`applied`]: the configuration in force, one file that is replaced atomically; [`checked`]: the
//!   same after all checks; `collect`: makes it from the administrator's files; [`reading`]: reads
//!   files; [`error`]: faults of a configuration.
//! * [`includes`]: the files of a policy, and those that they include; [`copy`]: copies of hosts'
//!   configurations, whose links lead nowhere else; [`writers`]: other accounts that may write files.
//! * [`keys`]: the public keys that identify users; [`key_options`]: their options; `principals`:
//!   admission by the principals of certificates.
//!
//! Room: files below /etc/usher and /var/lib/usher. The command line writes them; daemons read
//! those that their sandbox permits.
#![forbid(unsafe_code)]

pub mod applied;
pub mod checked;
mod collect;
#[cfg(feature = "daemons")]
pub mod configuration;
pub mod copy;
pub mod error;
#[cfg(feature = "daemons")]
pub mod following;
pub mod includes;
pub mod key_options;
pub mod keys;
pub mod paths;
mod principals;
pub mod reading;
#[cfg(feature = "daemons")]
pub mod requests;
#[cfg(feature = "daemons")]
pub mod roles;
pub mod signing_key;
pub mod writers;
