//! The daemons: whether they run and can do their work.

use usher_daemon::clock::unix_time;
use usher_daemon::control::{self, Status, StatusView, ask_daemon, ask_each};
use usher_daemon::role::Role;
use usher_local::requests::{self, ProtectionView};
use usher_local::roles::{self, OFFERS, PROTECTS, REACHES, ROLES};

use super::{Finding, Jobs};

/// How long a failure at another host is shown, in seconds.
const SHOWN: u64 = 3600;

/// The state of every daemon that a host may run.
pub fn all(jobs: &Jobs) -> Vec<Finding> {
    let states = ask_each(ROLES, &Status {});
    states
        .map(|(role, state)| daemon(role, state, jobs))
        .collect()
}

fn daemon(role: &Role, state: Result<StatusView, control::ControlError>, jobs: &Jobs) -> Finding {
    let mut finding = Finding {
        name: format!("daemon {}", role.name),
        required: role.required && jobs.has(role.duty),
        duty: Some(role.duty),
        needed_for: role.needed_for.into(),
        ..Finding::default()
    };
    match state {
        Ok(status) => {
            finding.works = status.troubles.is_empty();
            finding.detail = format!("runs, version {}", status.version);
            finding.troubles = status.troubles;
            finding.numbers = status.numbers;
        }
        Err(error) => finding.detail = error.to_string(),
    }
    finding
}

/// Users who sign by an ssh-agent; none if there are none, or the signer does not run.
pub fn agents() -> Option<Finding> {
    let mut agents = ask_daemon(roles::Signer, &requests::Agents {}).ok()?.agents;
    // A user may have several keys, for different purposes.
    agents.dedup_by(|one, other| one.user == other.user);
    let told: Vec<String> = agents
        .iter()
        .map(|agent| {
            if agent.lent {
                format!("{} lends one", agent.user)
            } else {
                format!("{} lends none (`usher agent`)", agent.user)
            }
        })
        .collect();
    (!told.is_empty()).then(|| {
        let outcome = (agents.iter().all(|agent| agent.lent), told.join(", "));
        Finding::optional(
            "ssh-agents",
            Some(REACHES),
            "signing for these users",
            outcome,
        )
    })
}

/// Services that cannot serve; none if all can, or the keeper does not run.
pub fn services() -> Option<Finding> {
    let troubles = ask_daemon(roles::Keeper, &requests::Troubles {})
        .ok()?
        .troubles;
    let told: Vec<String> = troubles
        .iter()
        .filter(|trouble| !trouble.over)
        .map(|trouble| {
            format!(
                "{}: {} failed start(s), {} connection(s) refused, the last for {}: {}",
                trouble.service,
                trouble.failed_starts,
                trouble.refused_connections,
                trouble.user,
                trouble.reason
            )
        })
        .collect();
    (!told.is_empty()).then(|| {
        let need = "serving the users of these services";
        Finding::optional("services", Some(OFFERS), need, (false, told.join("; ")))
    })
}

/// Services of other hosts whose program has failed for users of this host within the last hour; none if there
/// are none, or the signer does not run.
pub fn services_of_others() -> Option<Finding> {
    let failures = ask_daemon(roles::Signer, &requests::Failures {})
        .ok()?
        .failures;
    let from = unix_time().saturating_sub(SHOWN);
    let told: Vec<String> = failures
        .iter()
        .filter(|failure| failure.at >= from)
        .map(|failure| {
            format!(
                "{} of {} for {}: its program ended {} at once",
                failure.service, failure.host, failure.user, failure.ended
            )
        })
        .collect();
    (!told.is_empty()).then(|| {
        let outcome = (
            false,
            format!("{} (`usher who` there says more)", told.join("; ")),
        );
        let need = "users of this host to be served";
        Finding::optional("services of other hosts", Some(REACHES), need, outcome)
    })
}

/// Whether LSM programs see how governed programs use sockets; none if nothing is protected, or the protector
/// does not run. A kernel that runs LSM programs (`runs_lsm`) should run these as well.
pub fn calls_of_governed_programs(runs_lsm: bool) -> Option<Finding> {
    let view = ask_daemon(roles::Protector, &requests::Protection {}).ok()?;
    let is_loaded = view.spd_entries > 0;
    let outcome = match view.unseen_calls {
        None => (true, "LSM programs see them".to_owned()),
        Some(reason) => (
            false,
            format!(
                "the protector's LSM programs do not run ({reason}), so Usher does not see {}",
                ProtectionView::UNSEEN
            ),
        ),
    };
    let need = "holding governed programs to their protection whichever sockets they use";
    is_loaded.then(|| Finding {
        required: runs_lsm,
        ..Finding::optional("calls of governed programs", Some(PROTECTS), need, outcome)
    })
}
