//! The demo's last part: the same mail, protected by IPsec.

use serde_json::Value;
use usher_lab::protected::watch_packets;
use usher_lab::{ALICE, Daemon, Host, LabError, Mail, PATIENCE, Role, eventually};

use crate::DemoError;
use crate::steps::{PLAIN, connect};
use crate::tell::Teller;

type Done = Result<(), DemoError>;

const POLICY: &str = "/etc/usher/policy.d/protection.policy";

/// The time that a connection in the clear tries; its SYNs are dropped, so it ends without an answer.
const SECONDS: &str = "5";

/// Shows it, or says what the kernel lacks.
pub(crate) fn shown(teller: &Teller, mail: &Mail) -> Done {
    teller.heading("Protection: the mail crosses the network by IPsec only");
    let needed = ["protection", "IPsec", "listing sockets"];
    let lacking = mail.mailhost.lacking(&needed)?;
    if !lacking.is_empty() {
        for finding in lacking {
            teller.note(&format!("this kernel lacks {finding}"));
        }
        teller.note(
            "`make demo KERNEL=6.12` shows this part in a virtual machine with Debian's kernel",
        );
        return Ok(());
    }
    let _daemons = in_force(teller, mail)?;
    peers(teller, mail)?;
    protected(teller, mail)?;
    plaintext(teller, mail)
}

/// Starts charon and the protector on both hosts, and applies the policy.
fn in_force(teller: &Teller, mail: &Mail) -> Result<Vec<Daemon>, DemoError> {
    let mut daemons = Vec::new();
    let program = |name: &str| -> Result<String, LabError> {
        let found = mail.mailhost.run(["sh", "-c", "command -v $0", name])?;
        Ok(found.stdout.trim().to_owned())
    };
    let policy = policy(&program("usherd")?, &program("usher")?);
    teller.command(
        "root",
        "mailhost",
        &format!("cat {POLICY}   # the same on laptop"),
    );
    teller.quote(&policy);
    for host in [&mail.laptop, &mail.mailhost] {
        daemons.push(host.supervise("charon", ["/usr/sbin/charon-systemd"])?);
        daemons.push(host.start_daemon(Role::Protector)?);
        host.write(POLICY, &policy)?;
        host.run(["usher", "policy", "apply"])?;
    }
    teller.fact(
        "strongSwan's charon and the protector run on both hosts; the hosts' IKE keys are those of \
         `usher init`",
        None,
    );
    Ok(daemons)
}

/// Mail is encrypted, everything else that these programs send to other hosts is authenticated.
fn policy(daemons: &str, command: &str) -> String {
    format!(
        "application {daemons}, {command} {{
  network 0.0.0.0/0 protected Mail;
  protection Mail {{
    localport=143 remoteport=any encryption mandatory;
    localport=any remoteport=143 encryption mandatory;
    localport=any remoteport=any authentication optional;
  }}
}}
"
    )
}

/// SAs come without a packet that asks for them.
fn peers(teller: &Teller, mail: &Mail) -> Done {
    let mut seen = Value::Null;
    let waited = eventually("each class has SAs with the other host", || {
        let told = mail
            .mailhost
            .run(["usher", "--json", "protection", "peers"])?;
        seen = serde_json::from_str(&told.stdout).unwrap_or_default();
        let peers = seen["peers"].as_array().into_iter().flatten();
        let mut classes = peers.flat_map(|peer| peer["classes"].as_array().into_iter().flatten());
        let first = classes.next();
        Ok(first.is_some()
            && first
                .into_iter()
                .chain(classes)
                .all(|one| one["protected"] == true))
    });
    teller.command("root", "mailhost", "usher protection peers");
    teller.quote(&mail.mailhost.run(["usher", "protection", "peers"])?.stdout);
    teller.demand(
        "both classes have SAs before a connection needs them",
        waited.is_ok(),
        None,
        || format!("{seen:#}"),
    )
}

/// alice reads her mail, and the network carries ESP only.
fn protected(teller: &Teller, mail: &Mail) -> Done {
    let mut network = watch_packets(&mail.mailhost)?;
    let mut session = connect(teller, mail, ALICE)?;
    session.write("a1 STATUS INBOX (MESSAGES)\r\n")?;
    let answer = session.read_past("a1 ", PATIENCE)?;
    teller.quote(&answer);
    drop(session);
    // The last that the network carries is in the clear.
    mail.stranger
        .command([
            "bash",
            "-c",
            PLAIN,
            "bash",
            &mail.mailhost.ipv4().to_string(),
            "143",
        ])
        .run()?;
    let stranger = format!("tcp {} 143", mail.stranger.ipv4());
    let seen = network.read_past(&format!("{stranger}\n"), PATIENCE)?;
    let protected = seen.lines().filter(|line| line.starts_with("esp ")).count();
    let plain = seen.lines().filter(|line| line.ends_with(" 143")).count();
    teller.demand(
        format!("the network has carried {protected} packets of ESP, and none of TCP at port 143"),
        protected > 0 && plain == 1,
        None,
        || seen.clone(),
    )
}

/// A good key is not enough: what a host sends must be protected, too.
fn plaintext(teller: &Teller, mail: &Mail) -> Done {
    teller.command(
        "root",
        "laptop",
        &format!("rm {POLICY}; usher policy apply"),
    );
    mail.laptop.run(["rm", POLICY])?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let before = refused(&mail.mailhost)?;
    teller.command(ALICE.name, "laptop", "usher connect mailhost:imap");
    let output = mail
        .laptop
        .command(["timeout", SECONDS, "usher", "connect", "mailhost:imap"])
        .user(ALICE.name)
        .run()?;
    let now = refused(&mail.mailhost)?;
    teller.demand(
        "no answer: mailhost's kernel drops what laptop sends in the clear",
        output.stdout.is_empty() && now > before,
        None,
        || {
            format!(
                "{}{}refused_plain: {before}, then {now}",
                output.stdout, output.stderr
            )
        },
    )?;
    teller.command("root", "mailhost", "usher protection show");
    teller.quote(&mail.mailhost.run(["usher", "protection", "show"])?.stdout);
    Ok(())
}

/// The packets in the clear that this host's monitor has dropped.
fn refused(host: &Host) -> Result<u64, DemoError> {
    let told = host.run(["usher", "--json", "protection", "show"])?.stdout;
    let shown: Value = serde_json::from_str(&told)?;
    Ok(shown["counters"]["refused_plain"].as_u64().unwrap_or(0))
}
