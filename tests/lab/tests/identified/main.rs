//! Servers at local sockets, which get to know the user of each connection.

mod http;
mod peer;
mod proxy_protocol;
#[path = "../reading/mod.rs"]
mod reading;
mod smtp;

use reading::Outcome;
use usher_lab::{Lab, Mail, Running, eventually};

/// The account of the service.
const APP: (&str, u32) = ("app", 3001);
const SOCKET: &str = "/run/app/usher.sock";

/// Users of mail are served by the server at the socket.
fn service(identify: &str) -> String {
    format!(
        "service app {{ account app; identify {identify}; listen 7200; style shared; users mail; \
         hosts laptop; }}\n"
    )
}

fn client(service: &str, port: u16) -> String {
    format!("client {service} {{ users mail; service {service} at mailhost port {port}; }}\n")
}

/// `identify` is the statement's values.
fn topology(identify: &str) -> Result<Mail, Box<dyn std::error::Error>> {
    topology_with(&service(identify), &client("app", 7200))
}

fn topology_with(service: &str, client: &str) -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    host.add_account(APP.0, APP.1)?;
    host.run(["install", "-d", "-o", APP.0, "-m", "700", "/run/app"])?;
    host.run(["install", "-d", "-o", APP.0, "-m", "755", "/var/lib/app"])?;
    mail.add_policies("app", service, client)?;
    Ok(mail)
}

/// Starts a server as the account, and waits until its socket is there.
fn start(mail: &Mail, words: &[&str]) -> Result<Running, Box<dyn std::error::Error>> {
    let server = mail.mailhost.command(words).user(APP.0).spawn()?;
    eventually("the server listens", || {
        let test = mail.mailhost.command(["test", "-S", SOCKET]).run()?;
        Ok(test.status.success())
    })?;
    Ok(server)
}

#[test]
fn statements_that_contradict_each_other_are_refused() -> Outcome {
    let identify = format!("proxy-protocol \"{SOCKET}\"");
    let mail = topology(&identify)?;
    for (part, with, mistake) in [
        ("account app; ", "", "says neither `program` nor `account`"),
        (
            "listen",
            "program \"/bin/true\"; listen",
            "`identify` stands beside `program`",
        ),
        (SOCKET, "usher.sock", "` is no absolute path of a socket"),
        (
            SOCKET,
            "/run/../run/usher.sock",
            "` is no absolute path of a socket",
        ),
        ("style shared", "style user", "`identify`"),
        ("proxy-protocol", "proxy", "proxy-protocol"),
        (
            "; listen",
            " header X-User; listen",
            "only `identify http` and `identify http2` tell the user's name in a header",
        ),
    ] {
        let text = service(&identify).replace(part, with);
        mail.mailhost
            .write("/etc/usher/policy.d/app.policy", &text)?;
        let checked = mail.mailhost.command(["usher", "policy", "check"]).run()?;
        assert_eq!(checked.status.code(), Some(1), "{text}: {checked:?}");
        assert!(checked.stderr.contains(mistake), "{text}: {checked:?}");
    }
    Ok(())
}

#[test]
fn headers_that_cannot_have_a_name_are_refused() -> Outcome {
    let mail = topology(&format!("http \"{SOCKET}\""))?;
    let check = |header: &str| {
        let text = service(&format!("http \"{SOCKET}\" header {header}"));
        mail.mailhost
            .write("/etc/usher/policy.d/app.policy", &text)?;
        mail.mailhost.command(["usher", "policy", "check"]).run()
    };
    for header in [
        "Host",
        "content-length",
        "X_Remote_User",
        "7x",
        "X-",
        "x.user",
    ] {
        let checked = check(header)?;
        assert_eq!(checked.status.code(), Some(1), "{header}: {checked:?}");
        let mistake = format!("`{header}` is no header for a user's name");
        assert!(checked.stderr.contains(&mistake), "{checked:?}");
    }
    let checked = check("Remote-User")?;
    assert!(checked.status.success(), "{checked:?}");
    Ok(())
}
