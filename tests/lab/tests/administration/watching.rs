//! A host is watched: the exporter shows what its daemons count, and can do nothing else.

use usher_lab::{Daemon, Host, Lab, Mail, PATIENCE, Role, Signal, eventually};

use crate::reading::{Outcome, connect, is_served, lives};

/// Sends its input to the exporter, and prints what comes back until the end.
const ASK: &str = r#"
import socket, sys
exporter = socket.create_connection(("127.0.0.1", 9639))
exporter.sendall(sys.stdin.buffer.read())
while part := exporter.recv(65536):
    sys.stdout.buffer.write(part)
"#;

/// Opens more connections than the exporter keeps, says so, and holds them until its input ends.
const HOLD_MANY: &str = r#"
import socket, sys
held = [socket.create_connection(("127.0.0.1", 9639)) for _ in range(64)]
print("held", flush=True)
sys.stdin.read()
"#;

/// Sends a request to a socket of a daemon, and prints the answer or the name of the error. A socket from
/// which the daemon reads nothing ends with an error after its answer.
const REQUEST: &str = r#"
import socket, sys, time
stream = socket.socket(socket.AF_UNIX)
answer = b""
try:
    stream.connect(sys.argv[1])
    try:
        stream.sendall(b'{"request":"disable","user":"alice","given":%d}\n' % time.time())
    except BrokenPipeError:
        pass
    while part := stream.recv(65536):
        answer += part
except ConnectionResetError:
    pass
except OSError as error:
    answer = type(error).__name__.encode()
print(answer.decode())
"#;

fn ask(host: &Host, request: &str) -> Result<String, Box<dyn std::error::Error>> {
    let answer = host.command(["python3", "-c", ASK]).input(request);
    Ok(answer.succeed()?.stdout)
}

/// The metrics, in Prometheus' format or as OpenMetrics.
fn scrape(host: &Host, accept: &str) -> Result<String, Box<dyn std::error::Error>> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: {accept}\r\n\r\n");
    let answer = ask(host, &request)?;
    let (head, metrics) = answer.split_once("\r\n\r\n").ok_or("no head")?;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    Ok(metrics.to_owned())
}

fn value(metrics: &str, sample: &str) -> Option<u64> {
    let mut lines = metrics.lines();
    lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

fn shows(host: &Host, sample: &str, wanted: u64) -> Outcome {
    let mut last = String::new();
    let shown = eventually("the metric has this value", || {
        last = scrape(host, "*/*").unwrap_or_default();
        Ok(value(&last, sample) == Some(wanted))
    });
    shown.map_err(|error| format!("{error}: {sample} {wanted}: {last}").into())
}

fn watched() -> Result<(Mail, Daemon), Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    let exporter = mail.mailhost.start_daemon(Role::Exporter)?;
    Ok((mail, exporter))
}

/// Whether promtool, of Debian's package prometheus, finds no fault; true without it.
fn promtool_accepts(metrics: &str) -> Result<bool, Box<dyn std::error::Error>> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("not checked by promtool, which is not here (Debian's package prometheus)");
            return Ok(true);
        }
        started => started?,
    };
    let mut input = promtool.stdin.take().ok_or("no input")?;
    input.write_all(metrics.as_bytes())?;
    drop(input);
    Ok(promtool.wait()?.success())
}

#[test]
fn sessions_connections_and_refusals_are_counted() -> Outcome {
    let (mail, _exporter) = watched()?;
    let host = &mail.mailhost;
    let sessions = r#"usher_table_entries{daemon="keeper",table="sessions"}"#;
    let established = r#"usher_events_total{daemon="keeper",event="established"}"#;
    let refused = r#"usher_refusals_total{daemon="verifier",reason="user_not_permitted"}"#;
    let before = scrape(host, "*/*")?;
    for sample in [sessions, established, refused] {
        assert_eq!(value(&before, sample), Some(0), "{before}");
    }
    for daemon in ["keeper", "verifier", "recorder"] {
        let of = |metric: &str| value(&before, &format!("{metric}{{daemon=\"{daemon}\"}}"));
        assert_eq!(of("usher_daemon_up"), Some(1), "{daemon}: {before}");
        assert_eq!(of("usher_exporter_unknown_numbers"), Some(0), "{before}");
    }
    assert_eq!(
        value(&before, r#"usher_daemon_up{daemon="signer"}"#),
        Some(0)
    );
    let limit = r#"usher_table_limit{daemon="keeper",table="sessions"}"#;
    assert_eq!(value(&before, limit), Some(65_536), "{before}");

    let mut alice = connect(&mail, "alice")?;
    shows(host, sessions, 1)?;
    shows(host, established, 1)?;
    assert!(!is_served(&mail, "carol", "imap")?);
    shows(host, refused, 1)?;
    lives(&mut alice)?;

    let ending = r#"usher_keys_ending{daemon="verifier"}"#;
    assert_eq!(value(&before, ending), Some(0), "{before}");
    let ends_tomorrow = "sed -i \"s/^/expiry-time=\\\"$(date -ud tomorrow +%Y%m%dZ)\\\" /\" \
                         /etc/usher/users/bob/authorized_keys";
    host.run(["sh", "-e", "-c", ends_tomorrow])?;
    host.run(["usher", "policy", "apply"])?;
    shows(host, ending, 1)?;

    let metrics = scrape(host, "text/plain")?;
    assert!(promtool_accepts(&metrics)?, "{metrics}");
    for name in ["alice", "carol", "laptop"] {
        assert!(!metrics.contains(name), "{metrics}");
    }
    let open = scrape(host, "application/openmetrics-text;version=1.0.0")?;
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    assert!(open.contains("# TYPE usher_refusals counter\n"), "{open}");
    Ok(())
}

// Threat model: A171
#[test]
fn a_daemon_that_hangs_or_is_down_is_shown_beside_the_others() -> Outcome {
    let (mut mail, _exporter) = watched()?;
    let host = mail.mailhost.clone();
    let (up, hangs) = (
        r#"usher_daemon_up{daemon="verifier"}"#,
        r#"usher_daemon_hangs{daemon="verifier"}"#,
    );
    shows(&host, up, 1)?;
    mail.verifier.kill(Signal::STOP)?;
    let metrics = scrape(&host, "*/*")?;
    assert_eq!(value(&metrics, up), Some(0), "{metrics}");
    assert_eq!(value(&metrics, hangs), Some(1), "{metrics}");
    let keeper = r#"usher_daemon_up{daemon="keeper"}"#;
    assert_eq!(value(&metrics, keeper), Some(1), "{metrics}");
    mail.verifier.kill(Signal::CONT)?;
    shows(&host, up, 1)?;
    mail.verifier.end()?;
    let metrics = scrape(&host, "*/*")?;
    assert_eq!(value(&metrics, up), Some(0), "{metrics}");
    assert_eq!(value(&metrics, hangs), Some(0), "{metrics}");
    Ok(())
}

/// To be watched is not a daemon's work.
#[test]
fn a_daemon_works_without_its_numbers_socket() -> Outcome {
    let (mut mail, _exporter) = watched()?;
    let host = mail.mailhost.clone();
    let up = r#"usher_daemon_up{daemon="verifier"}"#;
    mail.verifier.end()?;
    let socket = "/run/usher/verifier/numbers.sock";
    // Something else that stands in its place.
    host.run(["sh", "-ec", &format!("rm {socket}; mkdir -p {socket}/else")])?;
    mail.verifier.start()?;
    let told = "cannot make the numbers socket";
    assert!(
        mail.verifier.log()?.contains(told),
        "{}",
        mail.verifier.log()?
    );
    assert!(is_served(&mail, "alice", "imap")?);
    assert_eq!(value(&scrape(&host, "*/*")?, up), Some(0));
    host.run(["rm", "-r", socket])?;
    mail.verifier.restart()?;
    shows(&host, up, 1)
}

// Threat model: A170
#[test]
fn the_exporters_account_reads_numbers_and_changes_nothing() -> Outcome {
    let (mail, _exporter) = watched()?;
    let request = |user: &str, socket: &str| {
        let path = format!("/run/usher/keeper/{socket}");
        let command = mail.mailhost.command(["python3", "-c", REQUEST, &path]);
        let command = if user == "root" {
            command
        } else {
            command.user(user)
        };
        command.succeed().map(|done| done.stdout)
    };
    assert_eq!(
        request("usher-exporter", "control.sock")?,
        "PermissionError\n"
    );
    // The daemon does not read the request.
    let numbers = request("usher-exporter", "numbers.sock")?;
    assert!(numbers.contains(r#""established":0"#), "{numbers}");
    assert!(is_served(&mail, "alice", "imap")?);
    for user in ["alice", "usher-verifier"] {
        assert_eq!(
            request(user, "numbers.sock")?,
            "PermissionError\n",
            "{user}"
        );
    }
    // The same request of root's counts.
    let answer = request("root", "control.sock")?;
    assert!(answer.contains(r#""answer":"done""#), "{answer}");
    assert!(!is_served(&mail, "alice", "imap")?);
    Ok(())
}

// Threat model: A171
#[test]
fn large_slow_and_too_many_requests_are_refused() -> Outcome {
    let (mail, _exporter) = watched()?;
    let host = &mail.mailhost;
    for (request, status) in [
        (
            format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(8192)),
            "431",
        ),
        ("POST /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("GET /users HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("GET /metrics\r\n\r\n".to_owned(), "400"),
    ] {
        let answer = ask(host, &request)?;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    assert_eq!(host.number(Role::Exporter, "refused_mistaken")?, 4);
    assert_eq!(host.number(Role::Exporter, "refused_full")?, 0);
    assert_eq!(host.number(Role::Exporter, "refused_slow")?, 0);
    let mut many = host.spawn(["python3", "-c", HOLD_MANY])?;
    many.read_past("held", PATIENCE)?;
    eventually("connections are refused because others are open", || {
        Ok(host.number(Role::Exporter, "refused_full")? > 0)
    })?;
    // They keep nobody from asking.
    let up = r#"usher_daemon_up{daemon="keeper"}"#;
    for _ in 0..20 {
        assert_eq!(value(&scrape(host, "*/*")?, up), Some(1));
    }
    eventually("those that ask nothing are closed", || {
        Ok(host.number(Role::Exporter, "refused_slow")? > 0)
    })?;
    Ok(())
}
