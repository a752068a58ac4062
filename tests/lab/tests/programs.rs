//! Unmodified programs on both ends: curl and mbsync through the proxy, gunicorn as a user's
//! service, and the sessions that their connections share.

use std::time::{Duration, Instant};

use usher_lab::{ALICE, BOB, CAROL, Command, Lab, Mail, Output, Running, Signal};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(20);

const MBSYNC: &str = "\
IMAPAccount mailhost
Host mailhost
Port 143
User bob
Pass no-password-at-all
SSLType None

IMAPStore far
Account mailhost

MaildirStore near
Path ~/Mail/
Inbox ~/Mail/INBOX

Channel mail
Far :far:
Near :near:
Patterns INBOX
Create Near
";

/// curl, run as `user`, logging in as `name` with a password that nobody has set.
fn fetch(mail: &Mail, user: &str, name: &str) -> Result<Output, Box<dyn std::error::Error>> {
    let login = format!("{name}:no-password-at-all");
    let url = "imap://mailhost/INBOX;UID=1";
    let arguments = ["curl", "--silent", "--show-error", "--user", &login, url];
    Ok(mail.laptop.command(arguments).user(user).run()?)
}

/// A plain TCP connection of `user` to the proxy's port for the mail service.
fn proxied(mail: &Mail, user: &str) -> Command {
    mail.laptop
        .command(["socat", "STDIO", "TCP:127.0.1.1:143"])
        .user(user)
}

/// The same, greeted.
fn greeted(mail: &Mail, user: &str) -> Result<Running, Box<dyn std::error::Error>> {
    let mut connection = proxied(mail, user).spawn()?;
    let greeting = connection.read_past("\n", PATIENCE)?;
    assert!(greeting.starts_with("* OK "), "{greeting}");
    Ok(connection)
}

/// Sends a line; the answer up to the line with `tag`.
fn ask(
    connection: &mut Running,
    line: &str,
    tag: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    connection.write(format!("{line}\r\n"))?;
    Ok(connection.read_past(tag, PATIENCE)?)
}

/// Of each session: its user, its id, how many chain elements it has used.
fn sessions(mail: &Mail) -> Result<Vec<(String, String, u64)>, Box<dyn std::error::Error>> {
    let said = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
    let view: serde_json::Value = serde_json::from_str(&said)?;
    let rows = view["sessions"].as_array().ok_or("no list of sessions")?;
    let mut sessions = Vec::new();
    for row in rows {
        let text = |name: &str| row[name].as_str().map(str::to_owned).ok_or("no text");
        let used = row["used"].as_u64().ok_or("no number")?;
        sessions.push((text("user")?, text("session")?, used));
    }
    sessions.sort();
    Ok(sessions)
}

#[test]
fn curl_and_mbsync_fetch_the_mail_of_the_user_who_runs_them_and_nobody_elses() -> Outcome {
    let mail = Lab::mail()?;
    for user in [ALICE, BOB] {
        let output = fetch(&mail, user.name, user.name)?;
        assert!(output.stdout.contains(user.subject), "{output:?}");
    }
    let posing = fetch(&mail, "alice", "bob")?;
    assert!(!posing.status.success(), "{posing:?}");
    assert!(!posing.stdout.contains(BOB.subject), "{posing:?}");
    // The server's policy does not have her: told in the protocol's own words.
    let carol = proxied(&mail, "carol").run()?;
    assert!(carol.stdout.starts_with("* BYE Usher: "), "{carol:?}");
    let carol = fetch(&mail, "carol", "carol")?;
    assert!(!carol.status.success(), "{carol:?}");
    assert!(!carol.stdout.contains(CAROL.subject), "{carol:?}");

    mail.laptop
        .command(["sh", "-c", "umask 077; mkdir Mail && cat >.mbsyncrc"])
        .user("bob")
        .input(MBSYNC)
        .succeed()?;
    mail.laptop.run_as("bob", ["mbsync", "--all"])?;
    let fetched = mail
        .laptop
        .run_as("bob", ["sh", "-c", "cat Mail/INBOX/*/*"])?
        .stdout;
    assert!(fetched.contains(BOB.subject), "{fetched}");
    assert!(!fetched.contains(ALICE.subject), "{fetched}");
    Ok(())
}

#[test]
fn every_way_to_log_in_takes_the_users_own_name_with_any_password_and_no_other_name() -> Outcome {
    let mail = Lab::mail()?;
    // Base 64 of NUL alice NUL x; of NUL bob NUL x; of bob NUL alice NUL x (to act as bob).
    let (alice, bob, acting) = ("AGFsaWNlAHg=", "AGJvYgB4", "Ym9iAGFsaWNlAHg=");
    let ways = [
        ("a LOGIN alice anything", true),
        ("a LOGIN bob anything", false),
        ("a LOGIN \"alice\" \"\"", true),
        ("a LOGIN {5+}\r\nalice {1+}\r\nx", true),
        ("a LOGIN {3+}\r\nbob {1+}\r\nx", false),
        (&format!("a AUTHENTICATE PLAIN {alice}"), true),
        (&format!("a AUTHENTICATE PLAIN {bob}"), false),
        (&format!("a AUTHENTICATE PLAIN {acting}"), false),
        (&format!("a AUTHENTICATE PLAIN\r\n{alice}"), true),
        (&format!("a AUTHENTICATE PLAIN\r\n{bob}"), false),
    ];
    for (way, permitted) in ways {
        let mut connection = greeted(&mail, "alice")?;
        let answer = ask(&mut connection, way, "a ")?;
        assert_eq!(answer.contains("a OK"), permitted, "{way}: {answer}");
        assert_eq!(answer.contains("a NO"), !permitted, "{way}: {answer}");
        if permitted {
            let status = ask(&mut connection, "b STATUS INBOX (MESSAGES)", "b ")?;
            assert!(status.contains("MESSAGES 1"), "{way}: {status}");
        }
    }
    Ok(())
}

#[test]
fn later_connections_of_a_user_need_no_new_signature() -> Outcome {
    let mail = Lab::mail()?;
    assert_eq!(sessions(&mail)?, []);
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(greeted(&mail, "alice")?);
    }
    let [(user, first, used)] = &sessions(&mail)?[..] else {
        return Err(format!("not one session: {:?}", sessions(&mail)?).into());
    };
    assert_eq!((user.as_str(), *used), ("alice", 3));
    // Nor when none of them is open any longer.
    drop(open);
    fetch(&mail, "alice", "alice")?;
    let later = sessions(&mail)?;
    assert_eq!(later.len(), 1, "{later:?}");
    assert_eq!((&later[0].1, later[0].2 > 3), (first, true), "{later:?}");
    // Another user's is another's.
    let _bob = greeted(&mail, "bob")?;
    let both = sessions(&mail)?;
    assert_eq!(both.len(), 2, "{both:?}");
    assert_eq!((both[0].0.as_str(), both[1].0.as_str()), ("alice", "bob"));
    assert_ne!(both[0].1, both[1].1);
    Ok(())
}

#[test]
fn a_crashed_proxy_costs_its_own_connections_only_and_serves_again() -> Outcome {
    let mut mail = Lab::mail()?;
    let mut through = greeted(&mail, "alice")?;
    let mut direct = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    direct.read_past("* PREAUTH", PATIENCE)?;
    mail.proxy.kill(Signal::KILL)?;
    assert!(
        through.wait(PATIENCE)?.is_some(),
        "a connection through a dead proxy stays open"
    );
    assert!(ask(&mut direct, "a NOOP", "a ")?.contains("a OK"));
    mail.proxy.wait(PATIENCE)?;
    mail.proxy.start()?;
    let output = fetch(&mail, "alice", "alice")?;
    assert!(output.stdout.contains(ALICE.subject), "{output:?}");
    assert!(ask(&mut direct, "b NOOP", "b ")?.contains("b OK"));
    Ok(())
}

/// An unmodified web application: says as whom it runs.
const WEB: &str = "\
import os
def application(environment, start):
    start('200 OK', [('Content-Type', 'text/plain')])
    return [b'uid %d\\n' % os.getuid()]
";

#[test]
fn gunicorn_serves_each_user_as_that_user_by_its_own_socket_activation() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost.write("/var/lib/web/web.py", WEB)?;
    let server = "service web { program \"/usr/bin/gunicorn\" \"--chdir\" \"/var/lib/web\" \
        \"--worker-tmp-dir\" \"/dev/shm\" \"web\"; \
        listen 8080; style user; idle 1s; users mail; hosts laptop; }\n";
    let client = "client web { users mail; service web at mailhost port 8080; }\n";
    mail.mailhost
        .write("/etc/usher/policy.d/web.policy", server)?;
    mail.laptop
        .write("/etc/usher/policy.d/web.policy", client)?;
    for host in [&mail.laptop, &mail.mailhost] {
        host.run(["usher", "policy", "apply"])?;
    }
    let get = |user: &str| {
        let request = "GET / HTTP/1.0\r\n\r\n";
        mail.laptop
            .command(["usher", "connect", "mailhost:web"])
            .user(user)
            .input(request)
            .run()
    };
    let (alice, bob) = (get("alice")?, get("bob")?);
    assert!(alice.stdout.ends_with("uid 2001\n"), "{alice:?}");
    assert!(bob.stdout.ends_with("uid 2002\n"), "{bob:?}");
    // Idle, master and workers end; asked again, they are back.
    let deadline = Instant::now() + PATIENCE;
    while mail
        .mailhost
        .processes()?
        .iter()
        .any(|process| process.command.contains("gunicorn"))
    {
        assert!(Instant::now() < deadline, "idle gunicorns do not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    let again = get("alice")?;
    assert!(again.stdout.ends_with("uid 2001\n"), "{again:?}");
    Ok(())
}
