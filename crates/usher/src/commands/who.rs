//! `usher who`: live sessions, connections and workers; those that have ended last.

use usher_local::clock::unix_time;
use usher_local::control::{Recent, RecentView, TroubleView, Who, WhoView, ask};
use usher_local::roles;

use crate::failure::Failure;
use crate::output::{Output, table};

/// Asks the keeper and prints.
///
/// # Errors
/// When the keeper does not answer.
pub fn run(output: &Output) -> Result<(), Failure> {
    let view = ask(roles::Keeper, &Who {})?;
    output.print(&view, || text(&view));
    Ok(())
}

/// Asks the keeper for the sessions that have ended last and prints them.
///
/// # Errors
/// When the keeper does not answer.
pub fn recent(output: &Output) -> Result<(), Failure> {
    let view = ask(roles::Keeper, &Recent {})?;
    output.print(&view, || recent_text(&view));
    Ok(())
}

fn recent_text(view: &RecentView) -> String {
    if view.ended.is_empty() {
        return "no session has ended\n".into();
    }
    let now = unix_time();
    let rows: Vec<Vec<String>> = view
        .ended
        .iter()
        .map(|ended| {
            vec![
                ended.user.to_string(),
                ended.host.to_string(),
                ended.service.to_string(),
                age(ended.ended.saturating_sub(ended.opened)),
                age(now.saturating_sub(ended.ended)),
                ended.session.clone(),
                format!("{}: {}", ended.reason, ended.text),
            ]
        })
        .collect();
    let heading = [
        "USER",
        "HOST",
        "SERVICE",
        "LASTED",
        "ENDED AGO",
        "SESSION",
        "REASON",
    ];
    table(&heading, &rows)
}

fn text(view: &WhoView) -> String {
    let mut text = match view.sessions.is_empty() {
        true => "no sessions\n".into(),
        false => sessions_text(view),
    };
    if !view.troubles.is_empty() {
        text.push('\n');
        text += &troubles_text(&view.troubles);
    }
    text
}

/// What has kept services from serving.
fn troubles_text(troubles: &[TroubleView]) -> String {
    let now = unix_time();
    let rows: Vec<Vec<String>> = troubles
        .iter()
        .map(|trouble| {
            vec![
                trouble.service.to_string(),
                trouble.failed_starts.to_string(),
                trouble.refused_connections.to_string(),
                if trouble.over { "yes" } else { "NO" }.into(),
                format!("{} ago", age(now.saturating_sub(trouble.at))),
                trouble.user.to_string(),
                trouble.reason.clone(),
            ]
        })
        .collect();
    let heading = [
        "SERVICE",
        "FAILED STARTS",
        "REFUSED",
        "SERVES SINCE",
        "LAST",
        "USER",
        "REASON",
    ];
    table(&heading, &rows)
}

fn sessions_text(view: &WhoView) -> String {
    let now = unix_time();
    let mut rows = Vec::new();
    for session in &view.sessions {
        rows.push(vec![
            session.user.to_string(),
            session.uid.to_string(),
            session.host.to_string(),
            session.service.to_string(),
            age(now.saturating_sub(session.opened)),
            age(session.expires.saturating_sub(now)),
            format!("{}/{}", session.used, session.chain_length),
            session.tokens.map_or("-".into(), |tokens| {
                format!("{tokens}/{}", session.chain_length)
            }),
            session.key.clone(),
            session.session.clone(),
        ]);
    }
    let heading = [
        "USER", "UID", "HOST", "SERVICE", "SINCE", "ENDS IN", "USED", "TOKENS", "KEY", "SESSION",
    ];
    let mut text = table(&heading, &rows);
    let connections: Vec<Vec<String>> = view
        .sessions
        .iter()
        .flat_map(|session| {
            session.connections.iter().map(|connection| {
                vec![
                    session.user.to_string(),
                    session.service.to_string(),
                    connection.client.clone(),
                    connection.server.clone(),
                    connection.state.clone(),
                    connection
                        .seconds
                        .map_or("-".into(), |seconds| age(seconds as u64)),
                ]
            })
        })
        .collect();
    if !connections.is_empty() {
        text.push('\n');
        text += &table(
            &["USER", "SERVICE", "CLIENT", "SERVER", "CONNECTION", "SINCE"],
            &connections,
        );
    }
    let workers: Vec<Vec<String>> = view
        .workers
        .iter()
        .map(|worker| {
            vec![
                worker.user.to_string(),
                worker.service.to_string(),
                worker.pid.to_string(),
                age(worker.seconds as u64),
            ]
        })
        .collect();
    if !workers.is_empty() {
        text.push('\n');
        text += &table(&["USER", "SERVICE", "WORKER", "SINCE"], &workers);
    }
    text
}

/// A length of time as people say it.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::age;

    #[test]
    fn ages_read_well() {
        let ages = [0, 59, 60, 3599, 3600, 86399, 90000].map(age);
        assert_eq!(ages, ["0s", "59s", "1m", "59m", "1h00m", "23h59m", "1d01h"]);
    }
}
