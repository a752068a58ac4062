//! The analyser says what the daemons do: on random policies of several hosts its answers are
//! compared with what signer, verifier and keeper ask of each policy.

mod daemons;
mod hosts;

use std::collections::BTreeSet;

use daemons::{Connection, expected};
use hosts::*;
use proptest::collection::vec;
use proptest::prelude::*;
use usher_analysis::{HostPolicy, Known, Network, Question, Universe, Verdict};
use usher_base::{ServiceName, UserName};
use usher_policy::{Clause, Source, parse_with_places};

/// The host with its policy of the present time.
fn now(host: &HostPolicy) -> HostPolicy {
    HostPolicy {
        policy: host.policy.at(NOW),
        ..host.clone()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_analyser_permits_exactly_what_the_daemons_permit(
        choices in vec(choices(), GIVEN),
    ) {
        let hosts: Vec<HostPolicy> =
            choices.iter().enumerate().map(|(host, choices)| host_policy(host, choices)).collect();
        let network = Network::new(hosts.iter().map(now)).expect("three hosts");
        let mut universe = Universe::new(&[&network]);
        let rights = universe.rights(&network);
        let names = USERS.iter().chain(&["stranger", "root", ACCOUNT]);
        let users: Vec<UserName> = names.map(|name| name.parse().expect("a user name")).collect();
        let mut permitted = 0;
        for (client, server) in NAMES.iter().flat_map(|c| NAMES.map(|s| (*c, s))) {
            if client.starts_with('d') && server.starts_with('d') {
                continue; // The policy of neither is known.
            }
            for (number, service) in SERVICES.iter().enumerate() {
                let service: ServiceName = service.parse().expect("a service name");
                for user in &users {
                    let ports = PORTS.map(|port| port + u16::try_from(number).expect("few"));
                    let question = |port| Question {
                        user: user.clone(),
                        client: client.parse().expect("a host name"),
                        service: service.clone(),
                        server: server.parse().expect("a host name"),
                        port,
                    };
                    let answers = ports.map(|port| {
                        let asked = Connection { user, service: &service, port };
                        let expected = expected(&hosts, client, server, &asked);
                        let decision = network.decide(&question(Some(port))).expect("one is known");
                        (port, expected, decision)
                    });
                    for (port, expected, decision) in &answers {
                        prop_assert_eq!(decision.verdict, *expected, "{:?}", decision);
                        let refused = *expected == Verdict::Refused;
                        prop_assert_eq!(decision.objections.is_empty(), !refused);
                        let of_rights = rights.iter().find(|right| {
                            (right.client.as_ref(), right.server.as_ref()) == (client, server)
                                && (right.service, right.port) == (&service, *port)
                        });
                        let principals = of_rights.map(|right| right.principals_for(&universe, user));
                        let principals = principals.unwrap_or_default();
                        let by_name =
                            of_rights.filter(|right| universe.contains(right.users, user));
                        let of_rights = match by_name.map(|right| right.known) {
                            None if principals.is_empty() => Verdict::Refused,
                            None => Verdict::WithCertificate,
                            Some(Known::Both) => Verdict::Permitted,
                            Some(_) => Verdict::NotRefusedHere,
                        };
                        if !refused {
                            prop_assert_eq!(
                                principals,
                                decision.principals.iter().collect::<Vec<_>>()
                            );
                        }
                        prop_assert_eq!(of_rights, *expected, "rights: {:?}", decision);
                        let by_name = by_name.is_some();
                        permitted += usize::from(by_name);
                    }
                    // A question without a port is about the port at which the service is, whichever that is.
                    let any = network.decide(&question(None)).expect("one is known");
                    let best = answers.iter().map(|(_, expected, _)| *expected);
                    let best = best.min_by_key(|verdict| *verdict as u8);
                    prop_assert_eq!(Some(any.verdict), best, "{:?}", any);
                }
            }
        }
        let of_sets: usize = rights.iter().map(|right| universe.users(right.users).len()).sum();
        prop_assert_eq!(permitted, of_sets);
    }

    #[test]
    fn every_line_that_is_told_stands_in_the_policy(choices in vec(choices(), GIVEN)) {
        let hosts: Vec<HostPolicy> =
            choices.iter().enumerate().map(|(host, choices)| host_policy(host, choices)).collect();
        let network = Network::new(hosts.iter().map(now)).expect("three hosts");
        let sources: Vec<[Source; 1]> =
            choices.iter().enumerate().map(|(host, choices)| [source(host, choices)]).collect();
        let places: Vec<_> = sources
            .iter()
            .zip(&choices)
            .map(|(source, choices)| parse_with_places(source, &groups(choices)).expect("a correct policy").1)
            .collect();
        // Statements that a policy may leave at their default.
        let optional = ["programs", "protocol", "key", "keys", "files", "control", "account", "session",
            "reauthenticate", "protection", "connect", "umask", "setuid", "pam"];
        for (client, server) in HOSTS.iter().flat_map(|c| HOSTS.map(|s| (*c, s))) {
            for user in USERS {
                let question = Question {
                    user: user.parse().expect("a user name"),
                    client: client.parse().expect("a host name"),
                    service: "s".parse().expect("a service name"),
                    server: server.parse().expect("a host name"),
                    port: None,
                };
                let Ok(decision) = network.decide(&question) else { continue };
                let objections = decision.objections.iter().flat_map(|objection| {
                    objection.clauses.iter().map(|clause| (&objection.host, clause))
                });
                let grounds = decision.grounds.iter().map(|ground| (&ground.host, &ground.clause));
                for (host, clause) in objections.chain(grounds) {
                    let number = HOSTS.iter().position(|name| *name == host.as_ref());
                    let places = &places[number.expect("a host that is given")];
                    let block = Clause::block(&clause.block, &clause.name);
                    prop_assert!(places.place(&block).is_some(), "{block}");
                    let is_there = places.place(clause).is_some();
                    prop_assert!(is_there || optional.contains(&clause.keyword.as_str()), "{clause}");
                }
                // A user whom both sides permit is found in a `member`, `group` or `guest` statement of each.
                if decision.verdict == Verdict::Permitted {
                    let members = decision.grounds.iter().filter(|ground| {
                        let clause = &ground.clause;
                        clause.keyword == "member" && clause.value == user
                            || clause.keyword == "group"
                            || clause.keyword == "guest"
                                && clause.value == format!("{user} until {}", TIMES[1])
                    });
                    let of: BTreeSet<_> = members.map(|ground| ground.host.as_ref()).collect();
                    prop_assert_eq!(of, [client, server].into());
                }
            }
        }
    }
}
