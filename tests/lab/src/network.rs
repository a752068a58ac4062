//! The lab's network. A host's interface `eth0` is one end of a veth pair whose other end is a port
//! of the switch. Both ends are made inside their namespaces, so the machine's own network
//! namespace never sees them.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use crate::command::PROGRAM_PATH;
use crate::error::{Attempt, LabError};
use crate::waiting::eventually;

/// IPv4 address of the `number`th host.
pub(crate) fn ipv4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

/// IPv6 address of the `number`th host.
pub(crate) fn ipv6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(number))
}

/// Plugs the `number`th host into the switch; each is known by its anchor's process id.
pub(crate) fn plug(switch: u32, host: u32, name: &str, number: u8) -> Result<(), LabError> {
    ip(
        switch,
        "switch",
        &format!(
            "link add port{number} type veth peer name eth0 netns {host}\n\
             link set port{number} master switch up\n"
        ),
    )?;
    ip(
        host,
        name,
        &format!(
            "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\nlink set eth0 up\n",
            ipv4(number),
            ipv6(number)
        ),
    )?;
    // The kernel's worker begins to pass packets some time later. ARP would give up meanwhile.
    for (anchor, interface) in [(switch, format!("port{number}")), (host, "eth0".into())] {
        let show = format!("link show dev {interface}\n");
        eventually("an interface is up", || {
            Ok(ip(anchor, name, &show)?.contains("state UP"))
        })
        .map_err(|error| LabError::Link {
            host: name.into(),
            reason: error.to_string(),
        })?;
    }
    Ok(())
}

/// Has the switch forget at once which host is at which port, so that it floods all frames.
pub(crate) fn forget_places(switch: u32) -> Result<(), LabError> {
    let hub = "link set switch type bridge ageing_time 0\n";
    ip(switch, "switch", hub).map(|_| ())
}

/// Runs a batch of `ip` commands in an anchor's network namespace, and returns the output. The PID
/// namespace stays the caller's, so that process ids in the commands have the same meaning as here.
fn ip(anchor: u32, name: &str, commands: &str) -> Result<String, LabError> {
    let mut child = Command::new("nsenter")
        .args([
            "--target",
            &anchor.to_string(),
            "--net",
            "ip",
            "-batch",
            "-",
        ])
        .env("PATH", PROGRAM_PATH)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .attempt(|| "cannot start nsenter".into())?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(commands.as_bytes())
            .attempt(|| "cannot write to ip".into())?;
    }
    let output = child
        .wait_with_output()
        .attempt(|| "cannot wait for ip".into())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(LabError::Failed {
        host: name.into(),
        command: format!("ip -batch: {}", commands.trim().replace('\n', "; ")),
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
