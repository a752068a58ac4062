//! The module `ifoff`: from the policy to the packets of interfaces, also of those that come later.

use serde_json::json;
use usher_lab::{Host, Role, eventually};

use super::{Outcome, POLICY, answer, host_with_modules};

/// The number of the error with which a datagram to this address fails; 0: it is sent.
fn error_of_send(host: &Host, address: &str) -> Result<i32, Box<dyn std::error::Error>> {
    let script = format!(
        "import socket, sys
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{address}', 9))
except OSError as error: sys.exit(error.errno)"
    );
    let send = host.command(["/usr/bin/python3", "-I", "-S", "-c", &script]);
    Ok(send.run()?.status.code().ok_or("killed")?)
}

// Threat model: M35
#[test]
fn the_labeller_follows_the_interfaces_that_come() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    let _labeller = host.start_daemon(Role::Labeller)?;
    host.write(
        POLICY,
        "mac ifoff {\n  others on;\n  interface \"late\" off;\n}\n",
    )?;
    host.run(["usher", "policy", "apply"])?;
    host.run(["usher", "mac", "load", "ifoff"])?;
    let listed = answer(&host, &["list", "ifoff"])?;
    let settings = json!(["interface \"late\" off", "others on"]);
    assert_eq!(listed["settings"], settings);
    for command in [
        "link add late type veth peer name end",
        "link set end up",
        "address add 10.99.0.1/24 dev late",
        "link set late up",
    ] {
        host.run([&["ip"], command.split(' ').collect::<Vec<_>>().as_slice()].concat())?;
    }
    // Packets of sockets are refused at once; those of the kernel, which asks for a neighbour, as soon as the
    // labeller has seen the interface.
    assert_eq!(error_of_send(&host, "10.99.0.2")?, 1);
    assert_eq!(error_of_send(&host, "127.0.0.1")?, 0);
    let mut fresh = (3..255).cycle();
    eventually("the kernel's own packets are dropped", || {
        let address = format!("10.99.0.{}", fresh.next().unwrap_or(3));
        host.run(["ip", "neigh", "replace", &address, "dev", "late", "use"])?;
        let listed = answer(&host, &["list", "ifoff"])?;
        Ok(listed["refusals"]["interface_send"].as_u64().unwrap_or(0) > 0)
    })?;
    // Nothing of it has gone wrong.
    assert_eq!(answer(&host, &["status"])?["troubles"], json!([]));
    // The policy turns it on.
    host.write(POLICY, "mac ifoff {\n  others on;\n}\n")?;
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(error_of_send(&host, "10.99.0.2")?, 0);
    host.run(["usher", "mac", "unload", "ifoff"])?;
    Ok(())
}
