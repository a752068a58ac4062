//! The events for which administrators watch. Each has an id, which is `MESSAGE_ID=` in the journal;
//! usherd(8), MESSAGES, describes them. The name of a message's tracing event, `tracing::info!(name:
//! events::SESSION_OPENED, ...)`, says which event a message is. Its text, and its target, by which
//! `USHER_LOG` selects, do not.

macro_rules! events {
    ($($(#[$about:meta])+ $constant:ident = $name:literal, $id:literal;)+) => {
        $($(#[$about])+ pub const $constant: &str = $name;)+

        /// All events, each with its id. An id stays as it is: administrators have written it down.
        const ALL: &[(&str, &str)] = &[$(($name, $id)),+];
    };
}

events! {
    /// A daemon is ready.
    DAEMON_READY = "daemon_ready", "f91dc947e9f4a68aab7cb46a4450f6c6";
    /// A daemon is connected to another one that it needs.
    DAEMON_CONNECTED = "daemon_connected", "ba2ba09e626b7e463049ab2ab742bc70";
    /// Another daemon has gone.
    DAEMON_GONE = "daemon_gone", "6c33c3a789b1fa32cafacb46e7fd792b";
    /// The hosts' control channel is open.
    CHANNEL_OPEN = "channel_open", "01a92994a98de345f747f5a71b17fa00";
    /// A control channel has ended.
    CHANNEL_LOST = "channel_lost", "4b28542dfd8f27ca4403820e91f46bbc";
    /// A configuration has come into force.
    CONFIGURATION_IN_FORCE = "configuration_in_force", "ecb2cee90c3701db83112c76d7b0fd0f";
    /// The stored configuration is not in force.
    CONFIGURATION_REFUSED = "configuration_refused", "ebf6d411b61c175628432ecd7ff87b12";
    /// A session is open.
    SESSION_OPENED = "session_opened", "d9cc7ea4ecf4c5743a6b1d3a44bfe351";
    /// A session has ended.
    SESSION_ENDED = "session_ended", "77a559c65c208f7ee4890d8c38fbd887";
    /// A session or connection was refused.
    SESSION_REFUSED = "session_refused", "57168470b3ba61dffddbe8c74002ff29";
    /// A control connection of another host was refused.
    HOST_REFUSED = "host_refused", "a1039549649ea4757d975fdd05a608f2";
    /// A local process was refused.
    PROCESS_REFUSED = "process_refused", "dd407cb7642ca47e97745c7b728d1bf5";
    /// Root has disabled a user.
    USER_DISABLED = "user_disabled", "2736ae9d6a4c71e85b648346d40d7845";
    /// PAM does not let an account be served.
    ACCOUNT_REFUSED = "account_refused", "ba50f5abeb126424ed1df3f180283b80";
    /// The account of a user with sessions is gone.
    ACCOUNT_GONE = "account_gone", "4ab8aa5f2d35addf23047f47f5fa7f63";
    /// A user's key or certificate cannot be used.
    KEY_REFUSED = "key_refused", "efb209e9645e5962a26505860b4816a7";
    /// A worker runs as its user.
    WORKER_STARTED = "worker_started", "26d49636fcfb6b25984d9eaa9259e521";
    /// A worker has ended.
    WORKER_ENDED = "worker_ended", "c8d95992fcdef61ca4a4dd94f5409e5b";
    /// A worker cannot be started, or has ended at once.
    WORKER_FAILED = "worker_failed", "c469474e2896d649280b58a07b993375";
    /// The signed log cannot be written.
    RECORD_FAILED = "record_failed", "e7c4837eb3463c6cfa2eab512b264cf1";
    /// Packets or calls were refused for lack of protection.
    PROTECTION_REFUSED = "protection_refused", "5979c627d616df7d5ee313c6aaa1a6af";
    /// A peer cannot be held to its protection.
    PEER_NOT_HELD = "peer_not_held", "5abe0329382cb1bd5fb9897dfb53fef9";
    /// A module has come into force.
    MODULE_IN_FORCE = "module_in_force", "ee769bff593e36ffa80fc434e6b0a6e3";
    /// A module is no longer in force.
    MODULE_UNLOADED = "module_unloaded", "0854b153763f823de203e789029ef60b";
    /// A module has refused something.
    MODULE_REFUSED = "module_refused", "7bc202c3dd656d423da7929b34f079b5";
    /// A module has lowered a process.
    PROCESS_LOWERED = "process_lowered", "a1a3c72f3562f70509a3e0eca264b2e1";
    /// Somebody has changed what Usher has put into the kernel.
    TAMPERED = "tampered", "254ab5dfdfec2b1c0f8568a5aa2cc42b";
    /// Lines were left out for the quota.
    LINES_LEFT_OUT = "lines_left_out", "965f676c9274993ffc39a4eb0446dfe7";
}

/// The id of the event with this name, 128 random bits; none for other messages.
#[must_use]
pub fn message_id(name: &str) -> Option<&'static str> {
    let event = ALL.iter().find(|(other, _)| *other == name);
    event.map(|(_, id)| *id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DOCUMENT: &str = include_str!("../../../../docs/man/usherd.8.md");

    #[test]
    fn each_event_has_an_id_of_its_own() {
        let ids: BTreeSet<&str> = ALL.iter().map(|(_, id)| *id).collect();
        let names: BTreeSet<&str> = ALL.iter().map(|(name, _)| *name).collect();
        assert_eq!((ids.len(), names.len()), (ALL.len(), ALL.len()));
        for id in ids {
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            assert!(id.len() == 32 && id.bytes().all(is_digit), "{id}");
        }
        assert_eq!(message_id("event src/lib.rs:1"), None);
    }

    /// Ids in a text: words of 32 letters and digits.
    fn ids(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.filter(|word| word.len() == 32)
    }

    #[test]
    fn the_manual_has_each_event_with_its_id() {
        for (name, id) in ALL {
            let row = format!("| *{name}* | {id} | ");
            assert!(DOCUMENT.contains(&row), "{row}");
        }
        // Every id in the document, also in an example, is that of an event.
        for id in ids(DOCUMENT) {
            assert!(ALL.iter().any(|(_, other)| *other == id), "{id}");
        }
    }
}
