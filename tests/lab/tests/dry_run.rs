//! `usher policy apply --dry-run`: what it says of live connections is what the apply then does.

mod reading;
mod users;

use std::collections::BTreeSet;

use reading::{Outcome, connect, connect_to, is_cut, lives};
use serde_json::Value;
use users::{answer, json, refused};
use usher_lab::{Host, Lab, Mail, Output, PATIENCE, Running, Signal};

const POLICY: &str = "/etc/usher/policy.d/mail.policy";
const VAULT: &str = "/etc/usher/policy.d/vault.policy";
const APPLIED: &str = "/var/lib/usher/applied.json";

/// A second service on mailhost, and that laptop uses it.
const SECOND_SERVICE: &str = concat!(
    r#"service vault {
  program "#,
    usher_lab::imap!(),
    r#";
  listen 144; style connection; users mail; hosts laptop;
}
"#
);
const SECOND_CLIENT: &str = "client vault { users mail; service vault at mailhost port 144; }\n";

fn two_services() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    mail.mailhost.write(VAULT, SECOND_SERVICE)?;
    mail.laptop.write(VAULT, SECOND_CLIENT)?;
    mail.apply()?;
    Ok(mail)
}

/// The output in words.
fn dry_run(host: &Host) -> Result<Output, Box<dyn std::error::Error>> {
    let ask = ["usher", "policy", "apply", "--dry-run"];
    Ok(host.command(ask).run()?)
}

/// Exit status and answer.
fn forecast(host: &Host) -> Result<(i32, Value), Box<dyn std::error::Error>> {
    answer(host, &["policy", "apply", "--dry-run"])
}

/// The ending sessions, sorted: user, host, service, reason, session and the addresses of its
/// connections.
fn ending(list: &Value) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let list = list.as_array().ok_or_else(|| format!("no list: {list}"))?;
    let mut ending: Vec<String> = list
        .iter()
        .map(|ended| {
            let members = ["user", "host", "service", "reason", "session"];
            let mut words: Vec<&str> = Vec::new();
            for member in members {
                words.push(ended[member].as_str().ok_or("a member is missing")?);
            }
            let connections = ended["connections"].as_array().ok_or("no connections")?;
            let ends = ["client", "server"];
            let addresses: BTreeSet<String> = connections
                .iter()
                .map(|connection| ends.map(|end| connection[end].to_string()).join(" to "))
                .collect();
            Ok(format!("{} {addresses:?}", words.join(" ")))
        })
        .collect::<Result<_, Box<dyn std::error::Error>>>()?;
    ending.sort();
    Ok(ending)
}

/// The same of the live sessions of mailhost.
fn live(mail: &Mail, user: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut who = json(&mail.mailhost, &["who"])?;
    let sessions = who["sessions"].as_array_mut().ok_or("no sessions")?;
    sessions.retain(|session| session["user"] == user);
    for session in sessions.iter_mut() {
        session["reason"] = "-".into();
    }
    ending(&who["sessions"])
}

/// Writes a change on mailhost, and returns what the dry run reports. Checks that the dry run
/// changes nothing, and that the change, put in force, ends exactly what it reported.
fn comes_true(
    mail: &Mail,
    change: &str,
    expected: &[&str],
) -> Result<Value, Box<dyn std::error::Error>> {
    let before = mail.mailhost.read(APPLIED)?;
    let had = [live(mail, "alice")?, live(mail, "bob")?];
    mail.mailhost.run(["sh", "-e", "-c", change])?;
    let (code, told) = forecast(&mail.mailhost)?;
    let would_end = ending(&told["would_end"])?;
    let matched = would_end.len() == expected.len()
        && would_end
            .iter()
            .zip(expected)
            .all(|(ended, start)| ended.starts_with(start));
    assert!(matched, "{change}: {would_end:#?}, not {expected:#?}");
    assert_eq!(code, 1, "{change}: {told}");
    for ended in &would_end {
        assert!(ended.contains(" to "), "without its connection: {ended}");
    }
    assert_eq!(mail.mailhost.read(APPLIED)?, before);
    assert_eq!([live(mail, "alice")?, live(mail, "bob")?], had);

    let applied = json(&mail.mailhost, &["policy", "apply"])?;
    assert_eq!(ending(&applied["ended"])?, would_end, "{change}");
    // Nothing is left to be done.
    let (code, again) = forecast(&mail.mailhost)?;
    assert_eq!(
        (code, &again["differs"]),
        (0, &serde_json::json!([])),
        "{again}"
    );
    Ok(told)
}

#[test]
fn a_dry_run_names_exactly_what_the_apply_ends() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let before = mail.mailhost.read(APPLIED)?;
    let (code, told) = forecast(&mail.mailhost)?;
    assert_eq!(code, 0, "{told}");
    for nothing in ["differs", "changes", "would_end"] {
        assert_eq!(told[nothing], serde_json::json!([]), "{told}");
    }

    mail.mailhost
        .replace(POLICY, "member alice, bob;", "member alice;")?;
    let shown = dry_run(&mail.mailhost)?;
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    for line in [
        "differs from the configuration in force: /etc/usher/policy.d/mail.policy\n",
        "imap@mailhost from laptop (the client's policy is not known here)\n- lose: bob\n",
        "would end: bob from laptop at imap, 1 connection(s): ",
        "nothing has changed: configuration ",
    ] {
        assert!(shown.stdout.contains(line), "{line}: {shown:?}");
    }
    assert!(!shown.stdout.contains("alice"), "{shown:?}");
    // Addresses as `usher who` has them.
    let of_bob = live(&mail, "bob")?;
    let address = of_bob[0].split('"').nth(2).ok_or("no address")?;
    let address = address.trim_end_matches('\\');
    assert!(
        shown.stdout.contains(&format!("    {address} to ")),
        "{of_bob:?}: {shown:?}"
    );
    assert_eq!(mail.mailhost.read(APPLIED)?, before);
    lives(&mut bob)?;

    let told = comes_true(&mail, "true", &["bob laptop imap "])?;
    assert_eq!(told["changes"][0]["lose"], serde_json::json!(["bob"]));
    is_cut(&mut bob)?;
    lives(&mut alice)
}

/// Ends what a change ends, and nothing else.
struct Readers {
    mailbox: Running,
    vault: Running,
    bob: Running,
}

impl Readers {
    fn connect(mail: &Mail) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(Self {
            mailbox: connect(mail, "alice")?,
            vault: connect_to(mail, "alice", "mailhost:vault")?,
            bob: connect(mail, "bob")?,
        })
    }

    /// The ones that the change has cut; the others are answered.
    fn are(&mut self, cut: [bool; 3]) -> Outcome {
        let readers = [&mut self.mailbox, &mut self.vault, &mut self.bob];
        for (reader, cut) in readers.into_iter().zip(cut) {
            if cut { is_cut(reader)? } else { lives(reader)? }
        }
        Ok(())
    }
}

#[test]
fn whatever_a_change_is_of_the_dry_run_tells_what_it_ends() -> Outcome {
    let mail = two_services()?;
    let restore = "rm -rf /etc/usher/users /etc/usher/policy.d /etc/usher/revoked_keys; \
                   cp -r /root/users /root/policy.d /etc/usher; usher policy apply";
    let keep = "cp -r /etc/usher/users /etc/usher/policy.d /root";
    mail.mailhost.run(["sh", "-e", "-c", keep])?;
    let alice = "alice laptop imap unknown_user";
    for (change, expected, cut) in [
        // A service is removed: the report has its name.
        (
            "rm /etc/usher/policy.d/vault.policy",
            &["alice laptop vault unknown_service"][..],
            [false, true, false],
        ),
        // Its hosts.
        (
            "sed -i 's/hosts laptop;/hosts mailhost;/' /etc/usher/policy.d/vault.policy",
            &["alice laptop vault host_not_permitted"],
            [false, true, false],
        ),
        // A host is removed.
        (
            "rm /etc/usher/policy.d/host-laptop.policy; \
             sed -i 's/hosts laptop;/hosts any;/' /etc/usher/policy.d/*",
            &[
                "alice laptop imap host_not_permitted",
                "alice laptop vault host_not_permitted",
                "bob laptop imap host_not_permitted",
            ],
            [true, true, true],
        ),
        // The keys that a service accepts.
        (
            "sed -i 's/listen 144;/listen 144; keys banking;/' /etc/usher/policy.d/vault.policy",
            &["alice laptop vault unknown_key"],
            [false, true, false],
        ),
        // Keys, and who is disabled, below the folder of users.
        (
            "rm /etc/usher/users/alice/authorized_keys",
            &[alice, "alice laptop vault unknown_user"],
            [true, true, false],
        ),
        (
            "echo left >/etc/usher/users/bob/disabled",
            &["bob laptop imap disabled_user"],
            [false, false, true],
        ),
        (
            "cp /etc/usher/users/bob/authorized_keys /etc/usher/revoked_keys",
            &["bob laptop imap revoked_key"],
            [false, false, true],
        ),
    ] {
        let mut readers = Readers::connect(&mail)?;
        comes_true(&mail, change, expected).map_err(|error| format!("{change}: {error}"))?;
        readers.are(cut)?;
        mail.mailhost.run(["sh", "-e", "-c", restore])?;
        drop(readers);
    }
    Ok(())
}

#[test]
fn a_candidate_with_mistakes_is_refused_as_by_an_apply() -> Outcome {
    let mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    let before = mail.mailhost.read(APPLIED)?;
    let broken = "/etc/usher/policy.d/broken.policy";
    for (path, text, problem) in [
        (broken, "service x { lissten 5; }\n", "broken.policy:1:13:"),
        (
            broken,
            "mac Absent { default low; }\n",
            "no module can be called `Absent`",
        ),
        (
            "/etc/usher/users/bob/authorized_keys",
            "nonsense\n",
            "bob: authorized_keys line 1: ",
        ),
    ] {
        let kept = mail.mailhost.read(path).ok();
        mail.mailhost.write(path, text)?;
        let dry = dry_run(&mail.mailhost)?;
        assert_eq!(dry.status.code(), Some(2), "{dry:?}");
        assert!(
            dry.stderr.contains(problem) && dry.stdout.is_empty(),
            "{dry:?}"
        );
        let wet = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
        assert_eq!(wet.status.code(), Some(1), "{wet:?}");
        assert!(wet.stderr.contains(problem), "{wet:?}");
        match kept {
            Some(kept) => mail.mailhost.write(path, kept)?,
            None => drop(mail.mailhost.run(["rm", path])?),
        }
    }
    let of_alice = mail
        .mailhost
        .command(["usher", "policy", "apply", "--dry-run"])
        .user("alice")
        .run()?;
    assert_eq!(of_alice.status.code(), Some(4), "{of_alice:?}");
    assert!(of_alice.stderr.contains("run this as root"), "{of_alice:?}");
    assert_eq!(mail.mailhost.read(APPLIED)?, before);
    let (code, told) = forecast(&mail.mailhost)?;
    assert_eq!(code, 0, "{told}");
    lives(&mut alice)
}

#[test]
fn without_a_keeper_a_dry_run_does_not_know_the_endings() -> Outcome {
    let mut mail = Lab::mail()?;
    let mut bob = connect(&mail, "bob")?;
    mail.keeper.kill(Signal::KILL)?;
    mail.keeper.wait(PATIENCE)?;
    let (code, told) = forecast(&mail.mailhost)?;
    assert_eq!((code, &told["would_end"]), (5, &Value::Null), "{told}");
    assert_eq!(told["keeper_runs"], false);
    mail.mailhost
        .replace(POLICY, "member alice, bob;", "member alice;")?;
    let shown = dry_run(&mail.mailhost)?;
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    for line in [
        "- lose: bob\n",
        "cannot tell which live connections would end: the keeper does not run on this host",
    ] {
        assert!(shown.stdout.contains(line), "{line}: {shown:?}");
    }
    lives(&mut bob)?;
    mail.keeper.start()?;
    comes_true(&mail, "true", &["bob laptop imap "])?;
    is_cut(&mut bob)?;

    // A host of users only never had a keeper, and its applies end nothing.
    let mut alice = connect(&mail, "alice")?;
    let (code, told) = forecast(&mail.laptop)?;
    assert_eq!(
        (code, &told["would_end"]),
        (0, &serde_json::json!([])),
        "{told}"
    );
    mail.laptop
        .replace(POLICY, "member alice, bob, carol;", "member bob, carol;")?;
    let shown = dry_run(&mail.laptop)?;
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    for line in [
        "imap@mailhost from laptop (the server's policy is not known here)\n- lose: alice\n",
        "this host does not end the connections of its users to other hosts\n",
        "no keeper has run on this host",
    ] {
        assert!(shown.stdout.contains(line), "{line}: {shown:?}");
    }
    let said = mail.laptop.run(["usher", "policy", "apply"])?.stdout;
    assert!(!said.contains("ended"), "{said}");
    lives(&mut alice)?;
    refused(&mail, "alice", "mailhost:imap")?;
    Ok(())
}

/// Sends bytes to the keeper's control socket, and gives what it answers.
fn send(host: &Host, user: &str, expression: &str) -> Result<Output, Box<dyn std::error::Error>> {
    let program = format!(
        "import json, socket, sys\n\
         s = socket.socket(socket.AF_UNIX)\n\
         s.connect('/run/usher/keeper/control.sock')\n\
         try:\n\
         \x20 s.sendall({expression})\n\
         \x20 s.shutdown(socket.SHUT_WR)\n\
         except BrokenPipeError: pass\n\
         sys.stdout.write(s.makefile().read())\n"
    );
    Ok(host.command(["python3", "-c", &program]).user(user).run()?)
}

#[test]
fn the_keeper_accepts_a_candidate_only_from_root_and_whole() -> Outcome {
    let mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    let ask = |candidate: &str| {
        let of = format!(
            "(lambda c: json.dumps({{'request': 'would_end', 'bytes': len(c)}}).encode() + b'\\n' \
             + c)({candidate})"
        );
        send(&mail.mailhost, "root", &of)
    };
    let applied = "open('/var/lib/usher/applied.json', 'rb').read()";
    let nothing = r#"{"answer":"done","ended":[]}"#;
    assert_eq!(ask(applied)?.stdout.trim(), nothing);
    // Several megabytes, of which the line's packet has none or some.
    for padding in [1, 4000, 5_000_000] {
        let padded = format!("{applied} + b' ' * {padding}");
        assert_eq!(ask(&padded)?.stdout.trim(), nothing, "{padding}");
    }
    // An empty configuration permits nobody.
    let empty = ask(r#"b'{"generation":0,"sources":[],"users":{}}'"#)?.stdout;
    assert!(empty.contains(r#""user":"alice""#), "{empty}");
    for (candidate, problem) in [
        ("b'nonsense'", "not a configuration"),
        ("b''", "not a configuration"),
        (
            r#"b'{"generation":0,"sources":[{"name":"x","text":"nonsense"}],"users":{}}'"#,
            "the policy has 1 error(s)",
        ),
    ] {
        let told = ask(candidate)?.stdout;
        assert!(told.contains(r#""answer":"failed""#), "{told}");
        assert!(told.contains(problem), "{told}");
    }
    let large = r#"b'{"request":"would_end","bytes":67108865}\n'"#;
    let told = send(&mail.mailhost, "root", large)?.stdout;
    assert!(told.contains("more than 67108864 bytes"), "{told}");
    // Less than was said: heard and not answered, and no harm.
    let short = r#"b'{"request":"would_end","bytes":10}\n{}'"#;
    assert_eq!(send(&mail.mailhost, "root", short)?.stdout, "\n");
    let of_alice = send(&mail.mailhost, "alice", r#"b'{"request":"status"}\n'"#)?;
    assert!(of_alice.stderr.contains("PermissionError"), "{of_alice:?}");
    lives(&mut alice)?;
    lives(&mut connect(&mail, "bob")?)
}
