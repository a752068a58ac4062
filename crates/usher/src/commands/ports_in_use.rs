//! Servers that listen at a port which the policy gives to a service. The keeper's programs then answer at
//! that port, and such a server gets no further connection. Reads `/proc`, where only root sees other users'
//! processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use usher_policy::{Policy, ServedBy, Service, joined};

use super::warning::Warning;
use super::warning::said;
use crate::accounts;
use crate::failure::Failure;
use crate::tcp_sockets::{ESTABLISHED, LISTEN, Socket, sockets};

/// The option of `usher policy apply` that permits to take the port of an SSH server.
pub const TAKE_SSH_PORT: &str = "--take-ssh-port";

/// The first process, which holds the sockets of socket units.
const SERVICE_MANAGER: u32 = 1;

/// A server at a service's port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Server {
    /// For people: the programs that hold the listener.
    text: String,
    /// Whether it is an SSH server.
    is_ssh: bool,
}

/// A process that holds a listener.
#[derive(Debug)]
struct Holder {
    pid: u32,
    /// The real and the effective user of the process.
    uids: Vec<u32>,
    program: String,
    unit: Option<String>,
}

/// Warnings about services whose ports other servers have.
pub fn warnings(policy: &Policy) -> Vec<Warning> {
    let found = servers(policy).into_iter().map(|(service, server)| {
        let text = format!(
            "`service {}`: {} listens at port {} already: while this policy is in force, it gets no \
             new connection there; stop it, or give the service another port",
            service.name, server.text, service.listen
        );
        Warning::about(said(service, "listen"), text)
    });
    found.collect()
}

/// Refuses to take a port by which the administrator's session is connected, or at which an SSH server
/// listens: after a mistake no one could log in to undo it. A port that the policy in force has already
/// taken is permitted.
///
/// # Errors
/// [`Failure::Refused`], with the remedies.
pub fn spare_ssh(policy: &Policy, in_force: Option<&Policy>) -> Result<(), Failure> {
    let has_it = |service: &&Service| {
        let mut present = in_force
            .into_iter()
            .flat_map(|policy| policy.services.values());
        present.any(|present| present.listen == service.listen)
    };
    let taken: Vec<&Service> = policy
        .services
        .values()
        .filter(|service| !has_it(service))
        .collect();
    if taken.is_empty() {
        return Ok(());
    }
    let own = ports_of_this_session();
    let servers = servers(policy);
    for service in taken {
        let port = service.listen;
        let ssh = servers
            .iter()
            .find(|(of, server)| of.listen == port && server.is_ssh);
        let reason = match ssh {
            Some((_, server)) => format!("{} listens there", server.text),
            None if own.contains(&port) => "this session is connected by it".to_owned(),
            None => continue,
        };
        return Err(Failure::Refused(format!(
            "`service {}` would take port {port} of this host, and {reason}: nobody could log in by it \
             any more. Give the service another port; if it is meant: `usher policy apply \
             {TAKE_SSH_PORT}`",
            service.name
        )));
    }
    Ok(())
}

/// The services of a policy, each with a server of others at its port.
fn servers(policy: &Policy) -> Vec<(&Service, Server)> {
    let ports: BTreeSet<u16> = policy
        .services
        .values()
        .map(|service| service.listen)
        .collect();
    let is_at_a_service = |socket: &Socket| ports.contains(&socket.local.port());
    let listening = sockets().filter(|socket| socket.state == LISTEN && is_at_a_service(socket));
    let listening: Vec<Socket> = listening.collect();
    if listening.is_empty() {
        return Vec::new();
    }
    let inodes = listening.iter().map(|socket| socket.inode).collect();
    let holders = holders(&inodes);
    let found = policy.services.values().filter_map(|service| {
        let here = listening
            .iter()
            .filter(|socket| socket.local.port() == service.listen);
        let foreign = here.filter_map(|socket| {
            let holders = holders.get(&socket.inode).map_or(&[][..], Vec::as_slice);
            // The keeper has a duplicate of each listener that it gives to a worker.
            let is_ours = holders.iter().any(|holder| is_keepers(&holder.program));
            let server = (!is_ours).then(|| server(socket, holders))?;
            // Administrators who log in by an SSH server are no users of the service.
            (server.is_ssh || !is_placeholder(service, socket, holders)).then_some(server)
        });
        let mut foreign: Vec<Server> = foreign.collect();
        // One server may listen for each family.
        foreign.dedup();
        let is_ssh = foreign.iter().any(|server| server.is_ssh);
        let text = joined(foreign.into_iter().map(|server| server.text), ", ");
        (!text.is_empty()).then_some((service, Server { text, is_ssh }))
    });
    found.collect()
}

/// Whether a listener holds the port for a service with `account`: it belongs to that account; or it belongs
/// to root, and is held by a process of the account, or by the service manager, which passes it on.
fn is_placeholder(service: &Service, socket: &Socket, holders: &[Holder]) -> bool {
    let ServedBy::Account(account) = &service.served_by else {
        return false;
    };
    let Ok(Some(account)) = accounts::look_up(account.as_ref()) else {
        return false;
    };
    let account = account.uid.as_raw();
    let is_passed_on =
        |holder: &Holder| holder.pid == SERVICE_MANAGER || holder.uids.contains(&account);
    // Only root sees the holders; other callers put nothing in force.
    let is_unseen = holders.is_empty() && !rustix::process::geteuid().is_root();
    socket.uid == account || (socket.uid == 0 && (is_unseen || holders.iter().any(is_passed_on)))
}

fn is_keepers(program: &str) -> bool {
    file_name(program) == "usherd"
}

fn file_name(program: &str) -> &str {
    // The kernel writes this behind the path of a deleted file.
    let program = program.strip_suffix(" (deleted)").unwrap_or(program);
    program.rsplit('/').next().unwrap_or(program)
}

fn server(socket: &Socket, holders: &[Holder]) -> Server {
    let is_managed = holders.iter().any(|holder| holder.pid == SERVICE_MANAGER);
    let units = if is_managed {
        socket_units(socket.local.port())
    } else {
        Vec::new()
    };
    let is_ssh = holders.iter().any(|holder| {
        let of_ssh = |unit: &String| unit.starts_with("ssh.") || unit.starts_with("sshd.");
        file_name(&holder.program).starts_with("sshd") || holder.unit.as_ref().is_some_and(of_ssh)
    }) || units.iter().any(|unit| unit.starts_with("ssh"));
    let text = match holders {
        [] => format!(
            "a program of the user with the number {} (only root sees its name)",
            socket.uid
        ),
        _ if !units.is_empty() => format!("the service manager ({})", joined(units, ", ")),
        _ => joined(holders.iter().map(Holder::text), ", "),
    };
    Server { text, is_ssh }
}

impl Holder {
    fn text(&self) -> String {
        let Self {
            pid, program, unit, ..
        } = self;
        match unit {
            Some(unit) => format!("{program} (pid {pid}, {unit})"),
            None => format!("{program} (pid {pid})"),
        }
    }
}

/// The processes that hold these sockets, as far as the caller may see, by the sockets' inodes.
fn holders(inodes: &BTreeSet<u64>) -> BTreeMap<u64, Vec<Holder>> {
    let mut holders: BTreeMap<u64, Vec<Holder>> = BTreeMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids {
        for inode in sockets_of(pid).intersection(inodes) {
            holders.entry(*inode).or_default().push(holder(pid));
        }
    }
    holders
}

fn holder(pid: u32) -> Holder {
    let folder = Path::new("/proc").join(pid.to_string());
    let program = fs::read_link(folder.join("exe"))
        .map(|path| path.display().to_string())
        .or_else(|_| fs::read_to_string(folder.join("comm")))
        .unwrap_or_default();
    let groups = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    Holder {
        pid,
        uids: uids(&status),
        program: program.trim_end().to_owned(),
        unit: unit(&groups),
    }
}

/// The real and the effective user of a process, by its status.
fn uids(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let numbers = line.unwrap_or_default().split_whitespace().take(2);
    numbers.filter_map(|uid| uid.parse().ok()).collect()
}

/// The service unit of a process, by its control groups.
fn unit(groups: &str) -> Option<String> {
    let mut folders = groups.split(['/', '\n']);
    let unit = folders.rfind(|folder| folder.ends_with(".service"))?;
    Some(unit.to_owned())
}

/// The inodes of a process's sockets. Empty when it has ended, or the caller may not see it.
fn sockets_of(pid: u32) -> BTreeSet<u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let descriptors = descriptors.into_iter().flatten().flatten();
    let inodes = descriptors.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?;
        inode.strip_suffix(']')?.parse().ok()
    });
    inodes.collect()
}

/// The socket units that listen at a port, and what they activate.
fn socket_units(port: u16) -> Vec<String> {
    let mut command = Command::new("systemctl");
    command.args(["list-sockets", "--no-legend", "--full", "--no-pager"]);
    let output = command.output().map(|output| output.stdout);
    units_at(&String::from_utf8_lossy(&output.unwrap_or_default()), port)
}

/// The units in lines of `LISTEN UNIT ACTIVATES`.
fn units_at(list: &str, port: u16) -> Vec<String> {
    let lines = list.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (_, number) = words.next()?.rsplit_once(':')?;
        (number.parse() == Ok(port)).then(|| words.map(str::to_owned))
    });
    let units: BTreeSet<String> = lines.flatten().collect();
    units.into_iter().collect()
}

/// The ports of this host by which the process or one of its ancestors is connected, such as that of the
/// SSH session in which the administrator types.
fn ports_of_this_session() -> BTreeSet<u16> {
    let mut ports: BTreeSet<u16> = std::env::var("SSH_CONNECTION")
        .ok()
        .and_then(|text| text.split(' ').nth(3)?.parse().ok())
        .into_iter()
        .collect();
    let connected: BTreeMap<u64, u16> = sockets()
        .filter(|socket| socket.state == ESTABLISHED)
        .map(|socket| (socket.inode, socket.local.port()))
        .collect();
    let mut pid = std::process::id();
    while pid > SERVICE_MANAGER {
        let held = sockets_of(pid);
        ports.extend(held.iter().filter_map(|inode| connected.get(inode)));
        let Some(parent) = parent(pid) else { break };
        pid = parent;
    }
    ports
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processs_users_are_the_real_and_the_effective_one() {
        assert_eq!(
            uids("Name:\tx\nUid:\t0\t107\t107\t107\nGid:\t1\t1\t1\t1\n"),
            [0, 107]
        );
        assert_eq!(uids(""), [0; 0]);
    }

    #[test]
    fn a_processs_unit_is_the_innermost_service() {
        let groups = "0::/system.slice/system-x.slice/ssh.service\n";
        assert_eq!(unit(groups).as_deref(), Some("ssh.service"));
        let user = "0::/user.slice/user-0.slice/user@0.service/app.slice/a.service/inner\n";
        assert_eq!(unit(user).as_deref(), Some("a.service"));
        assert_eq!(unit("0::/user.slice/session-1.scope\n"), None);
    }

    #[test]
    fn socket_units_are_found_by_their_port() {
        let list = "[::]:22                ssh.socket  ssh.service\n\
                    /run/udev/control      udev.socket udev.service\n\
                    127.0.0.1:2222         sshd-local.socket -\n";
        assert_eq!(units_at(list, 22), ["ssh.service", "ssh.socket"]);
        assert_eq!(units_at(list, 222), [""; 0]);
    }

    #[test]
    fn a_program_keeps_its_name_when_its_file_is_replaced() {
        assert_eq!(file_name("/usr/sbin/sshd (deleted)"), "sshd");
        assert_eq!(file_name("/usr/local/bin/usherd"), "usherd");
        assert!(!is_keepers("/usr/sbin/sshd"));
    }
}
