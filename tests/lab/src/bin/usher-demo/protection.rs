//! The demo's last part: the same mail, protected by IPsec.

use serde_json::Value;
use usher_lab::protected::{watch_leaving, watch_packets};
use usher_lab::{ALICE, Daemon, LabError, Mail, PATIENCE, Role, eventually};

use crate::DemoError;
use crate::steps::{PLAIN, connect};
use crate::tell::Teller;

type Done = Result<(), DemoError>;

const POLICY: &str = "/etc/usher/policy.d/protection.policy";

/// The policy of the mail service and its users.
const MAIL: &str = "/etc/usher/policy.d/mail.policy";

/// The service's demand, and the statement in its block after which it stands.
const DEMAND: &str = "protection encryption;";
const BEFORE: &str = "hosts laptop;";

/// The time that a connection in the clear tries; its SYNs are dropped, so it ends without an answer.
const SECONDS: &str = "5";

/// Shows it, or says what the kernel lacks.
pub(crate) fn shown(teller: &Teller, mail: &Mail) -> Done {
    teller.heading("Protection: the mail crosses the network by IPsec only");
    let needed = [
        "protection",
        "IPsec",
        "listing sockets",
        "protected services",
    ];
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
    demand_protection(teller, mail)?;
    let policy = policy(&program("usher")?);
    teller.command(
        "root",
        "mailhost",
        &format!("cat {POLICY}   # the same on laptop, for its programs"),
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

/// mailhost's service demands encryption, whichever program serves it.
fn demand_protection(teller: &Teller, mail: &Mail) -> Done {
    let service = mail.mailhost.read(MAIL)?;
    let demanding = service.replace(BEFORE, &format!("{BEFORE}\n  {DEMAND}"));
    mail.mailhost.write(MAIL, &demanding)?;
    teller.command("root", "mailhost", &format!("cat {MAIL}"));
    teller.quote(&demanding);
    teller.demand(
        "the service demands encryption of everybody",
        demanding.contains(DEMAND),
        None,
        || service,
    )
}

/// Mail is encrypted, everything else that the program sends to other hosts is authenticated.
fn policy(command: &str) -> String {
    format!(
        "application {command} {{
  network 0.0.0.0/0 protected Mail;
  protection Mail {{
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
    let refused = || mail.mailhost.number(Role::Keeper, "packets_refused");
    let before = refused()?;
    let mut leaving = watch_leaving(&mail.mailhost)?;
    teller.command(ALICE.name, "laptop", "usher connect mailhost:imap");
    let output = mail
        .laptop
        .command(["timeout", SECONDS, "usher", "connect", "mailhost:imap"])
        .user(ALICE.name)
        .run()?;
    let now = refused()?;
    teller.demand(
        "no answer: mailhost's kernel drops what laptop sends in the clear",
        output.stdout.is_empty() && now > before,
        None,
        || {
            format!(
                "{}{}packets_refused: {before}, then {now}",
                output.stdout, output.stderr
            )
        },
    )?;
    let stranger = mail.stranger.ipv4();
    let server = mail.mailhost.ipv4().to_string();
    let ssh = ["bash", "-c", PLAIN, "bash", &server, "22"];
    mail.stranger.command(ssh).run()?;
    let seen = leaving.read_past(&format!("tcp {stranger} 22\n"), PATIENCE)?;
    teller.demand(
        "mailhost has sent no packet of TCP from port 143 to laptop in the clear",
        !seen.contains(&format!("tcp {} 143\n", mail.laptop.ipv4())),
        None,
        || seen.clone(),
    )?;
    teller.command("root", "mailhost", "usher protection show");
    teller.quote(&mail.mailhost.run(["usher", "protection", "show"])?.stdout);
    Ok(())
}
