//! Failures in the conversation with charon.

use std::path::PathBuf;
use std::time::Duration;

use crate::vici::MessageError;

/// charon could not be asked, or did not do something.
#[derive(Debug, thiserror::Error)]
pub enum IkeError {
    /// Its socket is missing or refuses.
    #[error(
        "charon is not running: cannot connect to {path} ({source}); start strongSwan's service (Debian: \
             strongswan.service of charon-systemd)"
    )]
    Absent {
        /// Its VICI socket.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It was asked and said nothing in time.
    #[error(
        "charon does not answer \"{asked}\": waited {} s; restart strongSwan's service if it stays so",
        waited.as_secs()
    )]
    Silent {
        /// The command or event.
        asked: String,
        /// How long.
        waited: Duration,
    },
    /// The connection ended.
    #[error("charon ended the connection: it ends, or restarts")]
    Ended,
    /// The connection failed.
    #[error("the connection to charon failed: {0}")]
    Connection(#[from] std::io::Error),
    /// Its answer is not VICI.
    #[error("charon answered nonsense: {0}; look which program listens at its socket")]
    Nonsense(#[from] MessageError),
    /// It knows no such command or event.
    #[error("charon knows no \"{0}\": install strongSwan 5.9.8 or later")]
    Unknown(String),
    /// It did not carry a command out.
    #[error("charon refuses \"{command}\": {reason}")]
    Refused {
        /// The command.
        command: String,
        /// Its reason, in its words.
        reason: String,
    },
}

impl IkeError {
    /// Returns whether the connection can be used further.
    #[must_use]
    pub fn leaves_the_connection_usable(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Unknown(_))
    }
}
