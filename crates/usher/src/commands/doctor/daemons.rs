//! The daemons: whether they run, and what keeps them from doing their part.

use usher_local::control::{Answer, Request, ask};

use super::{Finding, Jobs, Role};

/// All daemons that a host may run.
pub fn all(jobs: &Jobs) -> Vec<Finding> {
    let of = |role, names: &'static [&'static str]| {
        let required = jobs.has(role);
        names.iter().map(move |name| daemon(name, role, required))
    };
    of(Role::Offers, &["keeper", "verifier", "recorder"])
        .chain(of(Role::Reaches, &["signer", "courier"]))
        .chain([daemon("proxy", Role::Reaches, false)])
        .collect()
}

fn daemon(name: &str, role: Role, required: bool) -> Finding {
    let mut finding = Finding {
        name: format!("daemon {name}"),
        required,
        role: Some(role),
        needed_for: match (role, name) {
            (_, "proxy") => "unmodified programs of this host to reach services of other hosts",
            (Role::Offers, _) => "offering services to users of other hosts",
            (Role::Reaches, _) => "users of this host to reach services of other hosts",
        }
        .into(),
        ..Finding::default()
    };
    match ask(name, &Request::Status) {
        Ok(Answer::Status(status)) => {
            finding.works = status.troubles.is_empty();
            finding.detail = format!("runs, version {}", status.version);
            finding.troubles = status.troubles;
            finding.numbers = status.numbers;
        }
        Ok(_) => finding.detail = "gives an answer that is not understood".into(),
        Err(error) => finding.detail = error.to_string(),
    }
    finding
}

/// Users who sign by an ssh-agent; nothing where there are none, or the signer does not run.
pub fn agents() -> Option<Finding> {
    let Ok(Answer::Agents { mut agents }) = ask("signer", &Request::Who) else {
        return None;
    };
    // More than one where different keys are for different things.
    agents.dedup_by(|one, other| one.user == other.user);
    let told: Vec<String> = agents
        .iter()
        .map(|agent| match agent.lent {
            true => format!("{}'s is lent", agent.user),
            false => format!("{}'s is not lent (`usher agent`)", agent.user),
        })
        .collect();
    (!told.is_empty()).then(|| Finding {
        name: "ssh-agents".into(),
        works: agents.iter().all(|agent| agent.lent),
        required: false,
        detail: told.join(", "),
        role: Some(Role::Reaches),
        needed_for: "these users to be signed for".into(),
        ..Finding::default()
    })
}

/// Services that do not serve; nothing where all do, or the keeper does not run.
pub fn services() -> Option<Finding> {
    let Ok(Answer::Troubles { troubles }) = ask("keeper", &Request::Troubles) else {
        return None;
    };
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
    (!told.is_empty()).then(|| Finding {
        name: "services".into(),
        detail: told.join("; "),
        role: Some(Role::Offers),
        needed_for: "users of these services to be served".into(),
        ..Finding::default()
    })
}
