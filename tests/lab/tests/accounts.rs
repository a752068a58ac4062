//! Accounts that the administrator has closed are not served, whatever Usher's own policy says. Real
//! PAM decides, by the stock file for the service `usher`.

mod reading;

use reading::{Outcome, connect, is_served, lives};
use usher_lab::{Lab, Mail, eventually};

/// How an account is closed, how it is opened again, and whether only alice's is.
const WAYS: [(&str, &str, bool); 5] = [
    (
        "chage --expiredate 1 alice",
        "chage --expiredate -1 alice",
        true,
    ),
    ("passwd -q -l alice", "passwd -q -u alice", true),
    ("chage --lastday 0 alice", "chage --lastday -1 alice", true),
    (
        "usermod --shell /usr/sbin/nologin alice",
        "usermod --shell /bin/sh alice",
        true,
    ),
    (
        "echo 'back at five' >/etc/nologin",
        "rm /etc/nologin",
        false,
    ),
];

/// Whether a process is started for the user, whose session may be open: then a closed account is
/// refused by a reset.
fn gets_in(mail: &Mail, user: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user(user)
        .input("x LOGOUT\r\n")
        .run()?;
    let greeted = connection.stdout.contains(&format!("Logged in as {user}"));
    assert_eq!(greeted, connection.status.success(), "{connection:?}");
    Ok(greeted)
}

#[test]
fn a_closed_account_is_refused_until_it_is_opened_again() -> Outcome {
    let mail = Lab::mail()?;
    let shell = |command: &str| mail.mailhost.run(["sh", "-e", "-c", command]);
    shell("echo alice:secret | chpasswd")?;
    let mut before = connect(&mail, "alice")?;
    for (close, open, alice_only) in WAYS {
        shell(close)?;
        assert!(!gets_in(&mail, "alice")?, "{close}");
        assert_eq!(gets_in(&mail, "bob")?, alice_only, "{close}");
        lives(&mut before)?;
        shell(open)?;
        assert!(gets_in(&mail, "alice")?, "{open}");
        assert!(gets_in(&mail, "bob")?, "{open}");
    }
    Ok(())
}

#[test]
fn the_reason_of_a_closed_account_is_told() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost
        .run(["sh", "-c", "echo 'back at five' >/etc/nologin"])?;
    let refused = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .run()?;
    let text = "the user's account on this server is closed";
    assert!(refused.stderr.contains(text), "{refused:?}");
    eventually("the journal has the reason", || {
        Ok(mail.keeper.log()?.contains("back at five"))
    })
}

#[test]
fn a_module_that_hangs_holds_up_its_user_only() -> Outcome {
    let mail = Lab::mail()?;
    let service = "account [success=done default=ignore] pam_succeed_if.so quiet user = bob\n\
        account required pam_exec.so /bin/sleep 1000\n";
    mail.mailhost.write("/etc/pam.d/usher", service)?;
    let waiting = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    eventually("the module runs", || {
        let processes = mail.mailhost.processes()?;
        Ok(processes.iter().any(|process| process.name == "sleep"))
    })?;
    assert!(is_served(&mail, "bob", "imap")?);
    drop(waiting);
    assert!(!is_served(&mail, "alice", "imap")?);
    Ok(())
}
