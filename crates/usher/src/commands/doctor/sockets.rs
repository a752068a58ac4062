//! The local sockets of servers that believe who reaches them.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use usher_local::roles::OFFERS;
use usher_policy::{Policy, ServedBy};

use super::Finding;

/// Permission of everybody to search a folder, and to write, which connecting to a socket takes (unix(7)).
const SEARCH: u32 = 0o001;
const WRITE: u32 = 0o002;

/// Whether the servers behind `identify` have their sockets, and nobody else reaches them; none if no service
/// has one.
pub fn servers(policy: &Policy) -> Option<Finding> {
    let services = policy.services.values();
    let backends = services.filter_map(|service| match &service.served_by {
        ServedBy::Backend(backend) => Some((&service.name, Path::new(&backend.socket))),
        ServedBy::Program(_) | ServedBy::Account(_) => None,
    });
    let faults: Vec<Option<String>> = backends
        .map(|(service, socket)| Some(format!("{service}: {}", fault(socket)?)))
        .collect();
    let count = faults.len();
    let faults: Vec<String> = faults.into_iter().flatten().collect();
    let detail = match faults.as_slice() {
        [] => "each is there, and not everybody reaches it".to_owned(),
        faults => faults.join("; "),
    };
    let need = "services with `identify`, whose servers believe whoever reaches their socket";
    let finding = Finding {
        duty: Some(OFFERS),
        ..Finding::new("servers' sockets", need, (faults.is_empty(), detail))
    };
    (count > 0).then_some(finding)
}

/// What is wrong with a server's socket, and the remedy.
fn fault(socket: &Path) -> Option<String> {
    let shown = socket.display();
    let found = fs::canonicalize(socket).and_then(|path| Ok((fs::metadata(&path)?, path)));
    let (metadata, path) = match found {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(format!("there is no {shown}; start the server"));
        }
        Err(error) => return Some(format!("cannot look at {shown}: {error}; run this as root")),
    };
    if !metadata.file_type().is_socket() {
        return Some(format!("{shown} is no socket; name the server's"));
    }
    let folders = path.ancestors().skip(1);
    let is_closed = |folder: &Path| fs::metadata(folder).is_ok_and(|it| !permits(&it, SEARCH));
    let is_open = permits(&metadata, WRITE) && !folders.into_iter().any(is_closed);
    is_open.then(|| {
        format!(
            "every local user reaches {shown} and may claim to be anybody; give it mode 0600, or its \
             folder 0700"
        )
    })
}

/// Whether everybody has the permission. Access control lists do not change that of others (acl(5)).
fn permits(metadata: &Metadata, permission: u32) -> bool {
    metadata.permissions().mode() & permission != 0
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_is_closed_by_its_mode_or_a_folders() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        assert!(fault(&socket).unwrap().contains("there is no "));
        fs::write(&socket, "").unwrap();
        assert!(fault(&socket).unwrap().contains(" is no socket"));
        fs::remove_file(&socket).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        for (mode, folders, is_closed) in [
            (0o666, 0o755, false),
            (0o600, 0o755, true),
            (0o660, 0o755, true),
            (0o666, 0o700, true),
            (0o666, 0o710, true),
            (0o777, 0o711, false),
        ] {
            set(&socket, mode).unwrap();
            set(folder.path(), folders).unwrap();
            let fault = fault(&socket);
            assert_eq!(
                fault.is_none(),
                is_closed,
                "{mode:o} in {folders:o}: {fault:?}"
            );
        }
    }
}
