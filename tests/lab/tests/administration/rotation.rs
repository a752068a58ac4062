//! A host replaces its key while connections stay open and new ones are served.

use usher_lab::{Daemon, Host, Lab, Mail, eventually};

use super::{OTHER_KEY, Outcome, connect, is_cut, lives, refused};
use crate::users::{answer, json, recent};

const KEY: &str = "/etc/usher/host_key";
const FORMER: &str = "/root/former_key";
const NEXT: &str = "/root/next_key";

/// A public key as a policy has it, without a comment.
fn line(host: &Host, file: &str) -> Result<String, Box<dyn std::error::Error>> {
    let line = host.read(format!("{file}.pub"))?;
    let words: Vec<&str> = line.split_whitespace().take(2).collect();
    Ok(format!("\"{}\"", words.join(" ")))
}

/// Writes other keys of a host into a policy and puts that in force. No session ends.
fn exchange(on: &Host, keys: &str, others: &str) -> Outcome {
    write(on, keys, others)?;
    let told = json(on, &["policy", "apply"])?;
    assert_eq!(told["ended"].as_array().map(Vec::len), Some(0), "{told}");
    Ok(())
}

fn write(on: &Host, keys: &str, others: &str) -> Outcome {
    let files = on
        .run(["grep", "-rlF", keys, "/etc/usher/policy.d"])?
        .stdout;
    assert!(!files.is_empty(), "no {keys} on {}", on.name());
    for file in files.lines() {
        on.replace(file, &format!("key {keys};"), &format!("key {others};"))?;
    }
    Ok(())
}

/// Has a host use another key, from its daemons' next start on.
fn put_in_place(host: &Host, key: &str) -> Outcome {
    for end in ["", ".pub"] {
        host.run(["cp", &format!("{key}{end}"), &format!("{KEY}{end}")])?;
    }
    Ok(())
}

/// Like `systemctl restart` of several units: all stop before the first one starts.
fn restart<const COUNT: usize>(mut daemons: [&mut Daemon; COUNT]) -> Outcome {
    for daemon in daemons.iter_mut().rev() {
        daemon.end()?;
    }
    for daemon in daemons {
        daemon.start()?;
    }
    Ok(())
}

/// A host of a topology that replaces its key.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Server,
    Client,
}

impl Side {
    fn host(self, mail: &Mail) -> Host {
        match self {
            Self::Server => mail.mailhost.clone(),
            Self::Client => mail.laptop.clone(),
        }
    }

    /// Restarts the daemons that use the key.
    fn restart(self, mail: &mut Mail) -> Outcome {
        match self {
            Self::Server => restart([&mut mail.keeper, &mut mail.verifier]),
            Self::Client => restart([&mut mail.signer, &mut mail.courier]),
        }
    }
}

/// Keeps the present key beside a fresh one. Returns both as a policy has them.
fn prepare(host: &Host) -> Result<(String, String), Box<dyn std::error::Error>> {
    host.make_key(NEXT)?;
    for end in ["", ".pub"] {
        host.run(["cp", &format!("{KEY}{end}"), &format!("{FORMER}{end}")])?;
    }
    Ok((line(host, FORMER)?, line(host, NEXT)?))
}

/// All connections so far, and a new one, are served, and no session has ended.
fn all_served(mail: &Mail, open: &mut Vec<usher_lab::Running>) -> Outcome {
    open.push(connect(mail, "alice")?);
    for connection in open {
        lives(connection)?;
    }
    assert_eq!(recent(mail)?, []);
    Ok(())
}

fn replaces_its_key(side: Side) -> Outcome {
    let mut mail = Lab::mail()?;
    let host = side.host(&mail);
    let (former, next) = prepare(&host)?;
    let both = format!("{former}, {next}");
    let hosts = [mail.mailhost.clone(), mail.laptop.clone()];
    let mut open = Vec::new();
    all_served(&mail, &mut open)?;
    // The second key is added here and there.
    for on in &hosts {
        exchange(on, &former, &both)?;
        all_served(&mail, &mut open)?;
    }
    // The host begins to use it.
    put_in_place(&host, NEXT)?;
    side.restart(&mut mail)?;
    all_served(&mail, &mut open)?;
    // A keeper that starts between the steps ends nothing either.
    mail.keeper.restart()?;
    all_served(&mail, &mut open)?;
    // The former one is removed, here while no keeper runs.
    exchange(&mail.laptop, &both, &next)?;
    all_served(&mail, &mut open)?;
    mail.keeper.end()?;
    write(&mail.mailhost, &both, &next)?;
    let applied = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(applied.status.code(), Some(3), "{applied:?}");
    mail.keeper.start()?;
    all_served(&mail, &mut open)?;
    // The same sessions; and another one, on a channel by the new key.
    mail.signer.restart()?;
    all_served(&mail, &mut open)?;

    // The former key is refused now, and the new one again served. Bob has no session yet, by whose tokens he
    // would be served.
    put_in_place(&host, FORMER)?;
    side.restart(&mut mail)?;
    refused(&mail, "bob", "mailhost:imap")?;
    put_in_place(&host, NEXT)?;
    side.restart(&mut mail)?;
    all_served(&mail, &mut open)?;
    lives(&mut connect(&mail, "bob")?)
}

// Threat model: A174
#[test]
fn a_server_replaces_its_key_and_no_session_ends() -> Outcome {
    replaces_its_key(Side::Server)
}

// Threat model: A174
#[test]
fn a_client_host_replaces_its_key_and_no_session_ends() -> Outcome {
    replaces_its_key(Side::Client)
}

/// The number of control channels of mailhost.
fn channels(mail: &Mail) -> Result<u64, Box<dyn std::error::Error>> {
    let (_, doctor) = answer(&mail.mailhost, &["doctor"])?;
    let text = doctor.to_string();
    let number = text.split("\"channels\":").nth(1).ok_or(text.clone())?;
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    Ok(digits.parse()?)
}

// Threat model: A174
#[test]
fn a_removed_key_ends_the_channels_by_it_and_only_these() -> Outcome {
    let mut mail = Lab::mail()?;
    let (former, next) = prepare(&mail.laptop)?;
    let both = format!("{former}, {next}");
    let (mailhost, laptop) = (mail.mailhost.clone(), mail.laptop.clone());
    let mut alice = connect(&mail, "alice")?;
    assert_eq!(channels(&mail)?, 1);
    exchange(&mailhost, &former, &both)?;
    assert_eq!(channels(&mail)?, 1);
    // Laptop still uses it.
    exchange(&mailhost, &both, &next)?;
    eventually("the channel is closed", || Ok(channels(&mail)? == 0))?;
    refused(&mail, "bob", "mailhost:imap")?;
    // The session is the host's, whatever key it uses.
    lives(&mut alice)?;
    exchange(&laptop, &former, &both)?;
    put_in_place(&laptop, NEXT)?;
    Side::Client.restart(&mut mail)?;
    lives(&mut connect(&mail, "bob")?)?;
    assert_eq!(channels(&mail)?, 1);
    // The key of the channel stays when another one is added and removed.
    exchange(&mailhost, &next, &format!("{next}, {OTHER}"))?;
    exchange(&mailhost, &format!("{next}, {OTHER}"), &next)?;
    assert_eq!(channels(&mail)?, 1);
    lives(&mut alice)?;

    // In one step it is another host: all of its sessions end.
    write(&mailhost, &next, OTHER)?;
    let told = json(&mailhost, &["policy", "apply"])?;
    assert!(
        told["ended"].as_array().is_some_and(|all| !all.is_empty()),
        "{told}"
    );
    is_cut(&mut alice)
}

/// [`OTHER_KEY`] as a policy has it.
const OTHER: &str = concat!(
    "\"ssh-ed25519 ",
    "AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t",
    "\""
);

// Threat model: A174
#[test]
fn a_key_that_is_not_of_the_hosts_block_is_refused() -> Outcome {
    assert_eq!(OTHER.trim_matches('"'), OTHER_KEY);
    for side in [Side::Server, Side::Client] {
        let mut mail = Lab::mail()?;
        let host = side.host(&mail);
        let (former, next) = prepare(&host)?;
        let both = format!("{former}, {next}");
        let hosts = [mail.mailhost.clone(), mail.laptop.clone()];
        for on in &hosts {
            exchange(on, &former, &both)?;
        }
        lives(&mut connect(&mail, "alice")?)?;
        // A third key, and one that stands for another host.
        host.make_key("/root/third_key")?;
        let third = line(&host, "/root/third_key")?;
        put_in_place(&host, "/root/third_key")?;
        side.restart(&mut mail)?;
        refused(&mail, "bob", "mailhost:imap")?;
        let other = format!("host other {{ address 10.77.0.9; key {third}; }}\n");
        for on in &hosts {
            on.write("/etc/usher/policy.d/other.policy", &other)?;
            on.run(["usher", "policy", "apply"])?;
        }
        refused(&mail, "bob", "mailhost:imap")?;
        // The twin.
        put_in_place(&host, NEXT)?;
        side.restart(&mut mail)?;
        lives(&mut connect(&mail, "bob")?)?;

        // No policy has three, one twice, or another host's.
        for wrong in [
            format!("{both}, {OTHER}"),
            format!("{former}, {former}"),
            format!("{former}, {third}"),
        ] {
            write(&hosts[0], &both, &wrong)?;
            let refused = hosts[0].command(["usher", "policy", "apply"]).run()?;
            assert_eq!(refused.status.code(), Some(1), "{wrong}: {refused:?}");
            write(&hosts[0], &wrong, &both)?;
        }
    }
    Ok(())
}

// Threat model: A174
#[test]
fn a_next_host_key_is_used_only_if_the_policy_has_it_for_this_host() -> Outcome {
    let mut mail = Lab::mail()?;
    let (host, laptop) = (mail.mailhost.clone(), mail.laptop.clone());
    let mut alice = connect(&mail, "alice")?;
    let former = line(&host, KEY)?;
    let told = |words: [&str; 2], why: &str| -> Outcome {
        let before = host.read(KEY)?;
        let refused = host
            .command(["usher", "host"].iter().chain(&words[..1]))
            .run()?;
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
        assert_eq!(host.read(KEY)?, before);
        Ok(())
    };
    let refuses = |command: &str, why: &str| told([command, ""], why);
    refuses("use-key", "`usher host new-key` makes one")?;
    refuses("forget-key", "there is no former host key")?;
    let made = json(&host, &["host", "new-key"])?;
    let again = json(&host, &["host", "new-key"])?;
    assert_eq!(again["next_key"], made["next_key"]);
    assert_eq!(
        (&made["made_now"], &again["made_now"]),
        (&true.into(), &false.into())
    );
    let next = line(&host, "/etc/usher/next_host_key")?;
    let statement = made["statement"].as_str().ok_or("no statement")?;
    assert_eq!(statement, format!("key {former}, {next};"));
    refuses(
        "use-key",
        "does not have the next key in the block of mailhost: add \"ssh-",
    )?;
    // Another host's block.
    let other = "/etc/usher/policy.d/other.policy";
    host.write(
        other,
        format!("host other {{ address 10.77.0.9; key {next}; }}\n"),
    )?;
    host.run(["usher", "policy", "apply"])?;
    refuses(
        "use-key",
        "in the block of other, and this host is mailhost",
    )?;
    host.run(["rm", other])?;
    let both = format!("{former}, {next}");
    for on in [&host, &laptop] {
        exchange(on, &former, &both)?;
    }

    // A run that was interrupted between the private key and the public one.
    let former_key = "/etc/usher/former_host_key";
    host.run(["cp", "--preserve=all", KEY, former_key])?;
    host.run(["cp", "/etc/usher/next_host_key", KEY])?;
    let doctor = || host.command(["usher", "doctor"]).run();
    let told = doctor()?.stdout;
    assert!(
        told.contains("MISSING  host key: ") && told.contains("use-key` again"),
        "{told}"
    );
    refuses("new-key", "was interrupted: run it again")?;
    let used = json(&host, &["host", "use-key"])?;
    let units = serde_json::json!(["usher-keeper", "usher-verifier"]);
    assert_eq!(used["restart"], units, "{used}");
    let told = doctor()?.stdout;
    assert!(told.contains("ok       host key: "), "{told}");
    assert_eq!(line(&host, KEY)?, next);
    assert_eq!(line(&host, former_key)?, former);
    for key in [KEY, former_key] {
        let mode = host.run(["stat", "--format", "%a %U", key])?;
        assert_eq!(mode.stdout.trim(), "600 root", "{key}");
    }
    refuses("use-key", "there is no next host key")?;
    Side::Server.restart(&mut mail)?;
    lives(&mut alice)?;
    lives(&mut connect(&mail, "bob")?)?;
    assert_eq!(recent(&mail)?, []);

    refuses(
        "forget-key",
        "still has the former key in the block of mailhost",
    )?;
    for on in [&laptop, &host] {
        exchange(on, &both, &next)?;
    }
    host.run(["usher", "host", "forget-key"])?;
    assert!(!host.path(former_key).exists());
    lives(&mut alice)?;
    lives(&mut connect(&mail, "bob")?)
}
