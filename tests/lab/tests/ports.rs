//! Ports that the policy reserves cannot be bound by others.

mod greeter;

use greeter::{Result, topology};
use usher_lab::{Host, Role};

/// The result of binding each of these, in one word.
fn binds(host: &Host, user: &str, places: &[(&str, u16)]) -> Result<Vec<String>> {
    let places: Vec<String> = places
        .iter()
        .map(|(address, port)| format!("('{address}', {port})"))
        .collect();
    let script = format!(
        "import errno, socket
for address, port in [{}]:
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as mine:
        try:
            mine.bind((address, port))
            mine.listen()
            print('bound')
        except OSError as error:
            print(errno.errorcode[error.errno])
",
        places.join(", ")
    );
    let output = host.command(["python3", "-c", &script]).user(user).run()?;
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

#[test]
fn a_services_port_is_the_services_while_policy_has_it() -> Result {
    let mail = topology()?;
    let host = &mail.mailhost;
    let places = [
        ("127.0.0.1", 7000),
        ("::1", 7000),
        ("0.0.0.0", 7000),
        ("127.0.0.1", 7001),
    ];
    let own = host.ipv4().to_string();
    assert_eq!(
        binds(host, "bob", &places)?,
        ["EACCES", "EACCES", "EACCES", "bound"]
    );
    assert_eq!(binds(host, "bob", &[(&own, 7000)])?, ["EACCES"]);
    assert_eq!(binds(host, "root", &places)?, ["bound"; 4]);
    assert_eq!(host.number(Role::Keeper, "port_refused")?, 4);
    // Another host offers nothing there.
    assert_eq!(
        binds(&mail.laptop, "bob", &[("127.0.0.1", 7000)])?,
        ["bound"]
    );
    host.run(["rm", "/etc/usher/policy.d/greeter.policy"])?;
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(binds(host, "bob", &places)?, ["bound"; 4]);
    Ok(())
}

#[test]
fn no_process_replaces_the_proxy_while_it_does_not_run() -> Result {
    let mut mail = topology()?;
    mail.proxy.stop()?;
    let places = [
        ("127.0.1.1", 7000),
        ("0.0.0.0", 7000),
        ("::", 7000),
        ("::ffff:127.0.1.1", 7000),
        ("127.0.0.1", 7000),
        ("127.0.1.1", 7001),
    ];
    assert_eq!(
        binds(&mail.laptop, "bob", &places)?,
        ["EACCES", "EACCES", "EACCES", "EACCES", "bound", "bound"]
    );
    assert_eq!(mail.laptop.number(Role::Signer, "port_refused")?, 4);
    // The proxy has its own ports, and serves.
    mail.proxy.restart()?;
    let script =
        "import socket; print(socket.create_connection(('127.0.1.1', 7000)).recv(16).decode())";
    let greeted = mail
        .laptop
        .command(["python3", "-c", script])
        .user("alice")
        .run()?;
    assert_eq!(greeted.stdout.trim(), "2001", "{}", greeted.stderr);
    Ok(())
}
