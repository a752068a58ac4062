//! Users whom a service admits for a principal of their certificate.

use crate::attack::Result;
use crate::authority::{AUTHORITIES, apply, certified, certify, give, recent};
use crate::reading::{connect, connect_to, is_cut, lives};
use crate::users::{add, keygen, refused};
use usher_lab::{Host, Mail, Running};

const POLICY: &str = "/etc/usher/policy.d/duty.policy";
const DUTY: &str = concat!(
    r#"users duty { principal ops, night@example.org; }
service duty {
  program "#,
    usher_lab::imap!(),
    r#";
  listen 145; style connection; users duty; hosts laptop;
}
"#
);
const CLIENT: &str = "client duty { users mail; service duty at mailhost port 145; }\n";
const NOT_PERMITTED: &str = "does not permit the service to this user";

/// A mail host that trusts an authority for every user, with a service for who has a role.
fn on_duty() -> Result<Mail> {
    let mail = certified()?;
    mail.mailhost.write(POLICY, DUTY)?;
    let client = "/etc/usher/policy.d/duty.policy";
    mail.laptop.write(client, CLIENT)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    apply(&mail)?;
    Ok(mail)
}

/// Gives the user a certificate by this authority, for an hour, with these principals.
fn be(mail: &Mail, authority: &str, user: &str, principals: &str) -> Result {
    let options = ["-I", "x", "-n", principals, "-V", "-1m:+1h"];
    give(
        mail,
        user,
        &certify(&mail.laptop, authority, user, &options)?,
    )
}

fn take_duty(mail: &Mail, user: &str) -> Result<Running> {
    let mut connection = connect_to(mail, user, "mailhost:duty")?;
    lives(&mut connection)?;
    Ok(connection)
}

fn is_refused(mail: &Mail, user: &str) -> Result {
    let told = refused(mail, user, "mailhost:duty")?;
    assert!(told.contains(NOT_PERMITTED), "{told}");
    Ok(())
}

/// The exit status of a question about the policy of a host, and the answer.
fn ask(host: &Host, question: &[&str]) -> Result<(Option<i32>, String)> {
    let command = [&["usher", "policy"], question].concat();
    let output = host.command(command).run()?;
    Ok((output.status.code(), output.stdout))
}

// Threat model: A23
#[test]
fn a_principal_admits_holders_of_trusted_certificates() -> Result {
    let mail = on_duty()?;
    let (laptop, mailhost) = (&mail.laptop, &mail.mailhost);
    // Their certificates name alice and bob alone.
    is_refused(&mail, "alice")?;
    be(&mail, "ca", "alice", "alice,ops")?;
    let mut alice = take_duty(&mail, "alice")?;
    for others in ["bob,dev", "bob,ops2,mail,duty"] {
        be(&mail, "ca", "bob", others)?;
        is_refused(&mail, "bob")?;
    }
    // carol is no user of anything by name, and the role is for this service.
    be(&mail, "ca", "carol", "carol,night@example.org")?;
    let mut carol = take_duty(&mail, "carol")?;
    let told = refused(&mail, "carol", "mailhost:imap")?;
    assert!(told.contains(NOT_PERMITTED), "{told}");
    // The role without the name lets no one in.
    be(&mail, "ca", "bob", "ops")?;
    let told = refused(&mail, "bob", "mailhost:duty")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");

    // By an authority of bob's list, with what his line names.
    let authority = keygen(laptop, "bobs")?;
    let list = |options: &str| -> Result {
        mailhost.run(["mkdir", "-p", "/etc/usher/users/bob"])?;
        let line = format!("cert-authority{options} {authority}");
        mailhost.write("/etc/usher/users/bob/authorized_keys", line)?;
        apply(&mail)?;
        Ok(())
    };
    list("")?;
    be(&mail, "bobs", "bob", "bob,ops")?;
    is_refused(&mail, "bob")?;
    lives(&mut connect(&mail, "bob")?)?;
    list(",principals=\"bob,dev\"")?;
    is_refused(&mail, "bob")?;
    list(",principals=\"bob,ops\"")?;
    let mut bob = take_duty(&mail, "bob")?;
    list("")?;
    is_cut(&mut bob)?;
    assert_eq!(recent(&mail, "bob")?[0], "user_not_permitted");

    // A plain key names nothing.
    let key = laptop.read("/home/bob/.ssh/id_ed25519.pub")?;
    mailhost.write("/root/bob.pub", key)?;
    add(mailhost, "bob", &["--public-key", "/root/bob.pub"])?;
    add(
        laptop,
        "bob",
        &["--private-key", "/home/bob/.ssh/id_ed25519"],
    )?;
    laptop.run(["sh", "-c", "! grep -q cert-v01 /var/lib/usher/keys/bob"])?;
    is_refused(&mail, "bob")?;
    lives(&mut connect(&mail, "bob")?)?;
    lives(&mut alice)?;
    lives(&mut carol)
}

// Threat model: A23
#[test]
fn a_principals_user_goes_with_the_policy_or_the_authority() -> Result {
    let mut mail = on_duty()?;
    be(&mail, "ca", "alice", "alice,ops")?;
    be(&mail, "ca", "bob", "bob,ops,night@example.org")?;
    let (mut alice, mut bob) = (take_duty(&mail, "alice")?, take_duty(&mail, "bob")?);
    let mut reading = connect(&mail, "alice")?;
    mail.keeper.restart()?;
    lives(&mut alice)?;
    let mailhost = &mail.mailhost;

    // The answer of the analysis.
    let explain = ["explain", "alice@laptop", "duty@mailhost"];
    let (code, told) = ask(mailhost, &explain)?;
    let answer = "duty@mailhost (only with a certificate that names night@example.org or ops)";
    assert!(code == Some(5) && told.contains(answer), "{code:?} {told}");
    let line = "/etc/usher/policy.d/duty.policy:1:24: users duty: principal ops";
    assert!(told.contains(line), "{told}");
    let (_, told) = ask(mailhost, &["who-can", "duty"])?;
    assert!(told.contains("users whose certificate names ops"), "{told}");
    let (_, told) = ask(mailhost, &["reach", "carol"])?;
    assert!(
        told.contains("(only with a certificate that names"),
        "{told}"
    );
    let unnamed = DUTY.replace("{ principal ops, night@example.org;", "{ member carol;");
    mailhost.write(POLICY, unnamed)?;
    let (code, told) = ask(mailhost, &explain)?;
    assert!(
        code == Some(1) && told.contains("does not admit alice"),
        "{told}"
    );

    // A principal is taken away: who has no other one goes.
    mailhost.write(POLICY, DUTY.replace("ops, ", ""))?;
    let (code, told) = ask(mailhost, &["apply", "--dry-run"])?;
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("- lose: users whose certificate names ops"),
        "{told}"
    );
    assert!(
        told.contains("would end: alice from laptop at duty"),
        "{told}"
    );
    assert_eq!(told.matches("would end: ").count(), 1, "{told}");
    lives(&mut alice)?;
    let said = apply(&mail)?;
    assert_eq!(said.matches("ended: alice").count(), 1, "{said}");
    assert_eq!(said.matches("ended: ").count(), 1, "{said}");
    is_cut(&mut alice)?;
    assert_eq!(recent(&mail, "alice")?[0], "user_not_permitted");
    is_refused(&mail, "alice")?;
    lives(&mut bob)?;
    lives(&mut reading)?;

    // It is back, and the authority is not: no one is admitted, and policy check says so.
    mailhost.write(POLICY, DUTY)?;
    apply(&mail)?;
    let mut alice = take_duty(&mail, "alice")?;
    let authority = mailhost.read(AUTHORITIES)?;
    mailhost.run(["rm", AUTHORITIES])?;
    let output = mailhost.command(["usher", "policy", "check"]).run()?;
    let warning = "`service duty` admits holders of certificates with the principal ops, and no \
                   authority is trusted to name it";
    assert!(output.stderr.contains(warning), "{output:?}");
    apply(&mail)?;
    is_cut(&mut alice)?;
    is_cut(&mut bob)?;
    assert_eq!(recent(&mail, "bob")?[0], "unknown_authority");
    is_cut(&mut reading)?;

    // Bob's own list has it for one of the two principals, and alice's for none.
    let explain = |user: &str| ask(mailhost, &["explain", user, "duty@mailhost"]);
    let (code, told) = explain("alice@laptop")?;
    assert!(
        code == Some(1) && told.contains("does not admit alice"),
        "{code:?} {told}"
    );
    mailhost.run([
        "mkdir",
        "-p",
        "/etc/usher/users/bob",
        "/etc/usher/users/alice",
    ])?;
    for (user, principals) in [("alice", "alice,net"), ("bob", "net,ops")] {
        let path = format!("/etc/usher/users/{user}/authorized_keys");
        let options = format!("cert-authority,principals=\"{principals}\"");
        mailhost.write(path, format!("{options} {authority}"))?;
    }
    apply(&mail)?;
    assert_eq!(explain("alice@laptop")?.0, Some(1));
    let (code, told) = explain("bob@laptop")?;
    let answer = "(only with a certificate that names ops)";
    assert!(code == Some(5) && told.contains(answer), "{code:?} {told}");
    is_refused(&mail, "alice")?;
    take_duty(&mail, "bob")?;
    Ok(())
}
