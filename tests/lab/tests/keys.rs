//! The services that keys open, and the sessions that end with keys. ssh-keygen makes the keys.

mod reading;
mod users;

use reading::{Outcome, connect, connect_to, is_cut, lives, who};
use serde_json::Value;
use users::{VAULT, add, json, keygen};
use usher_lab::{Host, Lab, Mail, eventual, in_time};

const ALICES: &str = "/etc/usher/users/alice/authorized_keys";

/// The output of `ssh-keygen -l` for a key on a host.
fn fingerprint(host: &Host, path: &str) -> Result<String, Box<dyn std::error::Error>> {
    let shown = host.run(["ssh-keygen", "-l", "-f", path])?.stdout;
    let fingerprint = shown.split(' ').nth(1).ok_or("no fingerprint")?;
    assert!(fingerprint.starts_with("SHA256:"), "{shown}");
    Ok(fingerprint.to_owned())
}

/// The error of a refused connection.
fn refused(mail: &Mail, user: &str) -> Result<String, Box<dyn std::error::Error>> {
    users::refused(mail, user, "mailhost:imap")
}

/// Adds alice's key on mailhost, for a time; gives what is said.
fn admit_for(mail: &Mail, time: &str) -> Result<String, Box<dyn std::error::Error>> {
    let key = mail.laptop.read("/home/alice/.ssh/id_ed25519.pub")?;
    mail.mailhost.write("/root/guest.pub", key)?;
    let options = ["--public-key", "/root/guest.pub", "--expires", time];
    add(&mail.mailhost, "alice", &options)
}

// Threat model: A20
#[test]
fn a_key_is_rotated_and_only_what_the_former_one_opened_is_cut() -> Outcome {
    let mail = Lab::mail()?;
    let former = mail.mailhost.read(ALICES)?;
    let fresh = keygen(&mail.laptop, "fresh")?;
    let (mut by_former, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);

    // The new one is added, the client moved over: nothing ends.
    mail.mailhost.write("/root/fresh.pub", &fresh)?;
    let options = ["--public-key", "/root/fresh.pub"];
    let said = add(&mail.mailhost, "alice", &options)?;
    assert!(!said.contains("ended"), "{said}");
    add(&mail.laptop, "alice", &["--private-key", "/root/fresh"])?;
    let of_former = fingerprint(&mail.laptop, "/home/alice/.ssh/id_ed25519.pub")?;
    let of_fresh = fingerprint(&mail.laptop, "/root/fresh.pub")?;
    // The signer leaves the former key's session aside, after it has answered.
    let mut by_fresh = eventual("a session is by the new one", || {
        let connection = connect(&mail, "alice")?;
        Ok(who(&mail)?.contains(&of_fresh).then_some(connection))
    })?;
    lives(&mut by_former)?;
    let text = mail.mailhost.run(["usher", "who"])?.stdout;
    assert!(
        text.contains(&of_former) && text.contains(&of_fresh),
        "{text}"
    );

    // The former one is removed.
    let list = mail.mailhost.read(ALICES)?;
    assert_eq!(list, format!("{former}{fresh}"));
    mail.mailhost.write(ALICES, &fresh)?;
    let said = mail.mailhost.run(["usher", "policy", "apply"])?.stdout;
    assert_eq!(said.matches("ended: alice").count(), 1, "{said}");
    is_cut(&mut by_former)?;
    lives(&mut by_fresh)?;
    lives(&mut bob)?;
    lives(&mut connect(&mail, "alice")?)?;
    let log = mail.keeper.log()?;
    assert!(log.contains("unknown_key"), "{log}");
    assert!(!who(&mail)?.contains(&of_former));

    // And the fresh one too: nothing is left of alice's.
    mail.mailhost.write(ALICES, &former)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    is_cut(&mut by_fresh)?;
    lives(&mut bob)?;
    let told = refused(&mail, "alice")?;
    assert!(told.contains("did not accept"), "{told}");
    Ok(())
}

#[test]
fn the_next_keeper_ends_sessions_of_a_removed_key() -> Outcome {
    let mut mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    mail.keeper.stop()?;
    let other = keygen(&mail.laptop, "other")?;
    mail.mailhost.write(ALICES, &other)?;
    let applied = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(applied.status.code(), Some(3), "{applied:?}");
    lives(&mut alice)?;
    mail.keeper.start()?;
    is_cut(&mut alice)?;
    lives(&mut bob)
}

// Threat model: A20
#[test]
fn a_guest_is_gone_when_the_keys_time_is_over() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    in_time(|seconds| {
        // The session that there is takes the key's end on.
        let said = admit_for(&mail, &format!("{seconds}s"))?;
        if said.contains("ended: ") {
            admit_for(&mail, "1h")?;
            alice = connect(&mail, "alice")?;
            return Err(said.into());
        }
        Ok(())
    })?;
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    let told = refused(&mail, "alice")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    let (keeper, verifier) = (mail.keeper.log()?, mail.verifier.log()?);
    assert!(keeper.contains("reason=\"expired_key\""), "{keeper}");
    assert!(verifier.contains("expired_key"), "{verifier}");
    let listed = mail.mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("1 (expired)"), "{listed}");

    // Admitted again: no session outlasts the key.
    admit_for(&mail, "1h")?;
    let listed = mail.mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("1 (until 20"), "{listed}");
    let _alice = connect(&mail, "alice")?;
    let users = json(&mail.mailhost, &["user", "list"])?;
    let ends = &users[0]["public_keys"][0]["expires"];
    let sessions = json(&mail.mailhost, &["who"])?["sessions"].take();
    let sessions = sessions.as_array().ok_or("no list")?;
    let of_alice: Vec<&Value> = sessions
        .iter()
        .filter(|session| session["user"] == "alice")
        .collect();
    assert_eq!(of_alice.len(), 1, "{sessions:?}");
    assert_eq!(of_alice[0]["expires"], *ends, "{users}");
    Ok(())
}

#[test]
fn options_of_a_key_mean_what_they_do_for_sshd_or_are_refused() -> Outcome {
    let mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    let key = mail.mailhost.read(ALICES)?;
    let apply = |list: String| {
        mail.mailhost.write(ALICES, list)?;
        let apply = mail.mailhost.command(["usher", "policy", "apply"]);
        apply.environment("TZ", "Asia/Tokyo").run()
    };
    for (options, problem) in [
        (
            "command=\"/bin/true\"",
            "authorized_keys line 1: Usher does not take the option `command`",
        ),
        (
            "from=\"10.0.0.0/8\"",
            "`hosts` in the policy restricts the hosts",
        ),
        (
            "expiry-time=\"tomorrow\"",
            "`tomorrow` is not a time: write expiry-time=",
        ),
        ("no-such-thing", "there is no option `no-such-thing`"),
    ] {
        let output = apply(format!("{options} {key}"))?;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            output.stderr.contains(problem),
            "{options}: {}",
            output.stderr
        );
        lives(&mut alice)?;
    }
    let output = apply(format!("restrict,expiry-time=\"29990101\" {key}"))?;
    assert!(output.status.success(), "{output:?}");
    // Local time, which the daemons do not know.
    let applied = mail.mailhost.read("/var/lib/usher/applied.json")?;
    assert!(
        applied.contains("expiry-time=\\\"29981231150000Z\\\""),
        "{applied}"
    );
    lives(&mut alice)?;
    lives(&mut connect(&mail, "alice")?)
}

// Threat model: A20
#[test]
fn a_revoked_key_ends_its_sessions_at_once_and_opens_no_other() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let key = mail.mailhost.read(ALICES)?;
    mail.mailhost.write("/root/lost.pub", &key)?;
    let list = "/etc/usher/revoked_keys";
    let make = ["ssh-keygen", "-q", "-k", "-f", list, "/root/lost.pub"];
    mail.mailhost.run(make)?;

    // Damaged: nothing changes, and nothing is taken for an empty list.
    mail.mailhost.run([
        "sh",
        "-c",
        &format!("cp {list} /root/krl; truncate -s -1 {list}"),
    ])?;
    let damaged = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(damaged.status.code(), Some(1), "{damaged:?}");
    let said = format!("{list}: the key revocation list is damaged");
    assert!(damaged.stderr.contains(&said), "{damaged:?}");
    lives(&mut alice)?;

    mail.mailhost.run(["cp", "/root/krl", list])?;
    let said = mail.mailhost.run(["usher", "policy", "apply"])?.stdout;
    assert_eq!(said.matches("ended: ").count(), 1, "{said}");
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    let told = refused(&mail, "alice")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    let (keeper, verifier) = (mail.keeper.log()?, mail.verifier.log()?);
    assert!(keeper.contains("revoked_key"), "{keeper}");
    assert!(verifier.contains("revoked_key"), "{verifier}");

    // A damaged one later leaves the good one in force, also what concerns users only.
    mail.mailhost.write(list, "")?;
    let damaged = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(damaged.status.code(), Some(1), "{damaged:?}");
    let lost = ["--public-key", "/root/lost.pub"];
    add(&mail.mailhost, "alice", &lost)?;
    refused(&mail, "alice")?;
    lives(&mut bob)?;

    // The other form: one key a line.
    mail.mailhost.write(list, "# none any more\n")?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let mut alice = connect(&mail, "alice")?;
    mail.mailhost
        .write(list, format!("# lost on a train\n{key}"))?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    is_cut(&mut alice)?;
    refused(&mail, "alice")?;
    lives(&mut bob)
}

const CLIENT: &str =
    "client banking { users mail; service vault at mailhost port 144; key banking; }\n";

// Threat model: A20
#[test]
fn a_key_for_one_purpose_opens_only_that() -> Outcome {
    let mail = Lab::mail()?;
    let (laptop, mailhost) = (&mail.laptop, &mail.mailhost);
    let banking = keygen(&mail.laptop, "banking")?;
    mailhost.write("/root/banking.pub", &banking)?;
    let (vault, client) = (
        "/etc/usher/policy.d/vault.policy",
        "/etc/usher/policy.d/banking.policy",
    );
    mailhost.write(vault, VAULT)?;
    laptop.write(client, CLIENT)?;
    let check = mailhost.command(["usher", "policy", "check"]).run()?;
    let missing = "`service vault` admits alice, who has no public key here for it";
    assert!(check.stderr.contains(missing), "{check:?}");
    mail.apply()?;

    // Neither side has the key: the signer has none to sign with, and does not take another.
    let told = users::refused(&mail, "alice", "mailhost:vault")?;
    assert!(told.contains("knows no key"), "{told}");
    let options = ["--private-key", "/root/banking", "--key", "banking"];
    add(laptop, "alice", &options)?;
    let told = users::refused(&mail, "alice", "mailhost:vault")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    let options = ["--public-key", "/root/banking.pub", "--key", "banking"];
    add(mailhost, "alice", &options)?;
    let list = "/etc/usher/users/alice/authorized_keys.banking";
    assert_eq!(mailhost.read(list)?, banking);
    let mut at_the_vault = connect_to(&mail, "alice", "mailhost:vault")?;
    let mut reading = connect(&mail, "alice")?;
    let listed = mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("1, 1 for banking"), "{listed}");
    let of_banking = fingerprint(laptop, "/root/banking.pub")?;
    let of_nothing = fingerprint(laptop, "/home/alice/.ssh/id_ed25519.pub")?;
    for session in json(&mail.mailhost, &["who"])?["sessions"]
        .as_array()
        .ok_or("no list")?
    {
        let key = if session["service"] == "vault" {
            &of_banking
        } else {
            &of_nothing
        };
        assert_eq!(session["key"], **key, "{session}");
    }

    // The key for banking does not read mail, and the other one opens no vault.
    laptop.write(client, CLIENT.replace("key banking;", ""))?;
    laptop.run(["usher", "policy", "apply"])?;
    lives(&mut at_the_vault)?;
    let told = users::refused(&mail, "alice", "mailhost:vault")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    let verifier = mail.verifier.log()?;
    assert!(verifier.contains("unknown_key"), "{verifier}");
    laptop.write(client, CLIENT)?;
    let policy = "/etc/usher/policy.d/mail.policy";
    let text = laptop.read(policy)?;
    laptop.write(
        policy,
        text.replace("protocol imap;", "protocol imap; key banking;"),
    )?;
    laptop.run(["usher", "policy", "apply"])?;
    lives(&mut connect_to(&mail, "alice", "mailhost:vault")?)?;
    let told = refused(&mail, "alice")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    lives(&mut reading)?;

    // A service demands of open sessions the same as of new ones.
    mailhost.write(vault, VAULT.replace("keys banking;", "keys gold;"))?;
    mailhost.run(["usher", "policy", "apply"])?;
    is_cut(&mut at_the_vault)?;
    lives(&mut reading)?;
    mailhost.write(vault, VAULT)?;
    mailhost.run(["usher", "policy", "apply"])?;
    let mut at_the_vault = connect_to(&mail, "alice", "mailhost:vault")?;
    mailhost.write(list, "")?;
    mailhost.run(["usher", "policy", "apply"])?;
    is_cut(&mut at_the_vault)?;
    lives(&mut reading)
}

#[test]
fn one_key_of_a_user_is_removed_and_the_other_goes_on() -> Outcome {
    let mail = Lab::mail()?;
    let fresh = keygen(&mail.laptop, "fresh")?;
    mail.mailhost.write("/root/fresh.pub", &fresh)?;
    add(
        &mail.mailhost,
        "alice",
        &["--public-key", "/root/fresh.pub"],
    )?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let remove = |option: &str, key: &str| {
        let command = ["usher", "user", "remove", "alice", option, key];
        mail.mailhost.command(command).run()
    };

    let said = remove("--public-key", "/root/alice.pub")?;
    assert!(said.stdout.contains("ended: alice from laptop"), "{said:?}");
    assert_eq!(mail.mailhost.read(ALICES)?, fresh);
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    refused(&mail, "alice")?;
    add(&mail.laptop, "alice", &["--private-key", "/root/fresh"])?;
    let mut alice = connect(&mail, "alice")?;

    // Not hers: nothing changes.
    let of_bob = fingerprint(&mail.mailhost, "/root/bob.pub")?;
    let told = remove("--fingerprint", &of_bob)?;
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(told.stderr.contains("alice has no key SHA256:"), "{told:?}");
    lives(&mut alice)?;
    let of_fresh = fingerprint(&mail.mailhost, "/root/fresh.pub")?;
    let said = remove("--fingerprint", &of_fresh)?;
    let removed = format!("removed: {of_fresh} from {ALICES}\n");
    assert!(said.stdout.contains(&removed), "{said:?}");
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    let wrong = remove("--fingerprint", "fresh")?;
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    Ok(())
}

#[test]
fn users_who_could_not_get_in_are_warned_of() -> Outcome {
    let mail = Lab::mail()?;
    let check = || Ok(mail.mailhost.run(["usher", "policy", "check"])?.stderr);
    let policy = "/etc/usher/policy.d/mail.policy";
    let warned: Result<String, Box<dyn std::error::Error>> = check();
    assert!(!warned?.contains("alice"));
    let revoke = "ssh-keygen -q -k -f /etc/usher/revoked_keys /root/alice.pub";
    mail.mailhost.run(["sh", "-c", revoke])?;
    mail.mailhost
        .replace(policy, "alice, bob;", "alice, bob, dave;")?;
    let warned = check()?;
    for warning in [
        "1:33: dave has no account on this host",
        "admits dave, who has no public key here for it: ",
        "admits alice, who has no valid public key here for it: ",
    ] {
        assert!(warned.contains(warning), "{warning}: {warned}");
    }
    assert!(!warned.contains("bob"), "{warned}");
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let listed = mail.mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("1 (revoked)"), "{listed}");
    Ok(())
}

#[test]
fn keys_are_listed_in_the_order_in_which_they_expire() -> Outcome {
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    host.add_account("alice", 1001)?;
    host.run(["usher", "init", "--name", "one"])?;
    for name in ["soon", "lasting", "stolen", "authority", "own"] {
        keygen(&host, name)?;
    }
    let sign = [
        "ssh-keygen",
        "-q",
        "-s",
        "/root/authority",
        "-I",
        "alice",
        "-n",
        "alice",
    ];
    host.run(sign.iter().chain(&["-V", "-1h:+1d", "/root/own.pub"]))?;
    add(
        &host,
        "alice",
        &["--public-key", "/root/soon.pub", "--expires", "2d"],
    )?;
    add(
        &host,
        "alice",
        &["--public-key", "/root/lasting.pub", "--key", "vault"],
    )?;
    add(&host, "alice", &["--public-key", "/root/stolen.pub"])?;
    let own = [
        "--private-key",
        "/root/own",
        "--certificate",
        "/root/own-cert.pub",
    ];
    add(&host, "alice", &own)?;
    host.run(["cp", "/root/authority.pub", "/etc/usher/user_ca_keys"])?;
    host.run(["cp", "/root/stolen.pub", "/etc/usher/revoked_keys"])?;
    host.run(["usher", "policy", "apply"])?;

    let listed = json(&host, &["key", "list"])?;
    let listed = listed.as_array().ok_or("a list")?.iter();
    let found: Vec<[String; 4]> = listed
        .map(|key| {
            let is_revoked = key["revoked"] == true;
            let end = if is_revoked {
                "revoked".into()
            } else {
                key["expires"].is_u64().to_string()
            };
            let text = |name: &str| key[name].as_str().unwrap_or("-").to_owned();
            [text("fingerprint"), text("kind"), text("purpose"), end]
        })
        .collect();
    let of = |name: &str| fingerprint(&host, &format!("/root/{name}.pub"));
    let wanted = |name: &str,
                  kind: &str,
                  purpose: &str,
                  end: &str|
     -> Result<[String; 4], Box<dyn std::error::Error>> {
        Ok([of(name)?, kind.into(), purpose.into(), end.into()])
    };
    let (mut timed, rest) = (found.clone(), found[2..].to_vec());
    timed.truncate(2);
    let first = [
        wanted("own", "certificate", "-", "true")?,
        wanted("soon", "admits", "-", "true")?,
    ];
    assert_eq!(timed, first);
    let others = [
        wanted("authority", "authority", "-", "false")?,
        wanted("lasting", "admits", "vault", "false")?,
        wanted("own", "signs", "-", "false")?,
        wanted("stolen", "admits", "-", "revoked")?,
    ];
    assert_eq!(rest.len(), others.len(), "{rest:?}");
    for one in others {
        assert!(rest.contains(&one), "{one:?} in {rest:?}");
    }

    // Only root may read what the signer has.
    let output = host.run_as("alice", ["usher", "key", "list"])?;
    assert!(output.stderr.contains("only root"), "{output:?}");
    assert!(
        output.stdout.contains(&of("soon")?) && !output.stdout.contains(&of("own")?),
        "{output:?}"
    );
    Ok(())
}
