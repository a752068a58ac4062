//! Certificates admit their user.

use crate::agent;
use crate::attack::{Attack, Result};
use crate::authority::{AUTHORITIES, apply, certified, certify, certify_user, give, recent};
use crate::reading::{connect, connect_to, is_cut, lives, who};
use crate::users::{VAULT, add, keygen, refused};
use usher_lab::{Host, eventual};
use usher_proto::{Authenticator, Certificate, Refusal};

const ALICES: &str = "/etc/usher/users/alice/authorized_keys";
const CLIENT: &str = "client banking { users mail; service vault at mailhost port 144; }\n";

fn read_certificate(laptop: &Host, path: &str) -> Result<Certificate> {
    Ok(Certificate::parse(&laptop.read(path)?)?)
}

/// An authenticator with other bytes in the place of the key: as somebody makes it who does not
/// look at what he puts there.
fn with_key(authenticator: &Authenticator, key: &[u8]) -> Authenticator {
    let blob = &authenticator.signature;
    let (head, rest) = blob.split_at(10);
    let former = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
    let length = u32::try_from(key.len()).unwrap().to_be_bytes();
    Authenticator {
        statement: authenticator.statement.clone(),
        signature: [head, &length, key, &rest[4 + former..]].concat(),
    }
}

// Threat model: A22
#[test]
fn only_a_valid_trusted_certificate_lets_its_user_in() -> Result {
    let attack = Attack::new()?;
    let (laptop, mailhost) = (&attack.mail.laptop, &attack.mail.mailhost);
    let authority = keygen(laptop, "ca")?;
    keygen(laptop, "other")?;
    mailhost.write(AUTHORITIES, format!("# the house's\n{authority}"))?;
    mailhost.run(["rm", "-r", "/etc/usher/users/alice"])?;
    apply(&attack.mail)?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let plain = attack.asked("alice")?.sign(&key)?;
    let what = "the key without a certificate";
    attack.refused(&mut channel, what, &plain, Refusal::UnknownUser)?;

    let hour = ["-I", "alice", "-n", "alice", "-V", "-1m:+1h"];
    let more = |options: &[&'static str]| [&hour[..], options].concat();
    let cases: [(&str, &str, Vec<&str>, Refusal); 9] = [
        (
            "another authority",
            "other",
            hour.to_vec(),
            Refusal::UnknownAuthority,
        ),
        (
            "another principal",
            "ca",
            vec!["-I", "alice", "-n", "bob,alice2", "-V", "-1m:+1h"],
            Refusal::WrongPrincipal,
        ),
        (
            "no principal",
            "ca",
            vec!["-I", "alice", "-V", "-1m:+1h"],
            Refusal::WrongPrincipal,
        ),
        (
            "one that is not valid yet",
            "ca",
            vec!["-I", "alice", "-n", "alice", "-V", "+1h:+2h"],
            Refusal::CertificateNotYetValid,
        ),
        (
            "one that has expired",
            "ca",
            vec!["-I", "alice", "-n", "alice", "-V", "-2h:-1h"],
            Refusal::ExpiredCertificate,
        ),
        (
            "one for hosts",
            "ca",
            more(&["-h"]),
            Refusal::NotAUserCertificate,
        ),
        (
            "from some addresses",
            "ca",
            more(&["-O", "source-address=0.0.0.0/0"]),
            Refusal::CriticalOption,
        ),
        (
            "for one command",
            "ca",
            more(&["-O", "force-command=/bin/true"]),
            Refusal::CriticalOption,
        ),
        (
            "an option that nobody knows",
            "ca",
            more(&["-O", "critical:new@example.org=x"]),
            Refusal::CriticalOption,
        ),
    ];
    for (what, authority, options, reason) in cases {
        let path = certify(laptop, authority, "alice", &options)?;
        let certificate = read_certificate(laptop, &path)?;
        let signed = attack.asked("alice")?.sign(&key)?;
        let signed = signed.with_certificate(&certificate)?;
        attack.refused(&mut channel, what, &signed, reason)?;
    }

    let path = certify(laptop, "ca", "alice", &more(&["-O", "no-pty"]))?;
    let good = read_certificate(laptop, &path)?;
    let signed = |user: &str| -> Result<Authenticator> {
        Ok(attack.asked(user)?.sign(&key)?.with_certificate(&good)?)
    };
    let bobs = read_certificate(laptop, &certify_user(laptop, "bob", "1")?)?;
    let of_bob = with_key(&signed("alice")?, bobs.as_bytes());
    let mut forged = good.as_bytes().to_vec();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    let mut renamed = good.as_bytes().to_vec();
    let name = renamed.windows(5).rposition(|part| part == b"alice");
    renamed[name.ok_or("no principal")?] = b'm';
    for (what, authenticator, reason) in [
        (
            "a certificate for another key",
            of_bob,
            Refusal::BadSignature,
        ),
        (
            "one whose signature was changed",
            with_key(&signed("alice")?, &forged),
            Refusal::BadSignature,
        ),
        (
            "one whose principal was changed",
            with_key(&signed("malice")?, &renamed),
            Refusal::BadSignature,
        ),
        (
            "half of one",
            with_key(&signed("alice")?, &forged[..last / 2]),
            Refusal::Truncated,
        ),
        (
            "alice's in bob's name",
            signed("bob")?,
            Refusal::WrongPrincipal,
        ),
    ] {
        attack.refused(&mut channel, what, &authenticator, reason)?;
    }

    let port = attack.port()?;
    let mut asked = attack.asked("alice")?;
    let first = attack.announcement(&mut asked, &port)?;
    let signed = asked.sign(&key)?.with_certificate(&good)?;
    assert_eq!(channel.open_session(&signed, first)?, Ok(()));
    attack.served(port, "alice")?;
    Ok(())
}

#[test]
fn a_listed_authority_counts_by_principals_and_purpose() -> Result {
    let mail = certified()?;
    let (laptop, mailhost) = (&mail.laptop, &mail.mailhost);
    let authority = mailhost.read(AUTHORITIES)?;
    mailhost.write("/etc/usher/policy.d/vault.policy", VAULT)?;
    laptop.write("/etc/usher/policy.d/banking.policy", CLIENT)?;
    laptop.run(["usher", "policy", "apply"])?;
    apply(&mail)?;
    // Trusted for every user, and not for the vault.
    let (mut reading, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let told = refused(&mail, "alice", "mailhost:vault")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    let verifier = mail.verifier.log()?;
    assert!(verifier.contains("unknown_authority"), "{verifier}");
    mailhost.run(["mkdir", "-p", "/etc/usher/users/alice"])?;
    mailhost.write(
        format!("{ALICES}.banking"),
        format!("cert-authority {authority}"),
    )?;
    apply(&mail)?;
    let mut at_the_vault = connect_to(&mail, "alice", "mailhost:vault")?;
    refused(&mail, "bob", "mailhost:vault")?;
    let listed = mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("1 authority for banking"), "{listed}");

    // By principals, which need not be the user's name.
    let roles = ["-I", "x", "-n", "ops,dev", "-V", "-1m:+1h"];
    give(&mail, "alice", &certify(laptop, "ca", "alice", &roles)?)?;
    let list = |principals: &str| -> Result<String> {
        let line = format!("cert-authority,principals=\"{principals}\" {authority}");
        mailhost.write(ALICES, line)?;
        apply(&mail)
    };
    list("dev,net")?;
    lives(&mut reading)?;
    let mut by_role = eventual("a session is by the roles", || {
        let connection = connect(&mail, "alice")?;
        Ok(who(&mail)?.contains("\"ops\"").then_some(connection))
    })?;
    let said = list("net")?;
    assert_eq!(said.matches("ended: alice").count(), 1, "{said}");
    is_cut(&mut by_role)?;
    assert_eq!(recent(&mail, "alice")?[0], "wrong_principal");
    let told = refused(&mail, "alice", "mailhost:imap")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    lives(&mut reading)?;
    lives(&mut at_the_vault)?;
    lives(&mut bob)?;

    // Removed from one list, it is in the other one and among those for all still.
    mailhost.write(format!("{ALICES}.banking"), "")?;
    apply(&mail)?;
    is_cut(&mut at_the_vault)?;
    lives(&mut reading)?;
    lives(&mut bob)?;
    for (line, problem) in [
        ("principals=\"ops\"", "`principals` is for authorities only"),
        (
            "cert-authority,principals=\"a,,b\"",
            "is not a list of principals",
        ),
    ] {
        mailhost.write(ALICES, format!("{line} {authority}"))?;
        let output = mailhost.command(["usher", "policy", "apply"]).run()?;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stderr.contains(problem), "{output:?}");
    }
    lives(&mut bob)
}

#[test]
fn an_agents_signature_gets_the_certificate_beside_it() -> Result {
    let mail = certified()?;
    let laptop = &mail.laptop;
    laptop.run(["cp", "/home/alice/.ssh/id_ed25519.pub", "/root/agents.pub"])?;
    let certificate = certify_user(laptop, "alice", "11")?;
    let by_agent = ["--agent-key", "/root/agents.pub"];
    let options = [&by_agent[..], &["--certificate", &certificate]].concat();
    add(laptop, "alice", &options)?;
    let _agent = agent::ssh_agent(&mail, "alice", &[agent::KEY])?;
    let _lender = agent::lend(&mail, "alice")?;
    let mut alice = connect(&mail, "alice")?;
    lives(&mut alice)?;
    let listed = laptop.run(["usher", "user", "list"])?.stdout;
    assert!(
        listed.contains("agent, lent, certificate until 20"),
        "{listed}"
    );
    let shown = mail.mailhost.run(["usher", "log", "show"])?.stdout;
    assert!(shown.contains("(serial 11, \"alice-11\")"), "{shown}");
    Ok(())
}

#[test]
fn a_certificate_out_of_its_time_leaves_the_listed_key() -> Result {
    let mail = certified()?;
    let laptop = &mail.laptop;
    let path = certify(
        laptop,
        "ca",
        "alice",
        &["-I", "old", "-n", "alice", "-V", "-2h:-1h"],
    )?;
    // As the file is when its certificate has expired: `usher user add` takes no such one.
    let replace = "f=/var/lib/usher/keys/alice; grep -v cert-v01 $f >$f.x; cat $1 >>$f.x; cat $f.x >$f; rm $f.x";
    laptop.run(["sh", "-e", "-c", replace, "sh", &path])?;
    // The server knows alice by certificates only.
    let told = refused(&mail, "alice", "mailhost:imap")?;
    assert!(told.contains("the certificate has expired"), "{told}");
    let public = laptop.read("/home/alice/.ssh/id_ed25519.pub")?;
    mail.mailhost.write("/root/alice.pub", public)?;
    add(
        &mail.mailhost,
        "alice",
        &["--public-key", "/root/alice.pub"],
    )?;
    apply(&mail)?;
    connect(&mail, "alice").map(drop)
}
