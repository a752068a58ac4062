//! XCLIENT, with Postfix.

use usher_lab::{Mail, eventually};

use crate::SOCKET;
use crate::reading::Outcome;

const MAIN: &str = "\
compatibility_level = 3.6
myhostname = mailhost
mydestination =
mynetworks =
smtpd_relay_restrictions = permit_sasl_authenticated, reject
inet_protocols = ipv4
maillog_file = /var/log/postfix
alias_maps =
default_transport = discard:
relay_transport = discard:
";

const MASTER: &str = "\
127.0.0.1:25 inet n      -       n       -       -       smtpd
pickup    unix  n       -       n       60      1       pickup
cleanup   unix  n       -       n       -       0       cleanup
qmgr      unix  n       -       n       300     1       qmgr
rewrite   unix  -       -       n       -       -       trivial-rewrite
bounce    unix  -       -       n       -       0       bounce
defer     unix  -       -       n       -       0       bounce
error     unix  -       -       n       -       -       error
discard   unix  -       -       n       -       -       discard
anvil     unix  -       -       n       -       1       anvil
proxymap  unix  -       -       n       -       -       proxymap
postlog   unix-dgram n  -       n       -       1       postlogd
";

/// Sends a letter as the sender that is named, after the commands that are named.
const SENDER: &str = r#"
import smtplib, sys
server = smtplib.SMTP("127.0.1.1", 587, timeout=60)
server.ehlo("laptop")
for command in sys.argv[2:]:
    print(*server.docmd(command))
try:
    server.sendmail(sys.argv[1], ["friend@example.org"], "Subject: tea\r\n\r\nat five\r\n")
    print("sent")
except smtplib.SMTPException as error:
    print("refused", error)
"#;

/// Greets, gives the command that follows this answer, and notes what comes then.
const REFUSING: &str = r#"
import socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 hello\r\n")
        self.rfile.readline()
        self.wfile.write(sys.argv[2].encode() + b"\r\n")
        with open("/var/lib/app/notes", "ab") as notes:
            notes.write(self.rfile.read() + b"end\n")
socketserver.ThreadingUnixStreamServer(sys.argv[1], Handler).serve_forever()
"#;

/// Whether this machine has Postfix: it is not installed where another mail server is.
fn has_postfix(mail: &Mail) -> Result<bool, Box<dyn std::error::Error>> {
    let there = mail
        .mailhost
        .command(["test", "-x", "/usr/lib/postfix/sbin/smtpd"]);
    Ok(there.run()?.status.success())
}

// Threat model: A181
#[test]
fn postfix_takes_letters_of_each_user_in_her_own_name_only() -> Outcome {
    let policy = include_str!("../../../../examples/identify/submission.policy");
    let policy = policy
        .replace("account submission", "account app")
        .replace("staff", "mail");
    let mail = crate::topology_with(&policy, &crate::client("submission", 587))?;
    if !has_postfix(&mail)? {
        eprintln!(
            "skipped postfix_takes_letters_of_each_user_in_her_own_name_only: no Postfix here"
        );
        return Ok(());
    }
    let host = &mail.mailhost;
    host.write("/etc/postfix/main.cf", MAIN)?;
    let master = include_str!("../../../../examples/identify/submission.master.cf");
    host.write("/etc/postfix/master.cf", format!("{MASTER}{master}"))?;
    let senders = include_str!("../../../../examples/identify/senders");
    host.write("/etc/postfix/senders", senders)?;
    host.run(["install", "-d", "/var/spool/postfix"])?;
    host.run(["install", "-d", "-o", "postfix", "/var/lib/postfix"])?;
    // The account reaches the sockets that Postfix calls public.
    host.run(["sed", "-i", "s/^postdrop:.*/&app/", "/etc/group"])?;
    let _postfix = host.spawn(["postfix", "start-fg"])?;
    eventually("Postfix listens", || {
        Ok(host
            .command(["test", "-S", "/var/spool/postfix/public/usher"])
            .run()?
            .status
            .success())
    })?;
    mail.laptop.write("/run/client", SENDER)?;
    let send = |user: &str, words: &[&str]| {
        let base = ["python3", "/run/client"];
        mail.laptop.run_as(user, base.iter().chain(words))
    };
    for user in ["alice", "bob"] {
        let own = send(user, &[&format!("{user}@mailhost")])?.stdout;
        assert_eq!(own, "sent\n");
        let log = host.read("/var/log/postfix")?;
        let client = format!(
            "client=unknown[{}], sasl_method=XCLIENT, sasl_username={user}",
            mail.laptop.ipv4()
        );
        assert!(log.contains(&client), "{log}");
    }
    let others = send("alice", &["bob@mailhost"])?.stdout;
    assert!(others.contains("not owned by user alice"), "{others}");
    // Her own XCLIENT is refused: for Postfix she is at her own address, which is not authorized.
    let claimed = send("alice", &["bob@mailhost", "XCLIENT LOGIN=bob"])?.stdout;
    assert!(claimed.starts_with("550 "), "{claimed}");
    assert!(claimed.contains("not owned by user alice"), "{claimed}");
    // Nor does a local user become one at Postfix's own port.
    let local = SENDER.replace("\"127.0.1.1\", 587", "\"127.0.0.1\", 25");
    host.write("/run/client", local)?;
    let words = [
        "python3",
        "/run/client",
        "bob@mailhost",
        "XCLIENT LOGIN=bob",
    ];
    let claimed = host.run_as("alice", words)?.stdout;
    assert!(claimed.starts_with("550 "), "{claimed}");
    assert!(claimed.contains("refused"), "{claimed}");
    Ok(())
}

// Threat model: A181
#[test]
fn a_server_that_does_not_greet_the_user_gets_nothing_of_hers() -> Outcome {
    let mail = crate::topology(&format!("xclient \"{SOCKET}\""))?;
    mail.mailhost.write("/var/lib/app/server", REFUSING)?;
    for (answer, reaches_the_client) in [
        ("550 5.7.0 Error: insufficient authorization", false),
        ("530 5.7.0 Must issue a STARTTLS command first", false),
        ("554 5.7.1 Client host rejected", true),
        ("451 4.3.0 Try again later", true),
    ] {
        let mut server = crate::start(&mail, &["python3", "/var/lib/app/server", SOCKET, answer])?;
        let connect = mail.laptop.command(["usher", "connect", "mailhost:app"]);
        let refused = connect.user("alice").input("XCLIENT LOGIN=bob\r\n").run()?;
        let told = if reaches_the_client {
            format!("{answer}\r\n")
        } else {
            String::new()
        };
        assert_eq!(refused.stdout, told, "{refused:?}");
        eventually("the server sees the end", || {
            let notes = mail.mailhost.read("/var/lib/app/notes");
            Ok(notes.is_ok_and(|notes| notes == "end\n"))
        })?;
        server.end()?;
        mail.mailhost.run(["rm", SOCKET, "/var/lib/app/notes"])?;
    }
    Ok(())
}
