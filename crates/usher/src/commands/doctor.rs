//! `usher doctor`: what this kernel and this host can and cannot do, tried and not guessed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;
use usher_local::control::{Answer, ControlError, Request, ask};
use usher_local::{applied, paths};

use super::groups;
use crate::failure::Failure;
use crate::output::Output;

/// One finding.
#[derive(Debug, Serialize)]
struct Finding {
    name: String,
    works: bool,
    /// Whether the main job fails without it.
    required: bool,
    detail: String,
    needed_for: String,
}

/// Tries and prints.
///
/// # Errors
/// [`Failure::Unhealthy`] when something that the main job needs does not work.
pub fn run(output: &Output) -> Result<(), Failure> {
    let mut findings: Vec<Finding> = usher_kernel::probe::all()
        .into_iter()
        .map(|probe| Finding {
            name: probe.name.into(),
            works: probe.works,
            required: probe.required,
            detail: probe.detail,
            needed_for: probe.needed_for.into(),
        })
        .collect();
    findings.push(host_key());
    findings.push(configuration());
    let (offers, connects) = jobs();
    findings.extend(["keeper", "verifier", "recorder"].map(|role| daemon(role, offers)));
    findings.extend(["signer", "courier"].map(|role| daemon(role, connects)));
    findings.push(daemon("proxy", false));
    findings.extend(agents());
    findings.extend(troubles());
    findings.extend(groups());
    output.print(&findings, || text(&findings));
    if findings
        .iter()
        .any(|finding| finding.required && !finding.works)
    {
        return Err(Failure::Unhealthy);
    }
    Ok(())
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match (finding.works, finding.required) {
            (true, _) => "ok     ",
            (false, true) => "MISSING",
            (false, false) => "absent ",
        };
        text += &format!("{mark}  {}: {}\n", finding.name, finding.detail);
        if !finding.works {
            text += &format!("         needed for: {}\n", finding.needed_for);
        }
    }
    text
}

fn host_key() -> Finding {
    let (works, detail) = match std::fs::metadata(paths::HOST_KEY) {
        Ok(metadata) if metadata.permissions().mode() & 0o077 == 0 => (
            true,
            format!("{} is readable by root only", paths::HOST_KEY),
        ),
        Ok(_) => (
            false,
            format!("{} is open to others; chmod 600 it", paths::HOST_KEY),
        ),
        Err(error) => (
            false,
            format!("{}: {error}; run `usher init`", paths::HOST_KEY),
        ),
    };
    Finding {
        name: "host key".into(),
        works,
        required: true,
        detail,
        needed_for: "other hosts to know this one".into(),
    }
}

fn configuration() -> Finding {
    let (works, detail) = match applied::Applied::load(Path::new(paths::APPLIED)) {
        Ok(Some(applied)) => match applied.check() {
            Ok(_) => (
                true,
                format!("configuration {} is in force", applied.generation),
            ),
            Err(error) => (false, error.to_string()),
        },
        Ok(None) => (false, "none is in force; run `usher policy apply`".into()),
        Err(error) => (false, error.to_string()),
    };
    Finding {
        name: "configuration".into(),
        works,
        required: true,
        detail,
        needed_for: "anything to be permitted".into(),
    }
}

/// Whether the policy in force offers services here, and whether it lets users reach others.
fn jobs() -> (bool, bool) {
    // One that cannot be read has been told.
    let in_force = applied::Applied::load(Path::new(paths::APPLIED));
    let checked = in_force
        .ok()
        .flatten()
        .and_then(|in_force| in_force.check().ok());
    checked.map_or((false, false), |checked| {
        let policy = checked.policy;
        (!policy.services.is_empty(), !policy.clients.is_empty())
    })
}

/// Users who sign by an ssh-agent; nothing where there are none, or the signer does not run.
fn agents() -> Option<Finding> {
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
        needed_for: "these users to be signed for".into(),
    })
}

/// Services that do not serve; nothing where all do, or the keeper does not run.
fn troubles() -> Option<Finding> {
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
        works: false,
        required: false,
        detail: told.join("; "),
        needed_for: "users of these services to be served".into(),
    })
}

/// Whether the groups in force are as they were when the policy was applied; nothing where it names
/// none.
fn groups() -> Option<Finding> {
    // One that cannot be read has been told.
    let in_force = applied::Applied::load(Path::new(paths::APPLIED)).ok()??;
    let changed: Vec<String> = in_force
        .groups
        .iter()
        .filter_map(
            |(name, accounts)| match groups::accounts(name, Some(accounts)) {
                Ok(now) if now == *accounts => None,
                Ok(now) => {
                    let come = now
                        .difference(accounts)
                        .map(|account| format!("+{account}"));
                    let gone = accounts
                        .difference(&now)
                        .map(|account| format!("-{account}"));
                    let accounts: Vec<String> = come.chain(gone).take(8).collect();
                    Some(format!(
                        "{name} has changed ({}): run `usher policy apply`",
                        accounts.join(", ")
                    ))
                }
                Err(reason) => Some(format!("{name}: {reason}")),
            },
        )
        .collect();
    (!in_force.groups.is_empty()).then(|| Finding {
        name: "groups".into(),
        works: changed.is_empty(),
        required: false,
        detail: match changed.as_slice() {
            [] => format!(
                "{} in force, as the name service has them",
                in_force.groups.len()
            ),
            changed => changed.join("; "),
        },
        needed_for: "the policy in force to follow its groups".into(),
    })
}

fn daemon(role: &str, required: bool) -> Finding {
    let (works, detail) = match ask(role, &Request::Status) {
        Ok(Answer::Status(status)) => {
            let numbers: Vec<String> = status
                .numbers
                .iter()
                .map(|(name, number)| format!("{name} {number}"))
                .collect();
            (
                true,
                if numbers.is_empty() {
                    format!("runs, version {}", status.version)
                } else {
                    format!("runs, version {}; {}", status.version, numbers.join(", "))
                },
            )
        }
        Ok(_) => (false, "gives an answer that is not understood".into()),
        Err(error @ ControlError::NotRunning { .. }) => (false, error.to_string()),
        Err(error) => (false, error.to_string()),
    };
    Finding {
        name: format!("daemon {role}"),
        works,
        required,
        detail,
        needed_for: match role {
            "keeper" | "verifier" | "recorder" => "offering services to users of other hosts",
            "signer" | "courier" => "users of this host to reach services of other hosts",
            _ => "unmodified programs of this host to reach services of other hosts",
        }
        .into(),
    }
}
