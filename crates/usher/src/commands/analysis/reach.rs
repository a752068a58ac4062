//! `usher policy reach`: the services that a user may use.

use serde_json::{Value, json};
use usher_analysis::Universe;
use usher_base::UserName;

use super::hosts::Loaded;
use super::who_can::{note_on_groups, only_with};
use super::{NO, PerhapsAt, spelling};
use crate::output::{Output, row, table};

/// Lists the services; the exit code says whether there are any.
pub fn run(output: &Output, loaded: &Loaded, user: &PerhapsAt<UserName>) -> u8 {
    let mut universe = Universe::new(&[&loaded.network]);
    let mut rights = universe.rights(&loaded.network);
    rights.retain(|right| {
        let from_host = user
            .host
            .as_ref()
            .is_none_or(|host| right.is_from(&loaded.network, host));
        let may = universe.contains(right.users, &user.name)
            || !right.principals_for(&universe, &user.name).is_empty();
        may && from_host
    });
    let value: Vec<Value> = rights
        .iter()
        .map(|right| {
            // JSON object [`reachable_service`]:
            //   client: The host from which it can be used.
            //   service: The service.
            //   server: Its host.
            //   port: Its port.
            //   known: The sides whose policies are known: [`Known`].
            //   how: How connections are made and served: [`How`].
            //   principals: List of texts: the user's certificate must name one of these; empty: it takes none.
            json!({
                "client": right.client, "service": right.service, "server": right.server,
                "port": right.port, "known": right.known, "how": right.how(),
                "principals": right.principals_for(&universe, &user.name),
            })
        })
        .collect();
    // JSON of `usher policy reach`: a list of [`reachable_service`].
    output.print(&value, || {
        if rights.is_empty() {
            let from = user.host.as_ref();
            let from = from.map_or_else(String::new, |host| format!(" from {host}"));
            return format!("{} cannot use any service{from}", user.name);
        }
        let rows = rights.iter().map(|right| {
            let principals = only_with(&right.principals_for(&universe, &user.name));
            row![
                right.client,
                format!("{}@{}", right.service, right.server),
                format!("{}{principals}{}", right.port, note_on_groups(right.known)),
            ]
        });
        table(["FROM", "SERVICE", "PORT"], rows)
    });
    if !rights.is_empty() {
        return 0;
    }
    spelling::warn_of_user(&loaded.network, &user.name);
    if let Some(host) = &user.host {
        spelling::warn_of_host(&loaded.network, host);
    }
    NO
}
