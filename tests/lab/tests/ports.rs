//! Ports that the policy reserves cannot be bound by others.

mod greeter;

use greeter::{Result, topology, topology_for};
use usher_lab::{Host, Mail, PATIENCE, Role, Running};

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

// Threat model: A78
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

// Threat model: A80
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

/// The greeter at port 7000, for `usher connect`.
fn greeting() -> Result<Mail> {
    topology_for("client greeter { users mail; service greeter at mailhost port 7000; }\n")
}

/// Listens, becomes the user of a number if it is told one, and answers the first connection with a shell.
const SERVER: &str = r#"
import os, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", int(sys.argv[1])))
listener.listen()
if len(sys.argv) > 2:
    os.setresuid(*[int(sys.argv[2])] * 3)
print("listening", flush=True)
connection, _ = listener.accept()
listener.close()
for number in 0, 1, 2:
    os.dup2(connection.fileno(), number)
os.execv("/bin/sh", ["sh"])
"#;

/// Starts a server of mailhost under a program name of its own.
fn serve(mail: &Mail, program: &str, port: u16) -> Result<Running> {
    serve_as(mail, program, port, &[])
}

/// The same, with these further arguments.
fn serve_as(mail: &Mail, program: &str, port: u16, more: &[&str]) -> Result<Running> {
    let path = format!("/var/lib/{program}");
    mail.mailhost.run(["cp", "/usr/bin/python3", &path])?;
    let port = port.to_string();
    let arguments = [&path, "-c", SERVER, &port]
        .into_iter()
        .chain(more.iter().copied());
    let mut server = mail.mailhost.command(arguments).spawn()?;
    server.read_past("listening", PATIENCE)?;
    Ok(server)
}

/// Moves the greeter to a port, and returns the exit status and the messages of a command.
fn at_port(mail: &Mail, port: u16, command: &[&str]) -> Result<(Option<i32>, String)> {
    let program = "program \"/usr/bin/python3\" \"/var/lib/greeter.py\"; style user";
    served_at_port(mail, program, port, command)
}

/// The same, with these statements.
fn served_at_port(
    mail: &Mail,
    served: &str,
    port: u16,
    command: &[&str],
) -> Result<(Option<i32>, String)> {
    let policy =
        format!("service greeter {{ {served}; listen {port}; users mail; hosts laptop; }}\n");
    let path = "/etc/usher/policy.d/greeter.policy";
    mail.mailhost.write(path, policy)?;
    let output = mail.mailhost.command(command).run()?;
    Ok((output.status.code(), output.stderr))
}

const CHECK: &[&str] = &["usher", "policy", "check"];
const APPLY: &[&str] = &["usher", "policy", "apply"];
const TAKE: &[&str] = &["usher", "policy", "apply", "--take-ssh-port"];
const DRY_RUN: &[&str] = &["usher", "policy", "apply", "--dry-run"];

#[test]
fn a_server_whose_port_a_service_takes_is_named() -> Result {
    let mail = greeting()?;
    let mut server = serve(&mail, "mailer", 7500)?;
    let named = "/var/lib/mailer (pid ";
    let said = "listens at port 7500 already";
    for command in [CHECK, APPLY] {
        let (code, warnings) = at_port(&mail, 7500, command)?;
        assert_eq!(code, Some(0), "{warnings}");
        assert!(
            warnings.contains(named) && warnings.contains(said),
            "{warnings}"
        );
        assert!(warnings.contains("greeter.policy:1:"), "{warnings}");
    }
    server.end()?;
    // The service's own listeners, of the keeper and of a worker, are no other server.
    let greeted = mail
        .laptop
        .command(["usher", "connect", "mailhost:greeter"]);
    drop(greeted.user("alice").run()?);
    for (port, command) in [(7500, CHECK), (7501, APPLY), (7501, CHECK)] {
        let (code, warnings) = at_port(&mail, port, command)?;
        assert_eq!(code, Some(0), "{warnings}");
        assert!(!warnings.contains("already"), "{warnings}");
    }
    Ok(())
}

#[test]
fn the_port_of_ssh_is_taken_only_if_that_is_said() -> Result {
    let mail = greeting()?;
    let mut server = serve(&mail, "sshd", 7600)?;
    for (command, code) in [(APPLY, 1), (DRY_RUN, 2)] {
        let (status, said) = at_port(&mail, 7600, command)?;
        assert_eq!(status, Some(code), "{said}");
        if command == APPLY {
            assert!(said.contains("would take port 7600"), "{said}");
            assert!(said.contains("/var/lib/sshd (pid "), "{said}");
            assert!(said.contains("--take-ssh-port"), "{said}");
        }
        let shown = mail.mailhost.run(["usher", "policy", "show"])?.stdout;
        assert!(shown.contains("listen 7000"), "{shown}");
    }
    // Another port is free.
    assert_eq!(at_port(&mail, 7601, APPLY)?.0, Some(0));
    let (code, warnings) = at_port(&mail, 7600, TAKE)?;
    assert_eq!(code, Some(0), "{warnings}");
    assert!(
        warnings.contains("listens at port 7600 already"),
        "{warnings}"
    );
    // It is taken already.
    let (code, warnings) = at_port(&mail, 7600, APPLY)?;
    assert_eq!(code, Some(0), "{warnings}");
    server.end()?;
    Ok(())
}

#[test]
fn an_account_does_not_take_the_port_of_ssh_in_silence() -> Result {
    let mail = greeting()?;
    mail.mailhost.add_account("served", 2950)?;
    let account =
        |port, command| served_at_port(&mail, "account served; style user", port, command);
    let mut server = serve(&mail, "sshd", 7600)?;
    let (code, said) = account(7600, APPLY)?;
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "would take port 7600",
        "/var/lib/sshd (pid ",
        "--take-ssh-port",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (_, warnings) = account(7600, CHECK)?;
    assert!(
        warnings.contains("listens at port 7600 already"),
        "{warnings}"
    );
    server.end()?;
    // Also when the account itself has it.
    let mut server = serve_as(&mail, "sshd", 7600, &["2950"])?;
    assert_eq!(account(7600, APPLY)?.0, Some(1));
    server.end()?;
    Ok(())
}

#[test]
fn an_accounts_own_listener_is_no_other_server() -> Result {
    let mail = greeting()?;
    mail.mailhost.add_account("served", 2950)?;
    let account = |port| served_at_port(&mail, "account served; style user", port, CHECK);
    let mut servers = Vec::new();
    // Made by root, and held by root, by another user, or by the account alone.
    for (port, more, is_named) in [
        (7700, &[][..], true),
        (7701, &["2001"], true),
        (7702, &["2950"], false),
    ] {
        servers.push(serve_as(&mail, &format!("server{port}"), port, more)?);
        let (_, warnings) = account(port)?;
        let said = format!("/var/lib/server{port} (pid ");
        assert_eq!(warnings.contains(&said), is_named, "{port}: {warnings}");
        assert_eq!(warnings.contains("already"), is_named, "{port}: {warnings}");
    }
    // Made by the account.
    let script = "import socket, sys; mine = socket.create_server(('', 7703)); print('listening', \
                  flush=True); sys.stdin.read()";
    let own = mail.mailhost.command(["python3", "-c", script]);
    let mut own = own.user("served").spawn()?;
    own.read_past("listening", PATIENCE)?;
    let (_, warnings) = account(7703)?;
    assert!(!warnings.contains("already"), "{warnings}");
    for server in servers.iter_mut().chain([&mut own]) {
        server.end()?;
    }
    Ok(())
}

#[test]
fn the_port_of_the_administrators_session_is_not_taken() -> Result {
    let mail = greeting()?;
    let _server = serve(&mail, "telnetd", 7600)?;
    let address = format!("TCP:{}:7600", mail.mailhost.ipv4());
    let mut session = mail.laptop.command(["socat", "STDIO", &address]).spawn()?;
    // In the session: the same command succeeds for another port.
    for (port, line) in [(7600, "7600: 1"), (7601, "7601: 0")] {
        let text = format!(
            "sed -i 's/listen [0-9]*/listen {port}/' /etc/usher/policy.d/greeter.policy; \
             (sh -c 'usher policy apply'; echo \"{port}: $?\")\n"
        );
        session.write(text)?;
        let said = session.read_past(line, PATIENCE)?;
        if port == 7600 {
            assert!(said.contains("this session is connected by it"), "{said}");
        }
    }
    // Outside of it nothing stands against the port.
    assert_eq!(at_port(&mail, 7600, APPLY)?.0, Some(0));
    Ok(())
}
