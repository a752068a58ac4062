//! `usher policy show`: the policy in force, in its canonical form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use usher_base::{HostName, ServiceName};
use usher_local::paths;
use usher_policy::{GroupName, Policy, Source};
use usher_proto::HostPublicKey;

use super::configuration;
use crate::failure::Failure;
use crate::output::Output;

/// The configuration in force, and the services of this host by it.
#[derive(Debug, Serialize)]
struct View {
    generation: u64,
    /// This host's name in the policy, if it has one.
    host: Option<HostName>,
    /// Services of this host.
    offers: Vec<Offered>,
    /// Services of other hosts that users of this host may use.
    reaches: Vec<Reached>,
    /// The files that it was read from.
    files: Vec<String>,
    /// The groups that it names, with their accounts at the time of the apply.
    groups: BTreeMap<GroupName, BTreeSet<String>>,
    /// The policy's text.
    policy: String,
}

#[derive(Debug, Serialize)]
struct Offered {
    service: ServiceName,
    port: u16,
}

#[derive(Debug, Serialize)]
struct Reached {
    service: ServiceName,
    host: HostName,
    port: u16,
}

/// Prints the policy in force.
///
/// # Errors
/// When no policy is in force, or it cannot be read.
pub fn run(output: &Output) -> Result<(), Failure> {
    let applied = configuration::in_force()?;
    if applied.generation == 0 {
        return Err(Failure::Host(
            "no configuration is in force on this host, so nothing is permitted; `usher policy \
             apply` puts one in force"
                .into(),
        ));
    }
    let policy = configuration::check(&applied)?.policy;
    let offers = policy.services.values().map(|service| Offered {
        service: service.name.clone(),
        port: service.listen,
    });
    let reaches = policy.client_services().map(|entry| Reached {
        service: entry.service.clone(),
        host: entry.host.clone(),
        port: entry.port,
    });
    let view = View {
        generation: applied.generation,
        host: own_name(&policy),
        offers: offers.collect(),
        reaches: reaches.collect(),
        files: applied
            .sources
            .iter()
            .map(|file| file.name.clone())
            .collect(),
        groups: applied.groups.clone(),
        policy: canonical(&policy),
    };
    output.print(&view, || text(&view));
    Ok(())
}

/// The name of this host in the policy, by its key.
fn own_name(policy: &Policy) -> Option<HostName> {
    let text = std::fs::read_to_string(Path::new(paths::HOST_PUBLIC_KEY)).ok()?;
    let key = HostPublicKey::from_openssh(text.trim()).ok()?;
    policy.host_by_key(&key).map(|host| host.name.clone())
}

fn canonical(policy: &Policy) -> String {
    let source = Source {
        name: String::new(),
        text: policy.to_text(),
    };
    // A text that is too long for one file stays as it is.
    usher_policy::format(&source).unwrap_or(source.text)
}

/// The policy with comments before it, so that the whole is a valid policy.
fn text(view: &View) -> String {
    let host = view.host.as_ref().map_or_else(
        || "this host, which has no `host` block in it".to_owned(),
        ToString::to_string,
    );
    let mut text = format!("# configuration {} in force on {host}\n", view.generation);
    for Offered { service, port } in &view.offers {
        // Writing into a String does not fail.
        let _ = writeln!(text, "# offers {service} at port {port}");
    }
    for Reached {
        service,
        host,
        port,
    } in &view.reaches
    {
        let _ = writeln!(text, "# reaches {service} at {host} port {port}");
    }
    for file in &view.files {
        let _ = writeln!(text, "# from {file}");
    }
    for (group, accounts) in &view.groups {
        let accounts: Vec<&str> = accounts.iter().map(String::as_str).collect();
        let _ = writeln!(text, "# group {group}: {}", accounts.join(", "));
    }
    text.push('\n');
    text + &view.policy
}
