//! Sessions that a configuration ends or would end, for people.

use std::collections::BTreeSet;

use usher_local::requests::EndingView;

use crate::output::first;

/// Limit of sessions that are shown, and of connections of each; the rest is counted.
const SESSIONS: usize = 50;
const CONNECTIONS: usize = 10;
/// Limit of users of sessions without a connection that are named.
const USERS: usize = 10;

/// One line for each session that has connections, with its reason, and one for each connection.
/// Sessions without connections are only counted: their end interrupts nothing.
pub fn ending_lines(verb: &str, ending: &[EndingView]) -> String {
    let mut text = String::new();
    let (busy, idle): (Vec<_>, Vec<_>) = ending
        .iter()
        .partition(|ending| !ending.session.connections.is_empty());
    for EndingView {
        session,
        text: reason,
        ..
    } in busy.iter().take(SESSIONS)
    {
        let connections = &session.connections;
        let (user, host, service) = (&session.user, &session.host, &session.service);
        let number = connections.len();
        text +=
            &format!("{verb}: {user} from {host} at {service}, {number} connection(s): {reason}\n");
        for connection in connections.iter().take(CONNECTIONS) {
            text += &format!("    {} to {}\n", connection.client, connection.server);
        }
        if number > CONNECTIONS {
            text += &format!("    and {} more\n", number - CONNECTIONS);
        }
    }
    if let Some(rest @ [_, ..]) = busy.get(SESSIONS..) {
        let connections: usize = rest.iter().map(|left| left.session.connections.len()).sum();
        text += &format!(
            "{verb}: {} more session(s) with {connections} connection(s); --json lists all\n",
            rest.len()
        );
    }
    if !idle.is_empty() {
        let users: BTreeSet<&str> = idle.iter().map(|idle| idle.session.user.as_ref()).collect();
        let users: Vec<&str> = users.into_iter().collect();
        text += &format!(
            "{verb}: {} session(s) without a connection, of {}\n",
            idle.len(),
            first(&users, USERS)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use usher_local::requests::{ConnectionView, SessionView};

    use super::*;

    fn ending(connections: usize) -> EndingView {
        let connection = |number: usize| ConnectionView {
            client: format!("192.0.2.1:{number}"),
            server: "192.0.2.2:143".into(),
            state: "established".into(),
            seconds: None,
        };
        EndingView {
            session: SessionView {
                session: "00".into(),
                user: "alice".parse().unwrap(),
                host: "laptop".parse().unwrap(),
                service: "imap".parse().unwrap(),
                uid: 1001,
                key: String::new(),
                certificate: None,
                opened: 0,
                expires: 0,
                used: 0,
                tokens: None,
                chain_length: 0,
                connections: (1..=connections).map(connection).collect(),
            },
            reason: "disabled_user".into(),
            text: "she left".into(),
        }
    }

    #[test]
    fn each_session_is_told_with_its_connections_and_its_reason() {
        assert_eq!(ending_lines("ended", &[]), "");
        assert_eq!(
            ending_lines("ended", &[ending(2), ending(0)]),
            "ended: alice from laptop at imap, 2 connection(s): she left\n\
             \x20   192.0.2.1:1 to 192.0.2.2:143\n\
             \x20   192.0.2.1:2 to 192.0.2.2:143\n\
             ended: 1 session(s) without a connection, of alice\n"
        );
        assert_eq!(
            ending_lines("would end", &[ending(0), ending(0)]),
            "would end: 2 session(s) without a connection, of alice\n"
        );
    }

    #[test]
    fn what_is_too_long_is_counted() {
        let text = ending_lines("ended", &[ending(CONNECTIONS + 3)]);
        assert_eq!(text.lines().count(), 1 + CONNECTIONS + 1, "{text}");
        assert!(text.ends_with("    and 3 more\n"), "{text}");
        let all = vec![ending(1); SESSIONS + 2];
        let text = ending_lines("would end", &all[..SESSIONS]);
        assert_eq!(text.lines().count(), 2 * SESSIONS);
        assert!(!text.contains("more"), "{text}");
        let text = ending_lines("would end", &all);
        assert_eq!(text.lines().count(), 2 * SESSIONS + 1);
        assert!(
            text.contains("would end: 2 more session(s) with 2 connection(s);"),
            "{text}"
        );
    }
}
