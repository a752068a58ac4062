//! The analyser's answers about two hosts' policies, beside the decisions of their daemons.

mod reading;
mod users;

use std::path::Path;

use reading::{Outcome, is_served};
use serde_json::Value;
use users::answer;
use usher_lab::{Host, Lab, Mail};

const POLICY: &str = "/etc/usher/policy.d/mail.policy";
/// Beside the topology's own.
const MORE: &str = "/etc/usher/policy.d/more.policy";
const USERS: [&str; 3] = ["alice", "bob", "carol"];
const SERVICES: [&str; 5] = ["imap", "vault", "elsewhere", "moved", "gone"];
/// The folder for copies of both hosts' /etc/usher, on mailhost.
const COPIES: &str = "/root/copies";

/// Beside imap: a service for fewer users than the client thinks, one for another host, one at
/// another port than the client thinks.
const MAILHOST: &str = concat!(
    r#"
users few { member alice, bob; }
service vault {
  program "#,
    usher_lab::imap!(),
    r#";
  listen 144; style connection; users few; hosts laptop;
}
service elsewhere {
  program "#,
    usher_lab::imap!(),
    r#";
  listen 145; style connection; users mail; hosts mailhost;
}
service moved {
  program "#,
    usher_lab::imap!(),
    r#";
  listen 146; style connection; users mail; hosts any;
}
"#
);
const LAPTOP: &str = "
users few { member alice, carol; }
client few { users few; service vault at mailhost port 144; }
client others {
  users mail;
  service elsewhere at mailhost port 145;
  service moved at mailhost port 147;
  service gone at mailhost port 148;
}
";

/// Copies what administrators keep of each host to one place.
fn collect(mail: &Mail) -> Outcome {
    collect_to(mail, COPIES)
}

fn collect_to(mail: &Mail, copies: &str) -> Outcome {
    mail.mailhost.run(["rm", "-rf", copies])?;
    for host in [&mail.laptop, &mail.mailhost] {
        let to = Path::new(copies).join(host.name());
        mail.mailhost
            .run(["mkdir".as_ref(), "-p".as_ref(), to.as_os_str()])?;
        for folder in ["policy.d", "users"] {
            let from = host.path(Path::new("/etc/usher").join(folder));
            let copied = std::process::Command::new("cp")
                .arg("-r")
                .args([from, mail.mailhost.path(&to)])
                .status()?;
            assert!(copied.success(), "{copied}");
        }
    }
    Ok(())
}

/// The exit status of a question about a host's policy, and the answer.
fn ask(host: &Host, question: &[&str]) -> Result<(i32, Value), Box<dyn std::error::Error>> {
    answer(host, &[&["policy"], question].concat())
}

/// The exit status and the answer by both policies.
fn explain(
    mail: &Mail,
    user: &str,
    service: &str,
) -> Result<(i32, Value), Box<dyn std::error::Error>> {
    let (user, service) = (format!("{user}@laptop"), format!("{service}@mailhost"));
    ask(
        &mail.mailhost,
        &["explain", &user, &service, "--hosts", COPIES],
    )
}

/// Users of each service who are served, by the analyser; each answer is compared with the daemons'.
fn compare(mail: &Mail) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    collect(mail)?;
    let mut permitted = Vec::new();
    for service in SERVICES {
        let (code, rights) = ask(&mail.mailhost, &["who-can", service, "--hosts", COPIES])?;
        let rights = rights.as_array().ok_or("no list")?.clone();
        assert_eq!(code, i32::from(rights.is_empty()), "{rights:?}");
        for user in USERS {
            let (code, decision) = explain(mail, user, service)?;
            let served = is_served(mail, user, service)?;
            assert_eq!(code, i32::from(!served), "{user} at {service}: {decision}");
            let listed = rights.iter().any(|right| {
                right["client"] == "laptop"
                    && right["server"] == "mailhost"
                    && right["users"]
                        .as_array()
                        .is_some_and(|users| users.contains(&user.into()))
            });
            assert_eq!(listed, served, "{user} at {service}: {rights:?}");
            if served {
                permitted.push(format!("{user} {service}"));
            }
        }
    }
    Ok(permitted)
}

#[test]
fn the_daemons_serve_exactly_the_users_of_the_analyser() -> Outcome {
    let mail = Lab::mail()?;
    let mailhost = &mail.mailhost;
    put_more(&mail, MAILHOST, LAPTOP)?;
    assert_eq!(compare(&mail)?, ["alice imap", "bob imap", "alice vault"]);

    // The reason, and the line that would have to change.
    for (user, service, kind, line) in [
        ("carol", "imap", "user_not_admitted", "service imap: users"),
        ("bob", "vault", "user_not_in_client", "client few: users"),
        (
            "alice",
            "elsewhere",
            "host_not_admitted",
            "service elsewhere: hosts",
        ),
        (
            "alice",
            "moved",
            "port_differs",
            "service moved at mailhost port 147",
        ),
        ("alice", "gone", "no_service", ""),
    ] {
        let (_, decision) = explain(&mail, user, service)?;
        let objections = decision["objections"].as_array().ok_or("no list")?;
        assert_eq!(objections.len(), 1, "{decision}");
        assert_eq!(objections[0]["reason"]["kind"], kind, "{decision}");
        let (user, service) = (format!("{user}@laptop"), format!("{service}@mailhost"));
        let explain = [
            "usher", "policy", "explain", &user, &service, "--hosts", COPIES,
        ];
        let shown = mailhost.command(explain).run()?;
        assert!(shown.stdout.contains(line), "{shown:?}");
    }

    // Both see the changes: a user disabled, a set of users, a host's key taken away.
    mailhost.run(["usher", "user", "disable", "bob"])?;
    assert_eq!(compare(&mail)?, ["alice imap", "alice vault"]);
    mailhost.run(["usher", "user", "enable", "bob"])?;
    mailhost.run(["rm", "/etc/usher/users/alice/authorized_keys"])?;
    mailhost.replace(POLICY, "member alice, bob;", "member alice, bob, carol;")?;
    mailhost.run(["usher", "policy", "apply"])?;
    assert_eq!(compare(&mail)?, ["bob imap", "carol imap"]);
    mailhost.run(["rm", "/etc/usher/policy.d/host-laptop.policy"])?;
    for policy in [POLICY, MORE] {
        mailhost.replace(policy, "hosts laptop;", "hosts any;")?;
    }
    mailhost.run(["usher", "policy", "apply"])?;
    assert_eq!(compare(&mail)?, [""; 0]);
    Ok(())
}

#[test]
fn one_hosts_policy_alone_leaves_the_other_side_unknown() -> Outcome {
    let mail = Lab::mail()?;
    let here = |user: &str| {
        let user = format!("{user}@laptop");
        ask(&mail.mailhost, &["explain", &user, "imap@mailhost"])
    };
    let (code, decision) = here("alice")?;
    assert_eq!(
        (code, &decision["verdict"]),
        (5, &"not_refused_here".into())
    );
    assert_eq!(decision["not_known"], serde_json::json!(["laptop"]));
    let grounds = decision["grounds"].to_string();
    assert!(
        grounds.contains("/etc/usher/policy.d/mail.policy"),
        "{grounds}"
    );
    let (code, decision) = here("carol")?;
    assert_eq!((code, &decision["verdict"]), (1, &"refused".into()));
    let reach = ["usher", "policy", "reach", "carol"];
    let told = mail.laptop.run(reach)?.stdout;
    let row = "laptop  imap@mailhost  143 (the server's policy is not known here)";
    assert!(told.contains(row), "{told}");
    let nothing = mail.mailhost.command(reach).run()?;
    assert_eq!(nothing.status.code(), Some(1), "{nothing:?}");
    assert_eq!(nothing.stdout, "carol cannot use any service\n");
    Ok(())
}

#[test]
fn expectations_are_tried_on_both_hosts_policies() -> Outcome {
    let mail = Lab::mail()?;
    let path = "/etc/usher/policy.d/expect.policy";
    let test = |expected: &str| -> Result<(i32, Value), Box<dyn std::error::Error>> {
        mail.mailhost.write(path, expected)?;
        collect(&mail)?;
        ask(&mail.mailhost, &["test", "--hosts", COPIES])
    };
    let counts = |told: &Value| {
        ["hold", "fail", "not_known"].map(|count| told[count].as_u64().unwrap_or(u64::MAX))
    };
    let good = "expect permit user alice at laptop service imap at mailhost port 143;\n\
                expect permit user bob service imap;\n\
                expect refuse user alice at mailhost service imap;\n";
    let (code, told) = test(good)?;
    assert_eq!((code, counts(&told)), (0, [3, 0, 0]), "{told}");

    // A fault in another host's files.
    mail.laptop
        .replace(POLICY, "member alice, bob, carol;", "member alice, carol;")?;
    let (code, told) = test(good)?;
    assert_eq!((code, counts(&told)), (1, [2, 1, 0]), "{told}");
    let shown = mail
        .mailhost
        .command(["usher", "policy", "test", "--hosts", COPIES])
        .run()?;
    for text in [
        "expect.policy:2:1: fails: expect permit user bob service imap;",
        "bob@laptop is refused at imap@mailhost",
    ] {
        assert!(shown.stdout.contains(text), "{text}: {shown:?}");
    }

    // With one host's policy alone the other one decides; and a test without statements has not passed.
    let alone = mail.mailhost.command(["usher", "policy", "test"]).run()?;
    assert_eq!(alone.status.code(), Some(5), "{alone:?}");
    mail.mailhost.run(["rm", path])?;
    let nothing = mail.mailhost.command(["usher", "policy", "test"]).run()?;
    assert!(
        !nothing.status.success() && nothing.stdout.is_empty(),
        "{nothing:?}"
    );
    assert!(
        nothing.stderr.contains("no `expect` statement"),
        "{nothing:?}"
    );
    Ok(())
}

/// Writes both hosts' policies beside the topology's own and puts them in force.
fn put_more(mail: &Mail, mailhost: &str, laptop: &str) -> Outcome {
    for (host, text) in [(&mail.mailhost, mailhost), (&mail.laptop, laptop)] {
        host.write(MORE, text)?;
    }
    mail.apply()?;
    Ok(())
}

#[test]
fn contradictions_of_two_hosts_are_told_until_they_agree() -> Outcome {
    let mail = Lab::mail()?;
    put_more(&mail, MAILHOST, LAPTOP)?;
    let agree = || -> Result<(i32, Vec<String>), Box<dyn std::error::Error>> {
        collect(&mail)?;
        let (code, told) = ask(&mail.mailhost, &["agree", "--hosts", COPIES])?;
        let told = told.as_array().ok_or("no list")?.iter();
        let texts = told.map(|found| {
            let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
            format!("{}: {}", text("host"), text("text"))
        });
        Ok((code, texts.collect()))
    };
    let (code, mut told) = agree()?;
    told.sort();
    let all = [
        "laptop: `service elsewhere` of mailhost admits no users from laptop",
        "laptop: laptop expects the service at port 147, but it is offered at port 146",
        "laptop: laptop permits carol, whom imap of mailhost does not admit",
        "laptop: laptop permits carol, whom vault of mailhost does not admit",
        "laptop: mailhost offers no service gone",
        "mailhost: vault of mailhost admits bob from laptop, which does not permit it",
    ];
    assert_eq!((code, told), (1, all.map(str::to_owned).to_vec()));

    let mailhost = MAILHOST.replace("hosts mailhost;", "hosts laptop;");
    let laptop = LAPTOP
        .replace("member alice, carol;", "member alice, bob;")
        .replace("port 147;", "port 146;")
        .replace("  service gone at mailhost port 148;\n", "");
    mail.laptop
        .replace(POLICY, "member alice, bob, carol;", "member alice, bob;")?;
    put_more(&mail, &mailhost, &laptop)?;
    assert_eq!(agree()?, (0, Vec::new()));
    let permitted = ["imap", "vault", "elsewhere", "moved"];
    for service in permitted {
        for user in ["alice", "bob"] {
            assert!(is_served(&mail, user, service)?, "{user} {service}");
        }
    }
    Ok(())
}

#[test]
fn the_analysers_gains_and_losses_are_those_of_the_daemons() -> Outcome {
    const FORMER: &str = "/root/former";
    let mail = Lab::mail()?;
    put_more(&mail, MAILHOST, LAPTOP)?;
    collect_to(&mail, FORMER)?;
    const ASKED: [&str; 3] = ["imap", "vault", "elsewhere"];
    let served = || -> Result<Vec<bool>, Box<dyn std::error::Error>> {
        let mut all = Vec::new();
        for service in ASKED {
            for user in USERS {
                all.push(is_served(&mail, user, service)?);
            }
        }
        Ok(all)
    };
    let before = served()?;
    // carol gains vault, bob loses it and imap, elsewhere admits laptop.
    let mailhost = MAILHOST
        .replace("member alice, bob;", "member alice, carol;")
        .replace("hosts mailhost;", "hosts laptop;");
    mail.mailhost
        .replace(POLICY, "member alice, bob;", "member alice;")?;
    put_more(&mail, &mailhost, LAPTOP)?;
    collect(&mail)?;
    let after = served()?;
    let (code, told) = ask(&mail.mailhost, &["diff", FORMER, COPIES])?;
    assert_eq!(code, 1, "{told}");
    let users = |service: &str, list: &str| -> Vec<String> {
        let changes = told.as_array().into_iter().flatten();
        let change = changes.filter(|change| change["service"] == service);
        let users = change.flat_map(|change| change[list].as_array().cloned().unwrap_or_default());
        users
            .filter_map(|user| user.as_str().map(str::to_owned))
            .collect()
    };
    let pairs = ASKED
        .into_iter()
        .flat_map(|service| USERS.map(|user| (service, user)));
    for ((service, user), (before, after)) in pairs.zip(before.into_iter().zip(after)) {
        let found =
            ["gain", "lose"].map(|list| users(service, list).iter().any(|name| name == user));
        assert_eq!(
            found,
            [!before && after, before && !after],
            "{user} {service}: {told}"
        );
    }
    let same = ask(&mail.mailhost, &["diff", COPIES, COPIES])?;
    assert_eq!(same, (0, serde_json::json!([])));
    Ok(())
}

#[test]
fn a_program_whose_traffic_is_treated_otherwise_is_a_difference() -> Outcome {
    let mail = Lab::mail()?;
    collect(&mail)?;
    let governed = "/root/governed";
    mail.mailhost.run(["cp", "-r", COPIES, governed])?;
    let traffic = format!("{governed}/laptop/policy.d/traffic.policy");
    let block = "application ssh, /usr/bin/scp {\n  network 0.0.0.0/0 trusted; }\n";
    mail.mailhost.write(&traffic, block)?;
    let change = |program: &str| {
        let after = ["network 0.0.0.0/0 trusted;"];
        serde_json::json!({"host": "laptop", "program": program, "before": null, "after": after})
    };
    let (code, told) = ask(&mail.mailhost, &["diff", COPIES, governed])?;
    let expected = [change("ssh"), change("/usr/bin/scp")];
    assert_eq!((code, told), (1, expected.into_iter().collect()));
    let diff = ["usher", "policy", "diff", COPIES, governed];
    let told = mail.mailhost.command(diff).run()?.stdout;
    let expected = "traffic of ssh on laptop\n+ network 0.0.0.0/0 trusted;\n";
    assert!(told.starts_with(expected), "{told}");
    Ok(())
}
