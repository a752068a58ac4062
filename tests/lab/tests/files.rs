//! The files that a service's processes may touch, for every user.

mod reading;

use reading::Outcome;
use usher_lab::{Lab, Mail, PATIENCE};

/// Executes the lines that it reads, as the user.
const SHELL: &str = "program \"/bin/sh\" \"-c\" \"read -r deed; (eval \\\"$deed\\\") 2>&1; echo end\"; \
     style connection; users mail; hosts laptop;";

const CLIENT: &str = "client more { users mail; service open at mailhost port 7201; \
     service closed at mailhost port 7202; service bare at mailhost port 7203; }\n";

/// A server's policy, with these files for dovecot's imap and for the shell at `closed`.
fn policy(closed: &str) -> String {
    format!(
        "service open {{ listen 7201; {SHELL} }}\n\
         service closed {{ listen 7202; {SHELL} files {closed}; }}\n\
         service bare {{ listen 7203; {SHELL} files \"~\" write; }}\n"
    )
}

const FILES: &str = "\"/usr\" read, \"/dev/null\" write, \"~/shared\" read, \"~/drafts\" write";

fn mail() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    for user in ["alice", "bob"] {
        for folder in ["shared", "drafts", "private"] {
            let folder = format!("/home/{user}/{folder}");
            mail.mailhost.run([
                "install", "-d", "-m", "700", "-o", user, "-g", user, &folder,
            ])?;
            let file = format!("{folder}/file");
            mail.mailhost.write(&file, format!("of {user}\n"))?;
            mail.mailhost.run(["chown", user, &file])?;
        }
    }
    mail.add_policies("more", policy(FILES), CLIENT)?;
    Ok(mail)
}

/// The result of an operation.
fn deed(
    mail: &Mail,
    user: &str,
    service: &str,
    deed: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let service = format!("mailhost:{service}");
    let mut connection = mail
        .laptop
        .command(["usher", "connect", &service])
        .user(user)
        .spawn()?;
    connection.write(format!("{deed}\n"))?;
    let said = connection.read_past("end\n", PATIENCE)?;
    Ok(said.trim_end_matches("end\n").trim_end().to_owned())
}

// Threat model: A69
#[test]
fn a_service_touches_its_files_of_each_user_and_no_others() -> Outcome {
    let mail = mail()?;
    for user in ["alice", "bob"] {
        let own = format!("of {user}");
        let said = |service: &str, text: &str| deed(&mail, user, service, text);
        for readable in ["shared", "drafts"] {
            assert_eq!(said("closed", &format!("cat ~/{readable}/file"))?, own);
        }
        assert_eq!(
            said("closed", "echo new > ~/drafts/new && cat ~/drafts/new")?,
            "new"
        );
        assert_eq!(said("closed", "rm ~/drafts/new && echo gone")?, "gone");
        for refused in [
            "cat ~/private/file",
            "ls ~",
            "ls ~/private",
            ": > ~/shared/new",
            "rm -f ~/shared/file",
            ": > /tmp/usher-files-of-a-worker",
            "cat /etc/passwd",
            "mv ~/drafts/file ~/shared/",
            "ln -s ~/private ~/drafts/link && cat ~/drafts/link/file",
        ] {
            let answer = said("closed", refused)?;
            assert!(answer.contains("denied"), "{user}: {refused}: {answer}");
        }
        // Its children are confined alike, and the user's own rights still apply.
        let answer = said("closed", "sh -c 'cat ~/private/file'")?;
        assert!(answer.contains("denied"), "{answer}");
        let answer = said("closed", ": > /usr/new")?;
        assert!(answer.contains("denied"), "{answer}");
        // Another service of the same user is not confined.
        assert_eq!(said("open", "cat ~/private/file")?, own);
    }
    let others = deed(&mail, "alice", "open", "cat /home/bob/private/file")?;
    assert!(others.contains("denied"), "{others}");
    Ok(())
}

#[test]
fn a_program_without_its_libraries_is_reported_and_not_started() -> Outcome {
    let mail = mail()?;
    let mut connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:bare"])
        .user("alice")
        .spawn()?;
    reading::is_cut(&mut connection)?;
    let text = "cannot execute the program in the new process: Permission denied";
    assert!(
        mail.keeper.wait_log(text, PATIENCE)?,
        "{}",
        mail.keeper.log()?
    );
    Ok(())
}

#[test]
fn dovecot_serves_mail_with_files_of_its_own_only() -> Outcome {
    let mail = Lab::mail()?;
    // 2.4 reads its settings by way of a file there.
    let settings = mail.mailhost.dovecot_settings("", ", \"/tmp\" write")?;
    let files = "\"/usr\" read, \"/etc\" read, \"/dev/null\" write, \"~/Maildir\" write";
    mail.mailhost.replace(
        "/etc/usher/policy.d/mail.policy",
        "listen 143;",
        &format!("listen 143; files {files}{settings};"),
    )?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let mut connection = reading::connect(&mail, "alice")?;
    for (command, answer) in [
        ("a SELECT INBOX\r\n", "a OK"),
        ("b STORE 1 +FLAGS (\\Seen)\r\n", "b OK"),
        ("c CREATE made\r\n", "c OK"),
    ] {
        connection.write(command)?;
        connection.read_past(answer, PATIENCE)?;
    }
    let made = mail
        .mailhost
        .run(["ls", "-d", "/home/alice/Maildir/.made"])?;
    assert!(made.stdout.contains(".made"), "{}", made.stdout);
    Ok(())
}

const WITHOUT_LANDLOCK: &str = include_str!("../programs/without_landlock.py");

#[test]
fn without_landlock_only_services_with_files_refuse() -> Outcome {
    let mut mail = mail()?;
    let launcher = ["python3", "-c", WITHOUT_LANDLOCK];
    mail.keeper.stop()?;
    mail.keeper.set_launcher(launcher);
    mail.keeper.start()?;
    for user in ["alice", "bob"] {
        let before = mail.verifier.log()?.len();
        let connect = mail.laptop.command(["usher", "connect", "mailhost:closed"]);
        let refused = connect.user(user).input("echo served\n").run()?;
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert_eq!(refused.stdout, "", "{refused:?}");
        let reason = "Landlock is not in force on the server";
        assert!(refused.stderr.contains(reason), "{refused:?}");
        let log = mail.verifier.log()?;
        assert!(log[before..].contains("no_file_confinement"), "{log}");
        assert_eq!(deed(&mail, user, "open", "echo served")?, "served");
    }
    // Applying such a policy prints a warning.
    let apply = [&launcher[..], &["usher", "policy", "apply"]].concat();
    let told = mail.mailhost.run(apply)?.stderr;
    let reason = "`service closed`: it has `files`, and this kernel has no Landlock";
    assert!(told.contains(reason), "{told}");

    mail.keeper.stop()?;
    mail.keeper.set_launcher([] as [&str; 0]);
    mail.keeper.start()?;
    assert_eq!(deed(&mail, "alice", "closed", "echo served")?, "served");
    let outside = deed(&mail, "alice", "closed", "cat ~/private/file")?;
    assert!(outside.contains("denied"), "{outside}");
    Ok(())
}
