//! `usher who`: live sessions, connections and workers, and failures of services, here and at other hosts; or
//! the sessions that ended last; or what comes and goes.

mod watch;

use serde::Serialize;
use usher_base::{HostName, ServiceName, UserName};
use usher_daemon::clock::unix_time;
use usher_daemon::control::ask_daemon;
use usher_local::requests::{FailureView, Failures, Recent, RecentView, Who, WhoView};
use usher_local::roles;

use crate::failure::Failure;
use crate::output::{Output, or_dash, row, table};

pub use watch::watch;

/// Options of `usher who` that choose what is printed.
#[derive(Debug, clap::Args)]
pub struct Filter {
    /// Only of this user
    #[arg(long, value_name = "NAME")]
    user: Option<UserName>,
    /// Only from this client host, or failures at this host; workers belong to no host
    #[arg(long, value_name = "NAME")]
    host: Option<HostName>,
    /// Only at this service
    #[arg(long, value_name = "NAME")]
    service: Option<ServiceName>,
}

impl Filter {
    fn has(&self, user: &UserName, host: Option<&HostName>, service: &ServiceName) -> bool {
        self.user.as_ref().is_none_or(|wanted| wanted == user)
            && self.host.as_ref().is_none_or(|wanted| Some(wanted) == host)
            && self.service.as_ref().is_none_or(|wanted| wanted == service)
    }

    fn is_empty(&self) -> bool {
        self.user.is_none() && self.host.is_none() && self.service.is_none()
    }

    fn of_live(&self, view: &mut WhoView) {
        view.sessions
            .retain(|one| self.has(&one.user, Some(&one.host), &one.service));
        view.workers
            .retain(|one| self.has(&one.user, None, &one.service));
        view.troubles
            .retain(|one| self.has(&one.user, None, &one.service));
    }

    fn of_failures(&self, failures: &mut Vec<FailureView>) {
        failures.retain(|one| self.has(&one.user, Some(&one.host), &one.service));
    }

    fn of_recent(&self, view: &mut RecentView) {
        view.ended
            .retain(|one| self.has(&one.user, Some(&one.host), &one.service));
    }
}

/// The keeper's answer about this host's services, and the signer's about services of other hosts.
#[derive(Serialize)]
struct Both {
    #[serde(flatten)]
    live: Option<WhoView>,
    /// Services of other hosts whose program has failed at once for users of this host.
    failures: Vec<FailureView>,
}

/// Prints what is live.
///
/// # Errors
/// When the keeper does not answer. Failures at other hosts are printed nevertheless.
pub fn run(output: &Output, filter: &Filter) -> Result<(), Failure> {
    // A host that offers services only has no signer.
    let of_others = ask_daemon(roles::Signer, &Failures {}).unwrap_or_default();
    let mut failures = of_others.failures;
    filter.of_failures(&mut failures);
    let live = ask_daemon(roles::Keeper, &Who {}).map(|mut view| {
        filter.of_live(&mut view);
        view
    });
    let (live, failed) = match live {
        Ok(live) => (Some(live), None),
        Err(error) => (None, Some(error)),
    };
    let view = Both { live, failures };
    if view.live.is_some() || !view.failures.is_empty() {
        // JSON of `usher who`: [`Both`].
        output.print(&view, || {
            let live = view.live.as_ref().map(who_text);
            let tables = live.into_iter().chain([failures_text(&view.failures)]);
            let tables: Vec<String> = tables.filter(|table| !table.is_empty()).collect();
            tables.join("\n")
        });
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Prints the sessions that ended last.
pub fn recent(output: &Output, filter: &Filter) -> Result<(), Failure> {
    let mut view = ask_daemon(roles::Keeper, &Recent {})?;
    filter.of_recent(&mut view);
    // JSON of `usher who --recent`: [`RecentView`].
    output.print(&view, || recent_text(&view));
    Ok(())
}

fn recent_text(view: &RecentView) -> String {
    if view.ended.is_empty() {
        return "no session has ended\n".into();
    }
    let now = unix_time();
    let rows = view.ended.iter().map(|ended| {
        row![
            ended.user,
            ended.host,
            ended.service,
            age(ended.ended.saturating_sub(ended.opened)),
            age(now.saturating_sub(ended.ended)),
            ended.session,
            format!("{}: {}", ended.reason, ended.text),
        ]
    });
    let heading = [
        "USER",
        "HOST",
        "SERVICE",
        "LASTED",
        "ENDED AGO",
        "SESSION",
        "REASON",
    ];
    table(heading, rows)
}

fn who_text(view: &WhoView) -> String {
    let mut tables = if view.sessions.is_empty() {
        vec!["no sessions\n".to_owned()]
    } else {
        vec![
            sessions_text(view),
            connections_text(view),
            workers_text(view),
        ]
    };
    tables.push(troubles_text(view));
    tables.retain(|table| !table.is_empty());
    tables.join("\n")
}

fn sessions_text(view: &WhoView) -> String {
    let now = unix_time();
    let rows = view.sessions.iter().map(|session| {
        let of_chain = |used| format!("{used}/{}", session.chain_length);
        row![
            session.user,
            session.uid,
            session.host,
            session.service,
            age(now.saturating_sub(session.opened)),
            age(session.expires.saturating_sub(now)),
            of_chain(session.used),
            or_dash(session.tokens.map(of_chain)),
            session.key,
            session.session,
        ]
    });
    let heading = [
        "USER", "UID", "HOST", "SERVICE", "SINCE", "ENDS IN", "USED", "TOKENS", "KEY", "SESSION",
    ];
    table(heading, rows)
}

fn connections_text(view: &WhoView) -> String {
    let rows = view.sessions.iter().flat_map(|session| {
        session.connections.iter().map(|connection| {
            row![
                session.user,
                session.service,
                connection.client,
                connection.server,
                connection.state,
                or_dash(connection.seconds.map(|seconds| age(seconds as u64))),
            ]
        })
    });
    let heading = ["USER", "SERVICE", "CLIENT", "SERVER", "CONNECTION", "SINCE"];
    table(heading, rows)
}

fn workers_text(view: &WhoView) -> String {
    let rows = view.workers.iter().map(|worker| {
        row![
            worker.user,
            worker.service,
            worker.pid,
            age(worker.seconds as u64)
        ]
    });
    table(["USER", "SERVICE", "WORKER", "SINCE"], rows)
}

/// The services that could not serve.
fn troubles_text(view: &WhoView) -> String {
    let now = unix_time();
    let rows = view.troubles.iter().map(|trouble| {
        row![
            trouble.service,
            trouble.failed_starts,
            trouble.refused_connections,
            if trouble.over { "yes" } else { "NO" },
            format!("{} ago", age(now.saturating_sub(trouble.at))),
            trouble.user,
            trouble.reason,
        ]
    });
    let heading = [
        "SERVICE",
        "FAILED STARTS",
        "REFUSED",
        "SERVES SINCE",
        "LAST",
        "USER",
        "REASON",
    ];
    table(heading, rows)
}

/// The services of other hosts whose program has failed for users of this host.
fn failures_text(failures: &[FailureView]) -> String {
    let now = unix_time();
    let rows = failures.iter().map(|failure| {
        row![
            failure.user,
            failure.host,
            failure.service,
            format!("{} ago", age(now.saturating_sub(failure.at))),
            format!("its program ended {} at once", failure.ended),
        ]
    });
    table(["USER", "AT HOST", "SERVICE", "LAST", "NOT SERVED"], rows)
}

/// A duration, for people.
pub(super) fn age(seconds: u64) -> String {
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
