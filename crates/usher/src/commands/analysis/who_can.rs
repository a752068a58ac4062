//! `usher policy who-can`: users and hosts that may use a service.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use usher_analysis::{Decision, Known, Right, SetId, Universe, Verdict};
use usher_base::{HostName, ServiceName};
use usher_policy::{Principal, joined};

use super::hosts::Loaded;
use super::{NO, PerhapsAt, spelling};
use crate::output::Output;

/// Lists the users; the exit code says whether there are any.
pub fn run(output: &Output, loaded: &Loaded, service: &PerhapsAt<ServiceName>) -> u8 {
    let mut universe = Universe::new(&[&loaded.network]);
    let mut rights = universe.rights(&loaded.network);
    rights.retain(|right| {
        let at_host = service
            .host
            .as_ref()
            .is_none_or(|host| right.is_at(&loaded.network, host));
        *right.service == service.name && at_host
    });
    let value: Vec<Value> = rights
        .iter()
        .map(|right| {
            // JSON object [`users_of_service`]:
            //   service: The service.
            //   server: Its host.
            //   port: Its port.
            //   client: The host from which these users may use it.
            //   users: List of texts: the users.
            //   known: The sides whose policies are known: [`Known`].
            //   by_certificate: List of [`users_by_certificate`].
            json!({
                "service": right.service, "server": right.server, "port": right.port,
                "client": right.client, "users": universe.users(right.users),
                "known": right.known, "by_certificate": by_certificate(right, &universe),
            })
        })
        .collect();
    // JSON of `usher policy who-can`: a list of [`users_of_service`].
    output.print(&value, || match rights.as_slice() {
        [] => {
            let at = service.host.as_ref();
            let at = at.map_or_else(String::new, |host| format!(" at {host}"));
            format!("no user can use {}{at}", service.name)
        }
        rights => rights_text(rights, &universe),
    });
    if !rights.is_empty() {
        return 0;
    }
    spelling::warn_of_service(&loaded.network, &service.name);
    if let Some(host) = &service.host {
        spelling::warn_of_host(&loaded.network, host);
    }
    NO
}

fn rights_text(rights: &[Right<'_>], universe: &Universe<'_>) -> String {
    // Hosts from which the same users may use the service.
    type Groups<'r> = BTreeMap<(Known, Vec<Users<'r>>), Vec<&'r HostName>>;
    let mut services: BTreeMap<(&HostName, u16), Groups<'_>> = BTreeMap::new();
    for right in rights {
        services
            .entry((right.server, right.port))
            .or_default()
            .entry((right.known, users_of(right)))
            .or_default()
            .push(right.client);
    }
    let mut text = String::new();
    for ((server, port), groups) in services {
        let service = rights[0].service;
        text += &format!("{service} at {server}, port {port}\n");
        for ((known, users), hosts) in groups {
            let hosts = joined(hosts, ", ");
            for (principal, anybody, users) in users {
                let users = match (principal, anybody) {
                    (Some(principal), true) => format!("users whose certificate names {principal}"),
                    (Some(principal), false) => {
                        format!("{}{}", user_names(users, universe), only_with(&[principal]))
                    }
                    (None, _) => user_names(users, universe),
                };
                text += &format!("  from {hosts}{}: {users}\n", note_on_groups(known));
            }
        }
    }
    text
}

/// Some of the users of a right: the principal that their certificate must name, whether any user with
/// such a certificate counts, and the users.
type Users<'n> = (Option<&'n Principal>, bool, SetId);

fn users_of<'n>(right: &Right<'n>) -> Vec<Users<'n>> {
    let by_name = Some((None, false, right.users)).filter(|_| right.users != SetId::NOBODY);
    let by_certificate = right.by_certificate.iter();
    let by_certificate = by_certificate.map(|by| (Some(by.principal), by.anybody, by.users));
    by_name.into_iter().chain(by_certificate).collect()
}

fn user_names(users: SetId, universe: &Universe<'_>) -> String {
    joined(universe.users(users), ", ")
}

fn by_certificate(right: &Right<'_>, universe: &Universe<'_>) -> Vec<Value> {
    let by_certificate = right.by_certificate.iter();
    by_certificate
        .map(|by| {
            // JSON object [`users_by_certificate`]:
            //   principal: The name that the certificate must have.
            //   users: List of texts: the users.
            //   anybody: True if every user with such a certificate may.
            json!({
                "principal": by.principal, "users": universe.users(by.users),
                "anybody": by.anybody,
            })
        })
        .collect()
}

/// The note for users who need a certificate; empty without principals.
pub fn only_with(principals: &[&Principal]) -> String {
    match principals {
        [] => String::new(),
        names => format!(
            " (only with a certificate that names {})",
            joined(names, " or ")
        ),
    }
}

/// The note for a decision about a user who needs a certificate.
pub fn certificate(decision: &Decision) -> String {
    match decision.verdict {
        Verdict::WithCertificate => only_with(&decision.principals.iter().collect::<Vec<_>>()),
        // A certificate may not change a refusal.
        Verdict::Permitted | Verdict::NotRefusedHere | Verdict::Refused => String::new(),
    }
}

/// The note where only one side is known.
pub fn note_on_groups(known: Known) -> &'static str {
    match known {
        Known::Both => "",
        Known::ClientOnly => " (the server's policy is not known here)",
        Known::ServerOnly => " (the client's policy is not known here)",
    }
}
