//! The module `ubns`: from the policy's services to a worker's label.

use serde_json::json;
use usher_lab::{Host, Role};

use super::{Outcome, answer, host_with_modules, refused};

/// Whether a user binds a port.
fn binds(host: &Host, user: &str, port: u16) -> Result<bool, Box<dyn std::error::Error>> {
    let script = format!("import socket; socket.socket().bind(('127.0.0.1', {port}))");
    let output = host
        .command(["/usr/bin/python3", "-c", &script])
        .user(user)
        .run()?;
    let is_refused = output.stderr.contains("Errno 13");
    assert_eq!(output.status.success(), !is_refused, "{output:?}");
    Ok(output.status.success())
}

const SERVICES: &str = "/etc/usher/policy.d/services.policy";

/// A policy with two services for alice on this host: mail, and one at this port that prints its label.
fn services(port: u16) -> String {
    format!(
        "mac ubns {{ }}
         users mail {{ member alice; }}
         service imap {{
           program {imap};
           listen 143; users mail; hosts server; style connection;
         }}
         service label {{
           program \"/run/lab/bin/getpmac\";
           listen {port}; users mail; hosts server; style connection; connect none;
         }}
         client mail {{
           users mail; service imap at server port 143; service label at server port {port};
         }}\n",
        imap = usher_lab::imap!()
    )
}

/// What a user is told by a service of the host.
pub(super) fn told(
    host: &Host,
    user: &str,
    service: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let connect = host.command(["usher", "connect", &format!("server:{service}")]);
    Ok(connect.user(user).input("x LOGOUT\r\n").run()?.stdout)
}

/// Makes a key by which a user authenticates to the host, on the host itself.
pub(super) fn give_key(host: &Host, user: &str) -> Outcome {
    let key = format!("/home/{user}/key");
    let words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &key];
    host.run_as(user, words)?;
    host.run(["usher", "user", "add", user, "--private-key", &key])?;
    let public = format!("{key}.pub");
    host.run(["usher", "user", "add", user, "--public-key", &public])?;
    Ok(())
}

// Threat model: M21
#[test]
fn services_are_a_module_that_outlives_the_keeper() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    give_key(&host, "alice")?;
    let mut keeper = host.start_daemon(Role::Keeper)?;
    let mut labeller = host.start_daemon(Role::Labeller)?;
    host.write(SERVICES, services(8143))?;
    host.run(["usher", "policy", "apply"])?;
    let roles = [Role::Recorder, Role::Verifier, Role::Signer, Role::Courier];
    let daemons = roles.map(|role| host.start_daemon(role));
    let _daemons = daemons.into_iter().collect::<Result<Vec<_>, _>>()?;
    host.run(["usher", "mac", "load", "ubns"])?;

    // The starter labels processes, and dovecot's serves as before.
    assert_eq!(told(&host, "alice", "label")?, "ubns/label\n");
    let greeting = told(&host, "alice", "imap")?;
    assert!(greeting.contains("Logged in as alice"), "{greeting}");
    let settings = answer(&host, &["list", "ubns"])?["settings"].clone();
    let imap = "service imap listen 143";
    let expected = json!([imap, "service label listen 8143 connect none"]);
    assert_eq!(settings, expected);

    // The keeper's own programs end with it.
    keeper.stop()?;
    assert!(!binds(&host, "bob", 8143)?);
    assert!(binds(&host, "bob", 8144)?, "no service's");
    let refusals = answer(&host, &["list", "ubns"])?["refusals"].clone();
    assert_eq!(refusals, json!({ "socket_bind": 1 }));

    // Another policy, which the command says no keeper follows, and no module.
    host.write(SERVICES, services(8144))?;
    let applied = host.command(["usher", "policy", "apply"]).run()?.stderr;
    assert!(applied.contains("is in force"), "{applied}");
    assert!(binds(&host, "bob", 8143)? && !binds(&host, "bob", 8144)?);

    // Without a labeller the module would keep the former services.
    labeller.stop()?;
    host.write(SERVICES, services(8145).replace("mac ubns { }", ""))?;
    let told = refused(&host, &["usher", "policy", "apply"])?;
    assert!(told.contains("labeller"), "{told}");
    labeller.start()?;
    assert!(!binds(&host, "bob", 8144)?, "the former policy");
    host.run(["usher", "mac", "unload", "ubns"])?;
    assert!(binds(&host, "bob", 8144)?, "unloaded");
    // Without the module the policy needs none.
    labeller.stop()?;
    let applied = host.command(["usher", "policy", "apply"]).run()?.stderr;
    assert!(applied.contains("is in force"), "{applied}");
    Ok(())
}
