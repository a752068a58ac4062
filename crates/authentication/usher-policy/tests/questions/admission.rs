//! Admission by the server, and by the client.

use crate::{LAPTOP_KEY, NOW, OTHER_KEY, host, policy, service, source, user};
use usher_policy::{Policy, Protocol, TrustedPrincipal, parse_policy};
use usher_proto::Refusal;

#[test]
fn a_service_admits_its_users_from_its_hosts_and_nobody_else() {
    let policy = policy();
    let ask = |service_name, user_name, host_name| {
        policy
            .service_permits(
                &service(service_name),
                &user(user_name),
                &[],
                &host(host_name),
                NOW,
            )
            .map(|(service, _)| service.listen)
    };
    assert_eq!(ask("imap", "alice", "laptop"), Ok(143));
    assert_eq!(ask("imap", "dave", "laptop"), Ok(143));
    // erin is a user by the group, which does not make root one.
    assert_eq!(ask("imap", "erin", "laptop"), Ok(143));
    assert_eq!(
        ask("imap", "root", "laptop"),
        Err(Refusal::UserNotPermitted)
    );
    assert_eq!(
        ask("imaps", "alice", "laptop"),
        Err(Refusal::UnknownService)
    );
    assert_eq!(
        ask("imap", "mallory", "laptop"),
        Err(Refusal::UserNotPermitted)
    );
    assert_eq!(
        ask("imap", "alice", "mailhost"),
        Err(Refusal::HostNotPermitted)
    );
    assert_eq!(
        ask("imap", "mallory", "mailhost"),
        Err(Refusal::UserNotPermitted)
    );
    assert_eq!(ask("calendar", "dave", "mailhost"), Ok(5232));
    assert_eq!(
        ask("calendar", "dave", "stranger"),
        Err(Refusal::HostNotPermitted)
    );
    assert_eq!(
        ask("calendar", "alice", "laptop"),
        Err(Refusal::UserNotPermitted)
    );
}

#[test]
fn users_authenticate_only_where_a_client_block_permits() {
    let policy = policy();
    let ask = |user_name, host_name, service_name| {
        policy
            .client_permits(
                &user(user_name),
                &host(host_name),
                &service(service_name),
                NOW,
            )
            .map(|entry| (entry.port, entry.protocol))
    };
    assert_eq!(ask("alice", "mailhost", "imap"), Ok((143, Protocol::Imap)));
    assert_eq!(ask("dave", "mailhost", "files"), Ok((2049, Protocol::Raw)));
    assert_eq!(ask("dave", "laptop", "imap"), Ok((143, Protocol::Raw)));
    assert_eq!(ask("alice", "stranger", "imap"), Err(Refusal::UnknownHost));
    assert_eq!(ask("dave", "mailhost", "imap"), Err(Refusal::ClientPolicy));
    assert_eq!(
        ask("alice", "mailhost", "files"),
        Err(Refusal::ClientPolicy)
    );
    assert_eq!(
        ask("alice", "mailhost", "calendar"),
        Err(Refusal::ClientPolicy)
    );
}

#[test]
fn a_policy_of_nothing_permits_nothing() {
    for sources in [vec![], vec![source("empty", "# nothing\n")]] {
        let policy = parse_policy(&sources).expect("an empty policy");
        assert_eq!(policy, Policy::default());
        let answer = policy.service_permits(&service("s"), &user("alice"), &[], &host("h"), NOW);
        assert_eq!(answer.map(|_| ()), Err(Refusal::UnknownService));
        let answer = policy.client_permits(&user("alice"), &host("h"), &service("s"), NOW);
        assert_eq!(answer.map(|_| ()), Err(Refusal::UnknownHost));
    }
}

#[test]
fn a_guests_longest_time_in_any_set_counts() {
    let text = format!(
        "host laptop {{ address 10.77.0.1; key \"{LAPTOP_KEY}\"; }}
         users a {{ guest alice until 2026-01-01T00:01Z; guest bob until 2026-01-01T00:01Z; }}
         users b {{ guest alice until 2026-01-01T00:00:30Z; member bob; }}
         users c {{ guest alice until 2026-01-01T00:00:30Z; }}
         service s {{ program \"/x\"; listen 1; users a, b; hosts any; style user; }}
         service t {{ program \"/x\"; listen 2; users c, b; hosts any; style user; }}
         client c {{ users a, b; service s at laptop port 1; }}"
    );
    let policy = parse_policy(&[source("guests", &text)]).expect("a correct policy");
    let ask = |policy: &Policy, name, user_name, after| {
        let (service, user) = (service(name), user(user_name));
        let answer = policy.service_permits(&service, &user, &[], &host("laptop"), NOW + after);
        answer.map(|(_, until)| until)
    };
    let asks = |user_name, after| {
        let (user, host, now) = (user(user_name), host("laptop"), NOW + after);
        let answer = policy.client_permits(&user, &host, &service("s"), now);
        answer.is_ok()
    };
    for after in [0, 29, 30, 59, 60, 1_000_000] {
        let expected = |until| {
            if after < until {
                Ok(NOW + until)
            } else {
                Err(Refusal::GuestOver)
            }
        };
        assert_eq!(ask(&policy, "s", "alice", after), expected(60));
        assert_eq!(ask(&policy, "t", "alice", after), expected(30));
        assert_eq!(ask(&policy, "s", "bob", after), Ok(u64::MAX));
        assert_eq!(
            (asks("alice", after), asks("bob", after)),
            (after < 60, true)
        );
        // The policy as of that time answers the same, and has no former guests.
        let then = policy.at(NOW + after);
        for (name, until) in [("s", 60), ("t", 30)] {
            assert_eq!(ask(&then, name, "alice", after).is_ok(), after < until);
            let names = then.services[&service(name)].users.names();
            assert_eq!(names.contains(&user("alice")), after < until);
        }
        let over = policy.guests_over(NOW + after).len();
        assert_eq!(
            over,
            2 * usize::from(after >= 30) + 2 * usize::from(after >= 60)
        );
    }
}

#[test]
fn a_trusted_principal_makes_its_holder_a_user() {
    let text = format!(
        "host laptop {{ address 10.77.0.1; key \"{LAPTOP_KEY}\"; }}
         host desk {{ address 10.77.0.2; key \"{OTHER_KEY}\"; }}
         users a {{ member alice; guest bob until 2026-01-01T00:00:30Z; principal ops, dev; }}
         users b {{ principal ops@example.org; }}
         users c {{ member carol; }}
         service s {{ program \"/x\"; listen 1; users a, b; hosts laptop; style user; }}
         service t {{ account www; listen 2; users b; hosts any; style user; }}
         service u {{ program \"/x\"; listen 3; users c; hosts any; style user; }}"
    );
    let policy = parse_policy(&[source("principals", &text)]).expect("a correct policy");
    let ask = |name, user_name, principals: &[(&'static str, u64)], host_name, after| {
        let principals: Vec<TrustedPrincipal<'_>> = principals
            .iter()
            .map(|&(name, until)| TrustedPrincipal { name, until })
            .collect();
        let (service, user, host) = (service(name), user(user_name), host(host_name));
        let answer = policy.service_permits(&service, &user, &principals, &host, NOW + after);
        answer.map(|(_, until)| until)
    };
    let none = Err(Refusal::UserNotPermitted);
    for user in ["alice", "bob", "carol", "mallory"] {
        for (name, until) in [("dev", u64::MAX), ("ops@example.org", NOW + 90)] {
            let longest = if user == "alice" { u64::MAX } else { until };
            let asked = [("ops@example.com", 9), (name, until)];
            assert_eq!(ask("s", user, &asked, "laptop", 60), Ok(longest));
        }
        let elsewhere = ask("s", user, &[("ops", u64::MAX)], "desk", 0);
        assert_eq!(elsewhere, Err(Refusal::HostNotPermitted));
        // A principal of another service's users, one that is longer or shorter, a user's name.
        for other in [
            "ops",
            "ops@example.org.",
            "OPS@example.org",
            "alice",
            "t",
            "b",
        ] {
            assert_eq!(ask("t", user, &[(other, u64::MAX)], "laptop", 0), none);
        }
    }
    assert_eq!(ask("s", "carol", &[], "laptop", 0), none);
    assert_eq!(ask("s", "bob", &[], "laptop", 0), Ok(NOW + 30));
    // The longer of the two counts. A former guest is refused as one.
    for (until, longest) in [(NOW + 20, NOW + 30), (NOW + 40, NOW + 40)] {
        assert_eq!(ask("s", "bob", &[("ops", until)], "laptop", 0), Ok(longest));
    }
    assert_eq!(ask("s", "bob", &[], "laptop", 30), Err(Refusal::GuestOver));
    // A certificate does not help in a set of names only, nor a user whom the service can never admit.
    assert_eq!(ask("u", "dan", &[("ops", u64::MAX)], "laptop", 0), none);
    let certified = [("ops@example.org", u64::MAX)];
    assert_eq!(ask("t", "dan", &certified, "laptop", 0), Ok(u64::MAX));
    for user in ["www", "root", "usher-keeper"] {
        assert_eq!(ask("t", user, &certified, "laptop", 0), none);
    }
    assert_eq!(ask("s", "www", &certified, "laptop", 0), Ok(u64::MAX));
}
