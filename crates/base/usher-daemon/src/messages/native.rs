//! The journal's native protocol: a message is one datagram with a line for each field ("Native Journal
//! Protocol" of systemd's documentation). The kernel tells the journal which process has sent it.
//!
//! Sending never waits, and nothing is queued: a message that the journal does not take at once goes to
//! standard error, as one line.

use std::fmt;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::Event;
use tracing::field::{Field, Visit};

use super::{priority, write_escaped};
use crate::events;

/// Where the journal listens.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// Limit of a field's value, in bytes; the rest is cut off.
const MOST_VALUE: usize = 512;

/// Limit of a message's text, in bytes. Longer texts go to standard error, where the journal splits them. A
/// datagram with a text of this length and all fields fits into a socket's buffer.
const MOST_TEXT: usize = 48 * 1024;

/// The fields of messages that become fields of the journal. A `claimed_user` is one whom another host only
/// names.
const FIELDS: [(&str, &str); 7] = [
    ("user", "USHER_USER"),
    ("claimed_user", "USHER_CLAIMED_USER"),
    ("uid", "USHER_UID"),
    ("host", "USHER_HOST"),
    ("service", "USHER_SERVICE"),
    ("session", "USHER_SESSION"),
    ("reason", "USHER_REASON"),
];

/// The way to the journal.
pub(super) struct Native {
    socket: UnixDatagram,
    /// Looked up for each message: a journal that was started again may listen on another socket.
    path: PathBuf,
    identifier: &'static str,
}

impl Native {
    /// # Errors
    /// When this process can make no socket.
    pub(super) fn open(path: &Path, identifier: &'static str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            identifier,
        })
    }

    /// Sends a message, whose text is one line. Returns whether the journal has taken it.
    pub(super) fn send(&self, event: &Event<'_>, text: &str) -> bool {
        if text.len() > MOST_TEXT {
            return false;
        }
        let datagram = self.datagram(event, text);
        let sent = self.socket.send_to(datagram.as_bytes(), &self.path);
        sent.is_ok_and(|sent| sent == datagram.len())
    }

    fn datagram(&self, event: &Event<'_>, text: &str) -> String {
        let metadata = event.metadata();
        // 3 is the facility `daemon` of syslog(3), as the journal sets it for what services write to standard
        // output and error.
        let mut datagram = Datagram(format!(
            "PRIORITY={}\nSYSLOG_FACILITY=3\nSYSLOG_IDENTIFIER={}\nMESSAGE={text}\n",
            priority(metadata.level()),
            self.identifier
        ));
        if let Some(id) = events::message_id(metadata.name()) {
            datagram.0.extend(["MESSAGE_ID=", id, "\n"]);
        }
        event.record(&mut datagram);
        datagram.0
    }
}

/// Lines `FIELD=value`.
struct Datagram(String);

impl Datagram {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let Some((_, name)) = FIELDS.iter().find(|(name, _)| *name == field.name()) else {
            return;
        };
        // Others choose parts of the value. Escaping removes the newlines that would begin another field.
        let mut escaped = String::new();
        if write_escaped(&mut escaped, &value.to_string()).is_ok() {
            let mut ends = (0..=MOST_VALUE).rev();
            let end = ends.find(|&end| escaped.is_char_boundary(end));
            escaped.truncate(end.unwrap_or_default());
            self.0.extend([name, "=", &escaped, "\n"]);
        }
    }
}

impl Visit for Datagram {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format_args!("{value:?}"));
    }
}
