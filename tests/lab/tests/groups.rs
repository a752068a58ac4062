//! System groups in `users` blocks: their members at the time of the apply are users, and later
//! answers of the name service do not change the configuration in force.
#![forbid(unsafe_code)]

mod reading;
mod users;

use reading::{Outcome, connect, is_gone, lives};
use users::refused;
use usher_lab::{ALICE, CAROL, Lab, Mail};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const POLICY: &str = "/etc/usher/policy.d/mail.policy";

/// Requires that the user is refused, because the policy admits no such user.
fn is_refused(mail: &Mail, user: &str) -> Outcome {
    let told = refused(mail, user, "mailhost:imap")?;
    assert!(told.contains("does not permit"), "{told}");
    Ok(())
}

/// Mailhost admits alice, and members of the group readers, which exists and has none.
fn with_group() -> Result<Mail> {
    let mail = Lab::mail()?;
    let users = "member alice; group readers;";
    mail.mailhost.replace(POLICY, "member alice, bob;", users)?;
    mail.mailhost.run(["groupadd", "readers"])?;
    apply(&mail)?;
    Ok(mail)
}

/// The command's output.
fn apply(mail: &Mail) -> Result<String> {
    let said = mail.mailhost.run(["usher", "policy", "apply"])?;
    Ok(said.stdout + &said.stderr)
}

/// doctor's report about groups.
fn diagnosis(mail: &Mail) -> Result<String> {
    let said = mail.mailhost.command(["usher", "doctor"]).run()?;
    let mut lines = said.stdout.lines();
    let line = lines.find(|line| line.contains("  groups: "));
    Ok(line.ok_or("nothing about groups")?.to_owned())
}

#[test]
fn an_apply_admits_new_group_members_and_cuts_former_ones() -> Outcome {
    let mail = with_group()?;
    let mut of_alice = connect(&mail, "alice")?;
    is_refused(&mail, "carol")?;
    mail.mailhost.run(["gpasswd", "-a", "carol", "readers"])?;
    // Before the apply.
    is_refused(&mail, "carol")?;
    let told = diagnosis(&mail)?;
    assert!(told.contains("readers has changed (+carol)"), "{told}");
    apply(&mail)?;
    let mut of_carol = connect(&mail, "carol")?;
    let told = diagnosis(&mail)?;
    assert!(told.starts_with("ok"), "{told}");

    mail.mailhost.run(["gpasswd", "-d", "carol", "readers"])?;
    lives(&mut of_carol)?;
    let told = diagnosis(&mail)?;
    assert!(told.contains("readers has changed (-carol)"), "{told}");
    let said = apply(&mail)?;
    assert!(said.contains("ended: carol"), "{said}");
    is_gone(&mail, &mut of_carol, CAROL)?;
    is_refused(&mail, "carol")?;

    // Accounts that have it as their primary group.
    mail.mailhost.run(["usermod", "-g", "readers", "carol"])?;
    apply(&mail)?;
    let mut of_carol = connect(&mail, "carol")?;
    mail.mailhost.run(["usermod", "-g", "nogroup", "carol"])?;
    apply(&mail)?;
    is_gone(&mail, &mut of_carol, CAROL)?;
    lives(&mut of_alice)?;
    assert!(
        mail.mailhost
            .processes()?
            .iter()
            .any(|p| p.uid == ALICE.mailhost_uid)
    );
    Ok(())
}

#[test]
fn a_group_that_cannot_be_looked_up_changes_nothing() -> Outcome {
    let mail = with_group()?;
    mail.mailhost.run(["gpasswd", "-a", "carol", "readers"])?;
    apply(&mail)?;
    let mut of_carol = connect(&mail, "carol")?;
    mail.mailhost.run(["groupdel", "readers"])?;
    for words in [["policy", "apply"], ["policy", "check"]] {
        let refused = mail.mailhost.command(["usher", words[0], words[1]]).run()?;
        assert!(!refused.status.success());
        for part in [
            "mail.policy:1:34",
            "the members of the group `readers` are not known: there is no such group",
            "getent group readers",
        ] {
            assert!(refused.stderr.contains(part), "{}", refused.stderr);
        }
    }
    // The configuration in force is unchanged, even after the daemons read it again.
    mail.mailhost.run(["usher", "user", "disable", "bob"])?;
    lives(&mut of_carol)?;
    connect(&mail, "carol")?;
    let told = diagnosis(&mail)?;
    assert!(told.contains("readers: there is no such group"), "{told}");
    Ok(())
}

#[test]
fn root_and_the_account_of_a_service_come_in_by_no_group() -> Outcome {
    let mail = with_group()?;
    for account in ["root", "carol"] {
        mail.mailhost.run(["gpasswd", "-a", account, "readers"])?;
    }
    let said = apply(&mail)?;
    assert!(
        said.contains("of the group readers these are left out"),
        "{said}"
    );
    assert!(said.contains("admit them: root; "), "{said}");
    let policy = mail.mailhost.read(POLICY)?;
    let notes =
        "service notes { account carol; listen 8080; users mail; hosts laptop; style user; }";
    mail.mailhost
        .write(POLICY, format!("{policy}\n{notes}\n"))?;
    let refused = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success());
    let said = "`carol` is a user of this service by `users mail`";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    Ok(())
}
