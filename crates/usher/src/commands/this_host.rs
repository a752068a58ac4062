//! Warnings about parts of a policy that this host cannot serve now.

use std::collections::BTreeMap;
use std::path::Path;

use usher_base::UserName;
use usher_daemon::control::ask_daemon;
use usher_local::requests::Mac;
use usher_local::{paths, roles};
use usher_policy::mac::ModuleSettings;
use usher_policy::mac::portacl::PortPermit;
use usher_policy::{Backend, Policy, Program, ServedBy, Service, joined};
use usher_system::sandbox::confines_files;

use super::listed_programs::fault_of_program;
use super::warning::{Warning, said};
use super::{configuration, governed_scripts, governed_sockets, listed_programs, ports_in_use};
use crate::accounts;
use crate::probe::lacks;

/// Warnings about parts of the policy that this host cannot serve now. [`super::policy::candidate`] adds the fence and the marks.
pub fn warnings(policy: &Policy) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = without_this_host(policy).into_iter().collect();
    warnings.extend(without_host_key(policy));
    warnings.extend(unmatched_ike_keys(policy).into_iter().map(Warning::from));
    warnings.extend(services_that_cannot_run(policy));
    warnings.extend(services_at_ports_given_out(policy));
    warnings.extend(ports_in_use::warnings(policy));
    warnings.extend(services_without_connect(policy));
    warnings.extend(listed_programs::of_no_use(policy));
    warnings.extend(modules_that_wait(policy));
    warnings.extend(ports_that_are_reserved(policy));
    warnings.extend(governed_scripts::that_are_missing(policy));
    warnings.extend(governed_scripts::that_count_for_nothing(policy));
    warnings.extend(governed_sockets::that_cannot_be_protected(policy));
    warnings
}

/// A warning if the policy has services or clients, and no `host` block for this host.
fn without_this_host(policy: &Policy) -> Option<Warning> {
    if policy.services.is_empty() && policy.clients.is_empty() {
        return None;
    }
    // `usher doctor` reports a missing or invalid key.
    let key = configuration::host_key().ok()?;
    match policy.host_by_key(&key) {
        Some(_) => None,
        None => Some(format!("{}: no service of it works", configuration::NO_HOST).into()),
    }
}

/// A warning if the policy has services or clients, and this host's private key is gone.
fn without_host_key(policy: &Policy) -> Option<Warning> {
    let is_needed = !policy.services.is_empty() || !policy.clients.is_empty();
    let is_gone = || matches!(Path::new(paths::HOST_KEY).try_exists(), Ok(false));
    (is_needed && is_gone()).then(|| without_key().into())
}

/// Hosts with which this host cannot negotiate SAs, because its block lacks a key of their algorithm.
pub fn unmatched_ike_keys(policy: &Policy) -> Vec<String> {
    // `usher doctor` reports a missing or invalid key.
    let own = configuration::host_key().ok();
    let own = own.and_then(|key| policy.host_by_key(&key));
    let own = own.filter(|_| policy.has_protection());
    own.map_or_else(Vec::new, |own| policy.unmatched_ike_keys(own))
}

/// The text about a host without its private key.
pub fn without_key() -> String {
    format!(
        "{}, this host's private key, does not exist, so no other host takes this one for what it is: put \
         it back from a backup, or make another with `usher init`, whose public key then belongs in this \
         host's `host` block everywhere",
        paths::HOST_KEY
    )
}

/// Services of this host whose processes cannot run on it now.
fn services_that_cannot_run(policy: &Policy) -> Vec<Warning> {
    let services = policy.services.values();
    services.filter_map(why_it_cannot_run).collect()
}

/// Services at ports that the kernel gives to any process that connects.
fn services_at_ports_given_out(policy: &Policy) -> Vec<Warning> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
    let (Ok(range), Ok(reserved)) = (read("ip_local_port_range"), read("ip_local_reserved_ports"))
    else {
        return Vec::new();
    };
    let services = policy.services.values();
    services
        .filter(|service| is_given_out(service.listen, &range, &reserved))
        .map(|service| {
            let text = format!(
                "`service {}`: the kernel may give port {port} to any process that connects or \
                 listens (net.ipv4.ip_local_port_range); reserve it in \
                 net.ipv4.ip_local_reserved_ports, or use another port",
                service.name,
                port = service.listen
            );
            Warning::about(said(service, "listen"), text)
        })
        .collect()
}

/// Whether the kernel gives a port to processes, by ip_local_port_range (`FIRST LAST`) and
/// ip_local_reserved_ports (`PORT,FIRST-LAST,...`).
fn is_given_out(port: u16, range: &str, reserved: &str) -> bool {
    let between = |(first, last): (&str, &str)| {
        let (Ok(first), Ok(last)) = (first.parse(), last.parse()) else {
            return false;
        };
        (first..=last).contains(&port)
    };
    let mut reserved = reserved.trim().split(',');
    range.trim().split_once(['\t', ' ']).is_some_and(between)
        && !reserved.any(|part| between(part.split_once('-').unwrap_or((part, part))))
}

/// Services whose sessions this host refuses, because it lacks the fence that they need.
pub fn services_without_fence(policy: &Policy) -> Option<Warning> {
    let services = named(policy, |service| {
        matches!(service.served_by, ServedBy::Account(_))
    })?;
    let reason = lacks("LSM programs")?;
    Some(format!("sessions with {services} are refused: {reason}").into())
}

/// Modules whose `mac` block has no effect yet, and hosts that cannot enforce one.
fn modules_that_wait(policy: &Policy) -> Vec<Warning> {
    if policy.mac.is_empty() {
        return Vec::new();
    }
    let view = match ask_daemon(roles::Labeller, &Mac {}) {
        Ok(view) => view,
        Err(error) => {
            let text = format!("a policy with `mac` blocks needs the labeller: {error}");
            return vec![text.into()];
        }
    };
    if let Some(lacks) = view.unsupported {
        return vec![format!("`mac` blocks: {lacks}").into()];
    }
    let is_loaded = |name: &str| view.modules.iter().any(|module| module.name == name);
    let blocks = policy.mac.iter().filter(|block| block.is_of_module());
    let waiting = blocks.filter(|block| !is_loaded(block.module.as_ref()));
    let warnings = waiting.map(|block| {
        let (module, place) = (&block.module, &block.origin.place);
        let text = format!(
            "{place}: `mac {module}` refuses nothing until the module is loaded: `usher mac load {module}`"
        );
        text.into()
    });
    warnings.collect()
}

/// Ports that a policy permits to users, and that the kernel keeps for those with a capability.
fn ports_that_are_reserved(policy: &Policy) -> Vec<Warning> {
    const START: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let start = std::fs::read_to_string(START);
    let Some(start) = start.ok().and_then(|text| text.trim().parse::<u16>().ok()) else {
        return Vec::new();
    };
    let settings = policy.mac.iter().filter_map(|block| match &block.settings {
        ModuleSettings::Portacl(ports) => Some(ports),
        _ => None,
    });
    let permits = settings.flat_map(|ports| ports.needed());
    let is_reserved =
        |permit: &PortPermit| (1..start).contains(&permit.port) && !permit.is_of_root();
    let reserved = permits.filter(|(permit, _)| is_reserved(permit));
    reserved
        .map(|(permit, origin)| {
            let text = format!(
                "{}: `{permit}`: the kernel still keeps ports below {start} for processes with \
                 CAP_NET_BIND_SERVICE; set net.ipv4.ip_unprivileged_port_start to 0 once portacl is \
                 in force, or give the service that capability",
                origin.place
            );
            text.into()
        })
        .collect()
}

/// Users and groups that `mac` blocks name and this host does not know: the labeller refuses the policy.
pub fn unknown_accounts(policy: &Policy) -> Vec<Warning> {
    // Each once, at the first statement that names it.
    let mut named = BTreeMap::new();
    for block in &policy.mac {
        for account in block.accounts() {
            named
                .entry((account.is_group, account.name))
                .or_insert(account.origin);
        }
    }
    let unknown = named.into_iter().filter_map(|((is_group, name), origin)| {
        let found = if is_group {
            accounts::look_up_group(name).map(|group| group.is_some())
        } else {
            accounts::look_up(name).map(|user| user.is_some())
        };
        let noun = if is_group { "group" } else { "user" };
        let text = match found {
            Ok(true) => return None,
            Ok(false) => format!(
                "{}: this host has no {noun} {name}, so `usher policy apply` refuses this block; create \
                 it, or correct the name",
                origin.place
            ),
            Err(failure) => format!("{}: {failure}", origin.place),
        };
        Some(text.into())
    });
    unknown.collect()
}

/// Other users of Usher's mark bits, if the policy protects something.
pub fn marks_of_others(policy: &Policy) -> Vec<Warning> {
    if policy.has_protection() {
        let found = crate::marks::look();
        let conflicts = found.conflicts(policy.marks).into_iter();
        conflicts.map(Warning::from).collect()
    } else {
        Vec::new()
    }
}

/// Services whose users are refused, because this host cannot restrict their connections.
fn services_without_connect(policy: &Policy) -> Option<Warning> {
    let services = named(policy, |service| service.connect.is_some())?;
    let reason = lacks("destinations")?;
    let text = format!(
        "users of {services} are refused: this kernel does not take the programs for `connect` \
         ({reason})"
    );
    Some(text.into())
}

/// The names of the services of a policy for which `those` returns true; none if there are none.
pub fn named(policy: &Policy, those: impl Fn(&Service) -> bool) -> Option<String> {
    let services = policy.services.values();
    let services = services.filter(|service| those(service));
    let named = services.map(|service| format!("`service {}`", service.name));
    Some(joined(named, ", ")).filter(|services| !services.is_empty())
}

fn why_it_cannot_run(service: &Service) -> Option<Warning> {
    let (keyword, reason) = match &service.served_by {
        ServedBy::Program(Program { files: Some(_), .. }) if !confines_files() => {
            let reason = "it has `files`, and this kernel has no Landlock (`landlock` in \
                          lsm=...): its users are refused";
            ("files", reason.into())
        }
        ServedBy::Program(program) => match program.account.as_ref().and_then(fault_of_account) {
            Some(reason) => ("account", reason),
            None => ("program", fault_of_program(&program.path)?),
        },
        ServedBy::Account(account) | ServedBy::Backend(Backend { account, .. }) => {
            ("account", fault_of_account(account)?)
        }
    };
    let text = format!("`service {}`: {reason}", service.name);
    Some(Warning::about(said(service, keyword), text))
}

fn fault_of_account(account: &UserName) -> Option<String> {
    match accounts::look_up(account.as_ref()) {
        Ok(Some(found)) if found.uid.is_root() => Some(format!(
            "the account {account} has user id 0, which no service may use; name another"
        )),
        Ok(Some(_)) => None,
        Ok(None) => Some(format!(
            "there is no account {account} on this host yet; create it first"
        )),
        Err(failure) => Some(failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use usher_local::applied::Applied;
    use usher_policy::Source;

    use super::*;
    use crate::commands::warning::with_places;

    fn warnings_with(served_by: &str) -> Vec<String> {
        let text = format!(
            "users u {{ member alice; }}
             service s {{ {served_by}; listen 143; users u; hosts any; style user; }}"
        );
        let mut applied = Applied::default();
        applied.sources.push(Source {
            name: "test.policy".into(),
            text,
        });
        let checked = applied.check().expect("a correct policy");
        with_places(services_that_cannot_run(&checked.policy), &applied)
    }

    #[test]
    fn ports_that_the_kernel_gives_out_are_told_from_reserved_ones() {
        let given_out = |port, reserved| is_given_out(port, "32768\t60999\n", reserved);
        assert!(
            [32768, 40000, 60999]
                .iter()
                .all(|&port| given_out(port, "\n"))
        );
        assert!(![1, 32767, 61000].iter().any(|&port| given_out(port, "\n")));
        let reserved = "7,40000-40002,50000\n";
        assert!(
            ![40000, 40001, 40002, 50000]
                .iter()
                .any(|&port| given_out(port, reserved))
        );
        assert!(
            [39999, 40003, 50001]
                .iter()
                .all(|&port| given_out(port, reserved))
        );
        assert!(!is_given_out(40000, "nonsense", ""));
    }

    #[test]
    fn accounts_of_mac_blocks_that_this_host_lacks_are_named_once() {
        let text = "mac bsdextended {
               rule subject uid root nobody object gid no-such-group mode r;
               rule subject uid no-such-user not gid no-such-group mode r;
             }
             mac portacl { permit user no-such-user tcp 80; permit group 7 tcp 81; }
             mac seeotheruids { specificgid no-such-user; }";
        let name = "test.policy".into();
        let text = text.into();
        let policy =
            usher_policy::parse_policy(&[Source { name, text }]).expect("a correct policy");
        let warnings = with_places(unknown_accounts(&policy), &Applied::default());
        let said = |place: &str, account: &str| {
            format!(
                "test.policy:{place}: this host has no {account}, so `usher policy apply` refuses this \
                 block; create it, or correct the name"
            )
        };
        let expected = [
            said("3:16", "user no-such-user"),
            said("2:16", "group no-such-group"),
            said("6:33", "group no-such-user"),
        ];
        assert_eq!(warnings, expected);
    }

    #[test]
    fn only_missing_programs_and_accounts_get_a_warning() {
        assert_eq!(warnings_with("program \"/bin/sh\""), [""; 0]);
        assert_eq!(
            warnings_with("program \"/nonexistent/program\""),
            [
                "test.policy:2:26: `service s`: /nonexistent/program is missing on this host or not executable"
            ]
        );
        assert_eq!(warnings_with("account nobody"), [""; 0]);
        assert_eq!(
            warnings_with("account no-such-account"),
            [
                "test.policy:2:26: `service s`: there is no account no-such-account on this host yet; create it first"
            ]
        );
    }
}
