//! Warns of names that no policy has: a refusal because of a misspelt name looks like any other.

use usher_analysis::{HostPolicy, Network};
use usher_base::{HostName, ServiceName, UserName};
use usher_policy::nearest;

use crate::output;

/// Warns of a user whom no policy names.
pub fn warn_of_user(network: &Network, user: &UserName) {
    let named = |host: &'_ HostPolicy| -> Vec<String> {
        let blocks = host.policy.users.values();
        let users = blocks.flat_map(|users| users.users().chain(users.former.keys()));
        users.map(ToString::to_string).collect()
    };
    warn(network, "user", user.as_ref(), named);
}

/// Warns of a service that no policy names.
pub fn warn_of_service(network: &Network, service: &ServiceName) {
    let named = |host: &'_ HostPolicy| -> Vec<String> {
        let entries = host.policy.client_services().map(|entry| &entry.service);
        let services = host.policy.services.keys().chain(entries);
        services.map(ToString::to_string).collect()
    };
    warn(network, "service", service.as_ref(), named);
}

/// Warns of a host that no policy names.
pub fn warn_of_host(network: &Network, host: &HostName) {
    let named = |host: &'_ HostPolicy| -> Vec<String> {
        host.policy.hosts.keys().map(ToString::to_string).collect()
    };
    warn(network, "host", host.as_ref(), named);
}

fn warn(network: &Network, what: &str, name: &str, named: impl Fn(&HostPolicy) -> Vec<String>) {
    let known: Vec<String> = network.hosts().flat_map(named).collect();
    if known.iter().any(|known| known == name) {
        return;
    }
    let meant = nearest(name, known.iter().map(String::as_str));
    let meant = meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
    output::warn(&format!("no policy here names the {what} {name}{meant}"));
}
