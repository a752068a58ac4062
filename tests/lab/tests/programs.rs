//! Unmodified programs on both sides: curl and mbsync through the proxy, gunicorn as a user's service,
//! and the sessions that their connections share.

use usher_lab::{
    ALICE, BOB, CAROL, Command, Lab, Mail, Output, PATIENCE, Running, Signal, eventually,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A line of `usher who --json`.
struct Session {
    user: String,
    id: String,
    /// The number of used elements of its chain: one per connection.
    used: u64,
}

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

/// curl, run as `user`, logging in as `name` with a password that was never set.
fn fetch(mail: &Mail, user: &str, name: &str) -> Result<Output, Box<dyn std::error::Error>> {
    let login = format!("{name}:no-password-at-all");
    let url = "imap://mailhost/INBOX;UID=1";
    let arguments = ["curl", "--silent", "--show-error", "--user", &login, url];
    Ok(mail.laptop.command(arguments).user(user).run()?)
}

/// A plain TCP connection of `user` to the proxy's port for the mail service. It ends by itself
/// when the proxy closes it.
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

fn sessions(mail: &Mail) -> Result<Vec<Session>, Box<dyn std::error::Error>> {
    let said = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
    let view: serde_json::Value = serde_json::from_str(&said)?;
    let rows = view["sessions"].as_array().ok_or("no list of sessions")?;
    let mut sessions = Vec::new();
    for row in rows {
        let text = |name: &str| row[name].as_str().map(str::to_owned).ok_or("no text");
        sessions.push(Session {
            user: text("user")?,
            id: text("session")?,
            used: row["used"].as_u64().ok_or("no number")?,
        });
    }
    sessions.sort_by(|one, other| one.user.cmp(&other.user));
    Ok(sessions)
}

#[test]
fn curl_and_mbsync_fetch_only_the_callers_own_mail() -> Outcome {
    let mail = Lab::mail()?;
    for user in [ALICE, BOB] {
        let output = fetch(&mail, user.name, user.name)?;
        assert!(output.stdout.contains(user.subject), "{output:?}");
    }
    let posing = fetch(&mail, "alice", "bob")?;
    assert!(!posing.status.success(), "{posing:?}");
    assert!(!posing.stdout.contains(BOB.subject), "{posing:?}");
    // The server's policy does not have her, which the protocol reports.
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
fn every_login_accepts_only_the_users_own_name() -> Outcome {
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
fn a_command_that_cannot_be_read_has_a_tagged_answer() -> Outcome {
    let mail = Lab::mail()?;
    let mut alice = greeted(&mail, "alice")?;
    for wrong in [
        "a LOGIN alice",
        "a LOGIN  alice x",
        "a AUTHENTICATE PLAIN nonsense!",
        "a AUTHENTICATE PLAIN\r\n*",
    ] {
        let answer = ask(&mut alice, wrong, "a BAD ")?;
        assert!(!answer.contains("a OK"), "{wrong}: {answer}");
    }
    let answer = ask(&mut alice, "b LOGIN alice \"Gr\u{fc}\u{df}e\"", "b ")?;
    assert!(answer.contains("b OK"), "{answer}");
    Ok(())
}

/// A password that is neither ASCII nor what IMAP permits in quotes.
const ODD_PASSWORD: &str = "Gr\u{fc}\u{df}e {3}(%*]";

const FETCHMAIL: &str = "\
poll mailhost protocol imap port 143
  user NAME password \"PASSWORD\" fetchall keep sslproto '' mda \"cat >>fetched\"
";

#[test]
fn fetchmail_fetches_mail_by_any_password() -> Outcome {
    let mail = Lab::mail()?;
    let fetch = |name: &str| -> Result<Output, Box<dyn std::error::Error>> {
        let control = FETCHMAIL
            .replace("NAME", name)
            .replace("PASSWORD", ODD_PASSWORD);
        let command = "umask 077; cat >.fetchmailrc; fetchmail --nodetach --nosyslog";
        let shell = mail.laptop.command(["sh", "-c", command]).user("alice");
        Ok(shell.input(control).run()?)
    };
    let posing = fetch("bob")?;
    assert!(!posing.status.success(), "{posing:?}");
    let fetched = fetch("alice")?;
    assert!(fetched.status.success(), "{fetched:?}");
    let fetched = mail.laptop.run_as("alice", ["cat", "fetched"])?.stdout;
    assert!(fetched.contains(ALICE.subject), "{fetched}");
    Ok(())
}

const MUTT: &str = "\
set imap_user=NAME imap_pass=\"PASSWORD\" ssl_starttls=no ssl_force_tls=no wait_key=no
set header_cache='' imap_check_subscribed=no move=no
push \"<pipe-message>cat >>read<enter><exit>\"
";

#[test]
fn mutt_reads_mail_by_any_password() -> Outcome {
    let mail = Lab::mail()?;
    let settings = MUTT
        .replace("NAME", "alice")
        .replace("PASSWORD", ODD_PASSWORD);
    // The terminal of script(1) has no size, and that of Debian 13 is refused by ncurses then.
    let command = "umask 077; cat >.muttrc; TERM=vt100 script --quiet --return --command \
        'stty rows 24 columns 80; mutt -f imap://mailhost/INBOX' screen </dev/null";
    let shell = mail.laptop.command(["sh", "-c", command]).user("alice");
    let screen = shell.input(settings).run()?;
    let seen = mail.laptop.run_as("alice", ["cat", "screen"])?;
    assert!(seen.stdout.contains(ALICE.subject), "{seen:?}, {screen:?}");
    Ok(())
}

#[test]
fn the_right_name_may_follow_a_wrong_one_in_a_pipeline() -> Outcome {
    let mail = Lab::mail()?;
    let mut alice = greeted(&mail, "alice")?;
    assert!(ask(&mut alice, "a LOGIN bob x", "a ")?.contains("a NO"));
    // A synchronizing literal: the client waits for a continuation request.
    assert!(ask(&mut alice, "b LOGIN {5}", "+ ")?.starts_with("+ "));
    assert!(ask(&mut alice, "alice {1}", "+ ")?.starts_with("+ "));
    assert!(ask(&mut alice, "x", "b ")?.contains("b OK"));
    assert!(ask(&mut alice, "c STATUS INBOX (MESSAGES)", "c ")?.contains("MESSAGES 1"));

    let ahead = "a CAPABILITY\r\nb LOGIN alice x\r\nc STATUS INBOX (MESSAGES)\r\nd LOGOUT\r\n";
    // Its input stays open: after the end of that, socat waits only half a second for answers.
    let mut alice = proxied(&mail, "alice").spawn()?;
    alice.write(ahead)?;
    let answers = alice.read_past("d OK", PATIENCE)?;
    for part in ["a OK", "b OK", "MESSAGES 1", "c OK"] {
        assert!(answers.contains(part), "{part} is not in {answers:?}");
    }
    Ok(())
}

#[test]
fn later_connections_of_a_user_need_no_new_signature() -> Outcome {
    let mail = Lab::mail()?;
    assert!(sessions(&mail)?.is_empty());
    let open = (0..3)
        .map(|_| greeted(&mail, "alice"))
        .collect::<Result<Vec<_>, _>>()?;
    let before = sessions(&mail)?;
    assert_eq!(before.len(), 1);
    assert_eq!((before[0].user.as_str(), before[0].used), ("alice", 3));
    // The same when none of them is open any longer.
    drop(open);
    fetch(&mail, "alice", "alice")?;
    // Another user has another one.
    let _bob = greeted(&mail, "bob")?;
    let after = sessions(&mail)?;
    assert_eq!(after.len(), 2);
    assert_eq!(after[0].id, before[0].id);
    assert!(after[0].used > 3);
    assert_eq!((after[1].user.as_str(), after[1].used), ("bob", 1));
    assert_ne!(after[1].id, before[0].id);
    Ok(())
}

#[test]
fn a_client_before_login_is_cut_with_its_user() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (greeted(&mail, "alice")?, greeted(&mail, "bob")?);
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    alice.read_past("* BYE ", PATIENCE)?;
    assert!(
        alice.wait(PATIENCE)?.is_some(),
        "the connection is still there"
    );
    assert!(ask(&mut bob, "a LOGIN bob x", "a ")?.contains("a OK"));
    assert!(ask(&mut bob, "b STATUS INBOX (MESSAGES)", "b ")?.contains("MESSAGES 1"));
    Ok(())
}

#[test]
fn a_crashed_proxy_costs_only_its_own_connections() -> Outcome {
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

/// An unmodified web application that prints its user.
const WEB: &str = "\
import os
def application(environment, start):
    start('200 OK', [('Content-Type', 'text/plain')])
    return [b'uid %d\\n' % os.getuid()]
";

#[test]
fn gunicorn_serves_each_user_as_that_user_by_socket_activation() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost.write("/var/lib/web/web.py", WEB)?;
    let server = "service web { program \"/usr/bin/gunicorn\" \"--chdir\" \"/var/lib/web\" \
        \"--worker-tmp-dir\" \"/dev/shm\" \"web\"; \
        listen 8080; style user; idle 1s; users mail; hosts laptop; }\n";
    let client = "client web { users mail; service web at mailhost port 8080; }\n";
    mail.add_policies("web", server, client)?;
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
    // When idle, master and workers end; on the next request they are back.
    eventually("idle gunicorns have ended", || {
        let processes = mail.mailhost.processes()?;
        Ok(!processes.iter().any(|p| p.command.contains("gunicorn")))
    })?;
    let again = get("alice")?;
    assert!(again.stdout.ends_with("uid 2001\n"), "{again:?}");
    Ok(())
}
