//! `usher doctor`: tests what this kernel and this host can do.

mod daemons;
mod holes;
mod log;
mod policy;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;
use usher_daemon::role::Duty;
use usher_local::applied::Applied;
use usher_local::checked::Checked;
use usher_local::paths;
use usher_local::roles::{CONFINES, OFFERS, PROTECTS, REACHES};
use usher_policy::mac::UBNS;
use usher_policy::{Policy, joined};

use super::configuration::services_are_settings;
use crate::failure::Failure;
use crate::output::{Output, first};
use crate::probe::probe;

/// One finding.
#[derive(Debug, Default, Serialize)]
struct Finding {
    /// What was tried.
    name: String,
    /// Whether it works.
    works: bool,
    /// Whether Usher's work on this host fails without it.
    required: bool,
    /// The duty of a host that needs it; none: every host does.
    #[serde(rename = "role")]
    duty: Option<Duty>,
    /// The result, for people.
    detail: String,
    /// Reasons why a daemon cannot do its work.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    troubles: Vec<String>,
    /// A daemon's numbers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    numbers: BTreeMap<String, u64>,
    /// What it is needed for.
    needed_for: String,
}

impl Finding {
    /// A finding that every host needs: whether it works, and the detail.
    fn new(name: &str, needed_for: &str, (works, detail): (bool, String)) -> Self {
        Self {
            name: name.to_owned(),
            works,
            required: true,
            detail,
            needed_for: needed_for.to_owned(),
            ..Self::default()
        }
    }

    /// A finding on which Usher's work does not depend, for hosts with a duty or, if none, for all.
    fn optional(name: &str, duty: Option<Duty>, needed_for: &str, outcome: (bool, String)) -> Self {
        Self {
            required: false,
            duty,
            ..Self::new(name, needed_for, outcome)
        }
    }
}

/// The work of this host by the policy in force.
struct Jobs {
    /// The services that this host offers.
    offers: Vec<String>,
    /// The services of other hosts that this host's users reach.
    reaches: Vec<String>,
    /// The programs whose traffic is protected, and the services with `protection`.
    protects: Vec<String>,
    /// The modules for which the policy has settings.
    confines: Vec<String>,
}

fn protects(policy: &Policy) -> Vec<String> {
    let programs = policy.applications.iter().flat_map(|block| &block.programs);
    let demanding = policy.services.values();
    let demanding = demanding.filter(|service| service.protection.is_some());
    let reached = policy.client_services();
    let reached = reached.filter(|entry| entry.protection.is_some());
    programs
        .map(ToString::to_string)
        .chain(demanding.map(|service| service.name.to_string()))
        .chain(reached.map(|entry| format!("{} at {}", entry.service, entry.host)))
        .collect()
}

fn modules(policy: &Policy) -> Vec<String> {
    let blocks = policy.mac.iter();
    let mut modules: BTreeSet<String> = blocks.map(|block| block.module.to_string()).collect();
    if services_are_settings() {
        modules.insert(UBNS.to_owned());
    }
    modules.into_iter().collect()
}

impl Jobs {
    fn of(checked: Option<&Checked>) -> Self {
        let policy = checked.map(|checked| &checked.policy);
        let services = policy.into_iter().flat_map(|policy| policy.services.keys());
        let wanted = policy
            .into_iter()
            .flat_map(usher_policy::Policy::client_services);
        Self {
            offers: services.map(ToString::to_string).collect(),
            reaches: wanted
                .map(|entry| format!("{} at {}", entry.service, entry.host))
                .collect(),
            protects: policy.map(protects).unwrap_or_default(),
            confines: policy.map(modules).unwrap_or_default(),
        }
    }

    /// Whether this host has that duty.
    fn has(&self, duty: Duty) -> bool {
        !self.services(duty).is_empty()
    }

    fn services(&self, duty: Duty) -> &[String] {
        match duty {
            OFFERS => &self.offers,
            REACHES => &self.reaches,
            PROTECTS => &self.protects,
            CONFINES => &self.confines,
            _ => &[],
        }
    }

    /// Whether this host needs what the kernel lacks for a duty. A host without any duty may yet offer or reach
    /// services. It needs protection and modules only if its policy asks for them.
    fn may_need(&self, duty: Option<Duty>) -> bool {
        let has_none = ![OFFERS, REACHES, PROTECTS, CONFINES]
            .iter()
            .any(|duty| self.has(*duty));
        let is_asked_for = matches!(duty, Some(PROTECTS | CONFINES));
        (has_none && !is_asked_for) || duty.is_none_or(|duty| self.has(duty))
    }
}

/// Runs the tests and prints the findings.
///
/// # Errors
/// [`Failure::Unhealthy`] when something that this host needs does not work.
pub fn run(output: &Output) -> Result<(), Failure> {
    // A finding below reports a configuration that cannot be read.
    let applied = Applied::load(Path::new(paths::APPLIED)).ok().flatten();
    let checked = applied.as_ref().and_then(|applied| applied.check().ok());
    let jobs = Jobs::of(checked.as_ref());
    let mut findings = kernel(&jobs);
    findings.push(holes::unprivileged_bpf());
    let policy = checked.as_ref().map(|checked| &checked.policy);
    findings.extend(policy.and_then(holes::landlock));
    findings.extend(policy.and_then(sockets::servers));
    findings.push(host_key());
    findings.push(configuration());
    findings.extend(
        checked
            .as_ref()
            .and_then(|checked| policy::host_block(checked, &jobs)),
    );
    findings.extend(checked.as_ref().and_then(policy::source_addresses));
    findings.extend(daemons::all(&jobs));
    findings.extend(jobs.has(OFFERS).then(log::room));
    findings.extend(log::next_key());
    findings.extend(daemons::agents());
    findings.extend(daemons::services());
    findings.extend(daemons::services_of_others());
    let runs_lsm = |finding: &Finding| finding.name == "LSM programs" && finding.works;
    let runs_lsm = findings.iter().any(runs_lsm);
    findings.extend(daemons::calls_of_governed_programs(runs_lsm));
    findings.extend(checked.as_ref().and_then(policy::keys_to_sign_with));
    findings.extend(
        policy
            .filter(|policy| policy.has_protection())
            .map(socket_marks),
    );
    findings.extend(applied.as_ref().and_then(policy::groups));
    // JSON of `usher doctor`: a list of [`Finding`].
    output.print(&findings, || findings_text(&findings, &jobs));
    let is_missing = |finding: &Finding| finding.required && !finding.works;
    if findings.iter().any(is_missing) {
        Err(Failure::Unhealthy)
    } else {
        Ok(())
    }
}

/// Whether other software uses the bits of marks that are Usher's.
fn socket_marks(policy: &Policy) -> Finding {
    let found = crate::marks::look();
    let conflicts = found.conflicts(policy.marks);
    let works = conflicts.is_empty();
    let mut detail = if works {
        format!("no other use of the bits {} was found", policy.marks)
    } else {
        conflicts.join("; ")
    };
    if !found.unseen.is_empty() {
        detail += &format!("; not looked at: {}", found.unseen.join(", "));
    }
    let need = "telling packets of governed programs from other packets";
    Finding::optional("socket marks", Some(PROTECTS), need, (works, detail))
}

/// The abilities of this kernel.
fn kernel(jobs: &Jobs) -> Vec<Finding> {
    let found = match probe(&[]) {
        Ok(found) => found,
        Err(error) => {
            let need = "knowing what this kernel can do";
            return vec![Finding::new("kernel", need, (false, error.to_string()))];
        }
    };
    let findings = found.into_iter().map(|found| {
        let duty = duty_of(&found.name);
        Finding {
            required: found.required && jobs.may_need(duty),
            duty,
            ..Finding::new(&found.name, &found.needed_for, (found.works, found.detail))
        }
    });
    findings.collect()
}

/// The one duty that needs the feature which a probe tries.
fn duty_of(probe: &str) -> Option<Duty> {
    match probe {
        "BPF file system"
        | "admission"
        | "control groups"
        | "cutting connections"
        | "IPv6"
        | "process descriptors" => Some(OFFERS),
        "tickets" | "held connections" => Some(REACHES),
        "protection" | "IPsec" | "listing sockets" | "services in the clear" => Some(PROTECTS),
        "MAC framework" => Some(CONFINES),
        _ => None,
    }
}

fn findings_text(findings: &[Finding], jobs: &Jobs) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match (finding.works, finding.required) {
            (true, _) => "ok     ",
            (false, true) => "MISSING",
            (false, false) => "absent ",
        };
        text += &format!("{mark}  {}: {}\n", finding.name, finding.detail);
        for trouble in &finding.troubles {
            text += &format!("         {trouble}\n");
        }
        if !finding.works {
            text += &format!("         needed for: {}\n", finding.needed_for);
        }
        for (name, number) in finding.numbers.iter().filter(|(_, number)| **number != 0) {
            text += &format!("         {name} {number}\n");
        }
    }
    text.push('\n');
    for (duty, what) in [
        (OFFERS, "this host offers"),
        (REACHES, "users of this host reach"),
        (PROTECTS, "this host protects the traffic of"),
        (CONFINES, "this host has settings of the modules"),
    ] {
        text += &match jobs.services(duty) {
            [] => continue,
            services => format!("{what} {}: {}\n", some(services), lacks(findings, duty)),
        };
    }
    if !jobs.has(OFFERS) && !jobs.has(REACHES) {
        text += "the policy in force has no services of this host, and none that its users reach\n";
    }
    text
}

/// The things that this host lacks for a duty.
fn lacks(findings: &[Finding], duty: Duty) -> String {
    let missing = findings.iter().filter(|finding| {
        finding.required && !finding.works && finding.duty.is_none_or(|one| one == duty)
    });
    match joined(missing.map(|finding| &finding.name), ", ").as_str() {
        "" => "nothing is missing for this".into(),
        missing => format!("LACKS {missing}"),
    }
}

/// The first few names, and the number of the rest.
fn some(names: &[String]) -> String {
    first(names, 8)
}

fn host_key() -> Finding {
    let path = paths::HOST_KEY;
    let outcome = match std::fs::metadata(path) {
        Ok(metadata) if metadata.permissions().mode() & 0o077 == 0 => {
            match super::host_key::is_of_private_key() {
                Ok(true) => (true, format!("{path} is readable by root only")),
                Ok(false) => (
                    false,
                    format!(
                        "{} is not the public key of {path}, so a daemon that starts now uses another \
                         key than those that run: run `usher host use-key` again if it was interrupted, \
                         else `usher init`",
                        paths::HOST_PUBLIC_KEY
                    ),
                ),
                Err(error) => (false, error.to_string()),
            }
        }
        Ok(metadata) => {
            let mode = metadata.permissions().mode() & 0o7777;
            let text = format!(
                "{path} is there, but its mode is {mode:o}, so others than root may use it: \
                 `chmod 600 {path}`"
            );
            (false, text)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            (false, super::this_host::without_key())
        }
        Err(error) => (false, format!("{path}: {error}")),
    };
    Finding::new("host key", "other hosts to know this one", outcome)
}

fn configuration() -> Finding {
    let none = "no configuration is in force; run `usher policy apply`";
    let applied = Applied::load(Path::new(paths::APPLIED));
    let outcome = match applied.map(|applied| applied.map(|applied| (applied.check(), applied))) {
        Ok(Some((Ok(_), applied))) => {
            let generation = applied.generation;
            (true, format!("configuration {generation} is in force"))
        }
        Ok(Some((Err(error), _))) | Err(error) => (false, error.to_string()),
        Ok(None) => (false, none.to_owned()),
    };
    Finding::new("configuration", "anything to be permitted", outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &str, works: bool, duty: Option<Duty>) -> Finding {
        Finding {
            name: name.into(),
            works,
            required: true,
            duty,
            detail: "told".into(),
            needed_for: "something".into(),
            ..Finding::default()
        }
    }

    #[test]
    fn numbers_without_zeros_stand_one_a_line() {
        let jobs = Jobs {
            offers: vec!["imap".into()],
            reaches: vec!["notes at desk".into()],
            protects: Vec::new(),
            confines: Vec::new(),
        };
        let mut keeper = finding("daemon keeper", true, Some(OFFERS));
        keeper.numbers = [("sessions", 3), ("refused", 0)]
            .map(|(name, number)| (name.to_owned(), number))
            .into();
        let mut signer = finding("daemon signer", false, Some(REACHES));
        signer.troubles.push("not connected".into());
        let told = findings_text(&[keeper, signer, finding("host key", true, None)], &jobs);
        assert_eq!(
            told,
            "ok       daemon keeper: told\n\
             \x20        sessions 3\n\
             MISSING  daemon signer: told\n\
             \x20        not connected\n\
             \x20        needed for: something\n\
             ok       host key: told\n\n\
             this host offers imap: nothing is missing for this\n\
             users of this host reach notes at desk: LACKS daemon signer\n"
        );
    }

    #[test]
    fn a_lack_fails_only_hosts_with_the_role_that_needs_it() {
        let jobs = |offers: bool, reaches: bool, protects: bool| Jobs {
            offers: offers.then(|| "imap".into()).into_iter().collect(),
            reaches: reaches.then(|| "imap at h".into()).into_iter().collect(),
            protects: protects.then(|| "curl".into()).into_iter().collect(),
            confines: Vec::new(),
        };
        for (offers, reaches, protects, needs) in [
            (true, false, false, true),
            (false, true, false, false),
            (false, false, true, false),
            (true, true, true, true),
            (false, false, false, true),
        ] {
            let jobs = jobs(offers, reaches, protects);
            assert_eq!(jobs.may_need(Some(OFFERS)), needs);
            assert!(jobs.may_need(None));
            assert_eq!(jobs.may_need(Some(PROTECTS)), protects);
            assert!(!jobs.may_need(Some(CONFINES)));
        }
        let with_modules = Jobs {
            confines: vec!["bsdextended".into()],
            ..jobs(false, false, false)
        };
        assert!(with_modules.may_need(Some(CONFINES)));
    }
}
